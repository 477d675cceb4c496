// A persistent team of threads that runs one job at a time. Idle workers sleep; between jobs that follow each other
// closely they spin, since waking a thread costs more than a small matrix product.
#ifndef BAYARD_POOL_H
#define BAYARD_POOL_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace bayard {

struct Shared {
  alignas(64) std::atomic<int64_t> next{0};      // the next piece of the current phase
  alignas(64) std::atomic<uint32_t> arrived{0};
  alignas(64) std::atomic<uint32_t> round{0};
  std::atomic<uint32_t> sleepers{0};
  bool spin = true;                              // false when threads outnumber CPUs
  std::unique_ptr<std::atomic<int>[]> cpu;       // where each rank last was
};

// What a thread of the team sees while a job runs. All threads call sync() and each() in the same order.
class Team {
 public:
  Team(Shared* shared, int rank, int size, std::vector<uint8_t>* scratch)
      : rank_(rank), size_(size), shared_(shared), scratch_(scratch) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Runs body(begin, end) over pieces of [0, count); pieces go to whoever is free. A sync() must follow.
  template <class Body>
  void each(int64_t count, int64_t chunk, Body body) {
    if (size_ == 1) {
      if (count > 0) body(int64_t{0}, count);
      return;
    }
    for (;;) {
      const int64_t begin = shared_->next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin >= count) return;
      body(begin, begin + chunk < count ? begin + chunk : count);
    }
  }

  // Waits until all threads of the team are here.
  void sync();

  // This thread's own memory, 64-byte aligned, kept between jobs; a later call gives the same memory again.
  uint8_t* scratch(int64_t bytes);

 private:
  int rank_, size_;
  Shared* shared_;
  std::vector<uint8_t>* scratch_;
};

class Pool {
 public:
  typedef void (*Job)(Team& team, void* context);

  // threads 0: one a usable core. pin: keep worker i on the i-th usable CPU.
  Pool(int threads, bool pin);
  ~Pool();

  // Blocks until the job has ended on all threads. The calling thread is rank 0. `want` bounds how many take part.
  void run(Job job, void* context, int want);
  int threads() const { return threads_; }

 private:
  struct Worker;
  void loop(Worker* worker);

  int threads_;
  std::mutex one_job_;
  Shared shared_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<uint8_t> scratch_;
  Job job_ = nullptr;
  void* context_ = nullptr;
  int taking_part_ = 0;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> running_{0};
  std::atomic<uint32_t> idle_{0};  // workers that sleep, or are about to
  std::atomic<bool> ending_{false};
};

// Cores this process may use: its affinity, one thread a core, no more than its cgroup's quota allows.
int usable_cores();

}  // namespace bayard

#endif
