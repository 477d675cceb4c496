// Threads that take host memory to a device: each fills one of its two pinned buffers while the other is on its way.
//
// The driver is reached through addresses of its functions, so that this library links to none. Jobs are taken in the
// order they were put in. A job's parts lie side by side on the device, so that a buffer holds many small ones and goes
// in one copy. Parts of a file are read, not copied from its map: a map costs a fault every few pages, and pages let go
// again. Memory is written past the caches, which its content would pass through for nothing. Buffers lie in large
// pages, which a driver pins many times faster than small ones.
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bayard_cpu.h"

#if defined(BAYARD_X86)
#include <emmintrin.h>
#endif

namespace {

struct Job {
  int64_t ticket;
  std::vector<BayardStored> parts;
  int64_t pieces;  // that are not done
};

struct Piece {
  Job* job;
  size_t part;  // it begins in this one,
  int64_t at;   // so many bytes behind its start
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

// What is in the page cache at once; for the rest the disk is asked for all of it before any of it is waited for.
// 0, or the system's error as a negative number.
int read_file(uint8_t* target, int file, int64_t offset, int64_t bytes) {
  bool waits = false;
  while (bytes > 0) {
    ssize_t found;
#if defined(RWF_NOWAIT)
    if (!waits) {
      iovec into = {target, static_cast<size_t>(bytes)};
      found = preadv2(file, &into, 1, offset, RWF_NOWAIT);
      if (found <= 0) {
        waits = true;
        posix_fadvise(file, offset, bytes, POSIX_FADV_WILLNEED);
        continue;
      }
    } else
#endif
    {
      found = pread(file, target, static_cast<size_t>(bytes), offset);
      if (found < 0 && errno == EINTR) continue;
      if (found < 0) return -errno;
      if (found == 0) return -ENODATA;  // it has become shorter
    }
    target += found;
    offset += found;
    bytes -= found;
  }
  return 0;
}

// A piece's bytes from the parts it lies in.
int gather(uint8_t* target, const Piece& piece) {
  int64_t left = piece.bytes, at = piece.at;
  for (size_t index = piece.part; left > 0; ++index, at = 0) {
    const BayardStored& part = piece.job->parts[index];
    const int64_t count = std::min(left, part.bytes - at);
    if (part.file >= 0) {
      if (const int error = read_file(target, part.file, part.offset + at, count)) return error;
    } else {
      stream_copy(target, static_cast<const uint8_t*>(part.memory) + at, count);
    }
    target += count;
    left -= count;
  }
  return 0;
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
  std::map<int64_t, std::unique_ptr<Job>> open;  // jobs that are not done
  std::unordered_map<int64_t, int> failed;       // what jobs that failed met, until they are asked for
  int64_t last = 0;
  bool ending = false;

  void serve() {
    Buffer buffers[2];
    void* events[2] = {nullptr, nullptr};
    int turn = 0;
    int broken = link.use(link.context);
    for (int i = 0; i < 2 && !broken; ++i) broken = make(&buffers[i], &events[i]);
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
      if (!error) error = link.wait(events[turn]);  // its last content has left
      if (!error) error = gather(buffers[turn].data, piece);
      if (!error) {
        error = link.copy(piece.target, buffers[turn].data, static_cast<size_t>(piece.bytes), link.stream);
      }
      if (!error) error = link.record(events[turn], link.stream);
      turn = 1 - turn;
      std::lock_guard<std::mutex> lock(mutex);
      if (error) failed.emplace(piece.job->ticket, error);
      if (--piece.job->pieces == 0) {
        open.erase(piece.job->ticket);
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
    if (!error && (error = link.make_event(event, link.event_flags)) != 0) link.unpin(buffer->data);
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

int64_t bayard_sender_put(BayardSender* sender, const BayardStored* parts, int64_t count, uint64_t target,
                          int64_t piece) {
  if (!sender || !parts || count < 0) return -1;
  piece = std::max<int64_t>(1, std::min(piece, sender->buffer_bytes));
  try {
    auto job = std::make_unique<Job>();
    std::vector<Piece> made;
    int64_t full = 0;  // bytes of the piece that is being made
    for (int64_t i = 0; i < count; ++i) {
      if (parts[i].bytes < 0) return -1;
      if (parts[i].bytes == 0) continue;
      job->parts.push_back(parts[i]);
      for (int64_t at = 0; at < parts[i].bytes;) {
        if (full == 0) made.push_back({job.get(), job->parts.size() - 1, at, target, 0});
        const int64_t some = std::min(piece - full, parts[i].bytes - at);
        made.back().bytes += some;
        target += static_cast<uint64_t>(some);
        at += some;
        full = (full + some) % piece;
      }
    }
    job->pieces = static_cast<int64_t>(made.size());
    std::lock_guard<std::mutex> lock(sender->mutex);
    const int64_t ticket = job->ticket = sender->last + 1;
    if (!made.empty()) {
      sender->pieces.insert(sender->pieces.end(), made.begin(), made.end());
      sender->open.emplace_hint(sender->open.end(), ticket, std::move(job));
    }
    sender->last = ticket;
    if (made.size() == 1) {
      sender->work.notify_one();
    } else {
      sender->work.notify_all();
    }
    return ticket;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

int bayard_sender_wait(BayardSender* sender, int64_t ticket) {
  std::unique_lock<std::mutex> lock(sender->mutex);
  sender->done.wait(lock, [&] { return sender->open.find(ticket) == sender->open.end(); });
  const auto found = sender->failed.find(ticket);
  if (found == sender->failed.end()) return 0;
  const int error = found->second;
  sender->failed.erase(found);
  return error;
}

int64_t bayard_sender_done(BayardSender* sender) {
  std::lock_guard<std::mutex> lock(sender->mutex);
  return sender->open.empty() ? sender->last : sender->open.begin()->first - 1;
}

}  // extern "C"
