// A recorded step: ops over buffers of its own, run by the whole pool in one job.
#ifndef BAYARD_PROGRAM_H
#define BAYARD_PROGRAM_H

#include <memory>
#include <vector>

#include "ops.h"

namespace bayard {

class Program {
 public:
  static int create(const int64_t* widths, int64_t slots, const BayardOp* ops, int64_t count, Program** out);
  int run(Pool& pool, const BayardStep& step);
  int64_t bytes() const;
  void profile(bool on) { profiled_ = on; }
  const std::vector<int64_t>& nanoseconds() const { return ns_; }

 private:
  static uint8_t* align(uint8_t* p) {
    return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(p) + 63) / 64 * 64);
  }
  int check(const BayardStep& step) const;
  int64_t width(int32_t slot) const {
    return slot == BAYARD_LOGITS ? logits_width_ : widths_[static_cast<size_t>(slot)];
  }
  Rows rows(int32_t slot, int32_t which, const BayardStep& step);
  AttentionStep attention_of(const BayardOp& op, const BayardStep& step) const;
  void steps(Team& team, const BayardStep& step);
  void one(Team& team, const BayardOp& op, const BayardStep& step);
  void elementwise(Team& team, const BayardOp& op, const BayardStep& step);
  void rope_kv(Team& team, const BayardOp& op, const BayardStep& step);

  std::vector<BayardOp> ops_;
  std::vector<int64_t> widths_, strides_, ns_;
  std::vector<std::vector<uint8_t>> buffers_;
  std::vector<uint8_t> shared_;
  int64_t logits_width_ = 0;
  bool profiled_ = false;
};

}  // namespace bayard

#endif
