// Ops as a team runs them: each function is entered by all threads of the team, and ends with a sync.
#ifndef BAYARD_OPS_H
#define BAYARD_OPS_H

#include "bayard_cpu.h"
#include "kernel_args.h"
#include "pool.h"

#include <vector>

namespace bayard {

struct Rows {
  float* at;
  int64_t stride, count;
  float* row(int64_t i) const { return at + i * stride; }
};

// The kernels in use; see dispatch.cpp.
const KernelTable& kernels();

// Memory that one thread of the team makes and all see: `shared` must be the same vector in all threads.
int64_t linear_shared_bytes(const BayardLinear& op, int64_t m);
void run_linear(Team& team, const BayardLinear& op, Rows x, const Rows* residual, Rows out, uint8_t* shared);

struct AttentionStep {
  const int32_t* block_tables;
  int64_t table_stride, table_width;
  const int32_t* query_starts;
  const int32_t* context_lens;
  int64_t sequences;
};
// BAYARD_BAD_INDEX or BAYARD_BAD_SHAPE if the step would read outside its pages or rows.
int check_attention(const BayardKv& kv, const AttentionStep& step, int64_t rows);
int64_t attention_shared_bytes(const BayardAttention& op, const AttentionStep& step, int threads);
void run_attention(Team& team, const BayardAttention& op, Rows q, const BayardKv& kv, const AttentionStep& step,
                   Rows out, uint8_t* shared);

// A token for each of `count` rows of logits, by its settings; counts [any, k] of the rows that have count_rows.
void run_choose(Team& team, const Rows& logits, int64_t k, const int32_t* rows, const float* settings,
                const int32_t* counts, const int32_t* count_rows, int64_t count, int32_t* out);

// A step's rows in the order of their experts: row p is token tokens[p], expert e has rows [starts[e], starts[e + 1]),
// and (token, choice) has row places[token * choices + choice].
struct ExpertOrder {
  std::vector<int64_t> starts, tokens, places;
  // False if an id is out of range.
  bool make(const int32_t* ids, int64_t tokens_count, int64_t choices, int64_t experts);
};
int64_t experts_shared_bytes(const BayardExperts& op, int64_t rows);
void run_experts(Team& team, const BayardExperts& op, Rows x, const ExpertOrder& order, const float* weights,
                 int64_t choices, Rows out, uint8_t* shared);

// The kernel of a gate: BAYARD_SILU_MUL, BAYARD_GELU_MUL or BAYARD_SWIGLU_CLAMPED.
typedef void (*GateFn)(const float* gate, const float* up, int64_t k, float* out);
GateFn gate_row(int prepare);

void run_embedding(Team& team, const BayardWeight& table, int64_t row_bytes, const int64_t* ids, Rows out);
void run_norm(Team& team, Rows x, int64_t k, const float* weight, float eps, Rows out);
void run_add_norm(Team& team, Rows x, Rows residual, int64_t k, const float* weight, float eps, Rows total, Rows out);
void run_gate_mul(Team& team, int prepare, Rows gate_up, int64_t k, Rows out);
void run_rope(Team& team, Rows heads, int64_t head_stride, int64_t num_heads, const int64_t* positions,
              const float* cos_sin, int64_t rotary);
void run_kv_write(Team& team, Rows k, Rows v, int64_t kv_heads, int64_t dim, const BayardKv& kv, const int64_t* pages,
                  const int64_t* offsets, const float* scales);
void run_argmax(Team& team, Rows x, int64_t k, bool finite, int64_t* out);

// Pieces of [0, count) so that each thread gets several, but none is smaller than `least`.
int64_t piece(const Team& team, int64_t count, int64_t least);

// One token's K and V of one KV head, to their page. Scales: of int8; 0: of the row's largest.
void store_kv(const KernelTable& t, const BayardKv& kv, int64_t page, int64_t head, int64_t offset, int64_t dim,
              const float* k, const float* v, float k_scale, float v_scale);

}  // namespace bayard

#endif
