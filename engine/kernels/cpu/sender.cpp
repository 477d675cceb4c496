// Threads that take host memory to a device: each fills one of its two pinned buffers while the other is on its way.
//
// The driver is reached through addresses of its functions, so that this library links to none. Jobs are taken in the
// order they were put in. Buffers are written past the caches, which their content would pass through for nothing. They
// lie in large pages, which a driver pins many times faster than small ones.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include <sys/mman.h>

#include "bayard_cpu.h"

#if defined(BAYARD_X86)
#include <emmintrin.h>
#endif

namespace {

struct Piece {
  int64_t ticket;
  const uint8_t* source;
  uint64_t target;
  int64_t bytes;
};

// Past the caches where the target lies well; the source may lie anywhere.
void stream_copy(uint8_t* target, const uint8_t* source, int64_t bytes) {
#if defined(BAYARD_X86)
  if (reinterpret_cast<uintptr_t>(target) % 64 == 0) {
    const int64_t lines = bytes / 64;
    for (int64_t line = 0; line < lines; ++line, source += 64, target += 64) {
      const __m128i* from = reinterpret_cast<const __m128i*>(source);
      __m128i* to = reinterpret_cast<__m128i*>(target);
      const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
      const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
      _mm_stream_si128(to, a);
      _mm_stream_si128(to + 1, b);
      _mm_stream_si128(to + 2, c);
      _mm_stream_si128(to + 3, d);
    }
    _mm_sfence();
    bytes -= lines * 64;
  }
#endif
  if (bytes > 0) std::memcpy(target, source, static_cast<size_t>(bytes));
}

constexpr int64_t kLargePage = int64_t{2} << 20;

// Memory in whole large pages where the system has them. Null if there is none.
struct Buffer {
  uint8_t* data = nullptr;
  uint8_t* mapped = nullptr;
  size_t bytes = 0, mapped_bytes = 0;

  bool make(int64_t wanted) {
    bytes = static_cast<size_t>((wanted + kLargePage - 1) / kLargePage * kLargePage);
    mapped_bytes = bytes + static_cast<size_t>(kLargePage);
    void* found = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return false;
    mapped = static_cast<uint8_t*>(found);
    const uintptr_t at = (reinterpret_cast<uintptr_t>(mapped) + kLargePage - 1) / kLargePage * kLargePage;
    data = reinterpret_cast<uint8_t*>(at);
#if defined(MADV_HUGEPAGE)
    madvise(data, bytes, MADV_HUGEPAGE);
#endif
    for (size_t page = 0; page < bytes; page += 4096) data[page] = 0;
    return true;
  }

  void drop() {
    if (mapped) munmap(mapped, mapped_bytes);
    data = mapped = nullptr;
  }
};

}  // namespace

struct BayardSender {
  BayardLink link;
  int64_t buffer_bytes;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable work, done;
  std::deque<Piece> pieces;
  std::unordered_map<int64_t, int64_t> left;   // pieces of each job that is not done
  std::unordered_map<int64_t, int> failed;     // what jobs that failed met, until they are asked for
  std::set<int64_t> open;                      // jobs that are not done
  int64_t last = 0;
  bool ending = false;

  void serve() {
    Buffer buffers[2];
    void* events[2] = {nullptr, nullptr};
    int turn = 0;
    int broken = link.use(link.context);
    for (;;) {
      Piece piece;
      {
        std::unique_lock<std::mutex> lock(mutex);
        work.wait(lock, [this] { return ending || !pieces.empty(); });
        if (pieces.empty()) break;
        piece = pieces.front();
        pieces.pop_front();
      }
      int error = broken;
      if (!error && !buffers[turn].data) {
        error = make(&buffers[turn], &events[turn]);
      } else if (!error) {
        error = link.wait(events[turn]);  // its last content has left
      }
      if (!error) {
        stream_copy(buffers[turn].data, piece.source, piece.bytes);
        error = link.copy(piece.target, buffers[turn].data, static_cast<size_t>(piece.bytes), link.stream);
      }
      if (!error) error = link.record(events[turn], link.stream);
      turn = 1 - turn;
      std::lock_guard<std::mutex> lock(mutex);
      if (error) failed.emplace(piece.ticket, error);
      if (--left[piece.ticket] == 0) {
        left.erase(piece.ticket);
        open.erase(piece.ticket);
        done.notify_all();
      }
    }
    for (int i = 0; i < 2; ++i) {
      if (events[i]) link.wait(events[i]);
      if (buffers[i].data) link.unpin(buffers[i].data);
      buffers[i].drop();
    }
  }

  int make(Buffer* buffer, void** event) {
    if (!buffer->make(buffer_bytes)) return BAYARD_NO_MEMORY;
    int error = link.pin(buffer->data, buffer->bytes, 0);
    if (!error) error = link.make_event(event, link.event_flags);
    if (error) buffer->drop();
    return error;
  }
};

extern "C" {

BayardSender* bayard_sender_new(const BayardLink* link, int threads, int64_t buffer_bytes) {
  if (!link || threads < 1 || threads > 256 || buffer_bytes < 1) return nullptr;
  try {
    auto sender = std::make_unique<BayardSender>();
    sender->link = *link;
    sender->buffer_bytes = buffer_bytes;
    BayardSender* made = sender.get();
    for (int i = 0; i < threads; ++i) made->threads.emplace_back([made] { made->serve(); });
    return sender.release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

void bayard_sender_free(BayardSender* sender) {
  if (!sender) return;
  {
    std::lock_guard<std::mutex> lock(sender->mutex);
    sender->ending = true;
  }
  sender->work.notify_all();
  for (std::thread& thread : sender->threads) thread.join();
  delete sender;
}

int64_t bayard_sender_put(BayardSender* sender, const void* source, uint64_t target, int64_t bytes, int64_t piece) {
  if (!sender || bytes < 0) return -1;
  piece = std::max<int64_t>(1, std::min(piece, sender->buffer_bytes));
  std::lock_guard<std::mutex> lock(sender->mutex);
  const int64_t ticket = ++sender->last;
  if (bytes == 0) return ticket;
  try {
    const int64_t count = (bytes + piece - 1) / piece;
    sender->left.emplace(ticket, count);
    sender->open.insert(ticket);
    for (int64_t at = 0; at < bytes; at += piece) {
      sender->pieces.push_back({ticket, static_cast<const uint8_t*>(source) + at, target + static_cast<uint64_t>(at),
                                std::min(piece, bytes - at)});
    }
    if (count == 1) {
      sender->work.notify_one();
    } else {
      sender->work.notify_all();
    }
  } catch (const std::bad_alloc&) {
    return -1;
  }
  return ticket;
}

int bayard_sender_wait(BayardSender* sender, int64_t ticket) {
  std::unique_lock<std::mutex> lock(sender->mutex);
  sender->done.wait(lock, [&] { return sender->left.find(ticket) == sender->left.end(); });
  const auto found = sender->failed.find(ticket);
  if (found == sender->failed.end()) return 0;
  const int error = found->second;
  sender->failed.erase(found);
  return error;
}

int64_t bayard_sender_done(BayardSender* sender) {
  std::lock_guard<std::mutex> lock(sender->mutex);
  return sender->open.empty() ? sender->last : *sender->open.begin() - 1;
}

}  // extern "C"
