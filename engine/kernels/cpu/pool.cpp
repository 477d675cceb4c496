#include "pool.h"

#include "topology.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <string>
#include <thread>

namespace bayard {
namespace {

constexpr int kSpins = 3000;         // some 30 to 50 us, a round: most waits within a job are shorter
constexpr int kRounds = 40;          // within a job: a partner that lost its CPU is away for milliseconds
constexpr int kRoundsBetween = 20;   // a millisecond: what lies between the steps of a model that is decoding

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

void futex_wait(std::atomic<uint32_t>* word, uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

bool changes(std::atomic<uint32_t>* word, uint32_t seen) {
  for (int i = 0; i < kSpins; i++) {
    if (word->load(std::memory_order_acquire) != seen) return true;
    relax();
  }
  return false;
}

// Sleeps until *word differs from seen; sleepers is raised while this thread may be asleep.
void sleep_until_changed(std::atomic<uint32_t>* word, uint32_t seen, std::atomic<uint32_t>* sleepers) {
  sleepers->fetch_add(1, std::memory_order_seq_cst);
  while (word->load(std::memory_order_seq_cst) == seen) futex_wait(word, seen);
  sleepers->fetch_sub(1, std::memory_order_relaxed);
}

// Waits for the team. A thread that gives its CPU away on a busy machine gets it back milliseconds later, so it spins on
// as long as that is worth it; it gives way only where another of the team was last seen on its own CPU.
void await_team(Shared* shared, std::atomic<uint32_t>* word, uint32_t seen, int rank, int size) {
  for (int round = 0; shared->spin && round < kRounds; round++) {
    if (changes(word, seen)) return;
    const int here = sched_getcpu();
    for (int other = 0; other < size; other++)
      if (other != rank && shared->cpu[static_cast<size_t>(other)].load(std::memory_order_relaxed) == here) {
        sched_yield();
        break;
      }
  }
  if (!shared->spin)
    for (int i = 0; i < 10; i++) {
      if (word->load(std::memory_order_acquire) != seen) return;
      sched_yield();
    }
  sleep_until_changed(word, seen, &shared->sleepers);
}

}  // namespace

int usable_cores() {
  int cores = static_cast<int>(places("", allowed_cpus()).size());
  const int quota = cgroup_quota("");
  return quota > 0 && quota < cores ? quota : cores;
}

void Team::sync() {
  if (size_ == 1) return;
  const uint32_t round = shared_->round.load(std::memory_order_relaxed);
  shared_->cpu[static_cast<size_t>(rank_)].store(sched_getcpu(), std::memory_order_relaxed);
  if (shared_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size_)) {
    shared_->arrived.store(0, std::memory_order_relaxed);
    shared_->next.store(0, std::memory_order_relaxed);  // all have seen the end of this phase
    shared_->round.store(round + 1, std::memory_order_seq_cst);
    if (shared_->sleepers.load(std::memory_order_seq_cst) > 0) futex_wake(&shared_->round);
    return;
  }
  await_team(shared_, &shared_->round, round, rank_, size_);
}

uint8_t* Team::scratch(int64_t bytes) {
  if (static_cast<int64_t>(scratch_->size()) < bytes + 64) scratch_->resize(static_cast<size_t>(bytes + 64));
  auto at = reinterpret_cast<uintptr_t>(scratch_->data());
  return scratch_->data() + ((at + 63) / 64 * 64 - at);
}

struct Pool::Worker {
  int rank = 0;
  std::vector<uint8_t> scratch;
  std::thread thread;
};

Pool::Pool(int threads, bool pin) : threads_(threads > 0 ? threads : usable_cores()) {
  const std::vector<int> all = allowed_cpus();
  std::vector<int> cpus;
  for (const Place& place : places("", all)) cpus.push_back(place.cpu);
  if (static_cast<int>(cpus.size()) < threads_) cpus = all;
  shared_.spin = static_cast<int>(all.size()) >= threads_;
  shared_.cpu = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(threads_));
  for (int rank = 0; rank < threads_; rank++) shared_.cpu[static_cast<size_t>(rank)].store(-1);
  for (int rank = 1; rank < threads_; rank++) {
    workers_.push_back(std::make_unique<Worker>());
    Worker* worker = workers_.back().get();
    worker->rank = rank;
    worker->thread = std::thread([this, worker] { loop(worker); });
    pthread_setname_np(worker->thread.native_handle(), ("bayard-cpu-" + std::to_string(rank)).c_str());
    if (pin && shared_.spin) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cpus[static_cast<size_t>(rank) % cpus.size()], &set);
      pthread_setaffinity_np(worker->thread.native_handle(), sizeof set, &set);
    }
  }
}

Pool::~Pool() {
  std::lock_guard<std::mutex> lock(one_job_);
  ending_.store(true);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(&generation_);
  for (auto& worker : workers_) worker->thread.join();
}

void Pool::loop(Worker* worker) {
  uint32_t seen = 0;
  for (;;) {
    bool next = false;
    for (int round = 0; shared_.spin && !next && round < kRoundsBetween; round++) next = changes(&generation_, seen);
    if (!next) sleep_until_changed(&generation_, seen, &idle_);
    seen = generation_.load(std::memory_order_acquire);
    if (ending_.load()) return;
    if (worker->rank < taking_part_) {
      Team team(&shared_, worker->rank, taking_part_, &worker->scratch);
      job_(team, context_);
    }
    // Each worker reports, whether it took part or not: the next job must not overtake one still reading this one's
    // fields.
    if (running_.fetch_sub(1, std::memory_order_seq_cst) == 1 && shared_.sleepers.load() > 0) futex_wake(&running_);
  }
}

void Pool::run(Job job, void* context, int want) {
  std::lock_guard<std::mutex> lock(one_job_);
  const int size = want < threads_ ? want : threads_;
  if (size <= 1) {
    Team alone(&shared_, 0, 1, &scratch_);
    job(alone, context);
    return;
  }
  job_ = job;
  context_ = context;
  taking_part_ = size;
  shared_.next.store(0);
  running_.store(static_cast<uint32_t>(threads_ - 1), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (idle_.load(std::memory_order_seq_cst) > 0) futex_wake(&generation_);
  Team team(&shared_, 0, size, &scratch_);
  job(team, context);
  for (uint32_t left = running_.load(std::memory_order_acquire); left != 0;
       left = running_.load(std::memory_order_acquire))
    await_team(&shared_, &running_, left, 0, size);
}

}  // namespace bayard
