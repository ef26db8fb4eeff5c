#include "aegaeon/stage.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "aegaeon/errors.hpp"
#include "aegaeon/mover.hpp"

namespace aegaeon {

namespace {

using namespace std::chrono_literals;

constexpr auto kWatch = 20ms;
constexpr std::size_t kDirect = 4096;  // what O_DIRECT wants offsets, lengths and addresses to be multiples of
constexpr std::size_t kPiece = std::size_t{256} << 10;  // converted at a time: stays in the processor's cache
constexpr std::size_t kMostDrains = 4;

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + kDirect - 1) / kDirect * kDirect; }

// Huge pages: the disk's driver is given a few long pieces of memory instead of one for every 4 KiB.
Mapping slots_of(std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw_errno("mmap of " + std::to_string(bytes) + " bytes for the stage ring");
  (void)::madvise(base, bytes, MADV_HUGEPAGE);  // it works without them as well
  return {base, bytes};
}

// Past the page cache, or through it where the file system knows no other way.
Fd open_direct(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (fd.get() < 0 && errno == EINVAL) fd = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) throw_errno(path + ": cannot be opened");
  return fd;
}

// Bytes needed from `begin` on: an item that begins in a chunk may end in the next one.
std::uint64_t extent(const StageChunk& chunk) {
  std::uint64_t end = chunk.begin + chunk.bytes;
  for (const StagePart& part : chunk.parts) end = std::max(end, part.at + part.bytes);
  return end - chunk.begin;
}

void copy_out(Mover& mover, const StageJob& job, std::uint64_t to, const std::byte* src, std::size_t bytes) {
  for (std::byte* destination : job.destinations) mover.copy(destination + to, src, bytes, bytes);
}

void convert_out(Mover& mover, const StageJob& job, const StagePart& part, const std::byte* src) {
  std::vector<std::byte> piece(2 * kPiece);  // 16 bits may become 32
  const std::size_t to_item = item_bytes(job.format);
  const std::size_t of_item = item_bytes(part.of);
  const std::size_t items = part.bytes / of_item;
  for (std::size_t first = 0; first < items; first += kPiece / of_item) {
    const std::size_t count = std::min(items - first, kPiece / of_item);
    convert(piece.data(), job.format, src + first * of_item, part.of, count);
    copy_out(mover, job, part.to + first * to_item, piece.data(), count * to_item);
    mover.finish();
  }
}

// One run's threads and what they share: free slots go to the readers, filled ones to the drains.
class Run {
 public:
  Run(const StageJob& job, const Mapping& slots, std::size_t slot_bytes)
      : job_(job), slots_(slots), slot_bytes_(slot_bytes) {
    for (const std::string& path : job.files) files_.push_back(open_direct(path));
    for (std::size_t slot = 0; slot < slots.bytes() / slot_bytes; ++slot) free_.push_back(slot);
  }

  bool perform(std::size_t readers) {
    {
      std::vector<std::jthread> threads;
      try {
        const std::size_t cores = std::max(std::thread::hardware_concurrency(), 1U);
        const std::size_t drains = std::min({free_.size(), kMostDrains, cores});
        start(threads, readers, &Run::read_next);
        start(threads, drains, &Run::drain_next);
        watch();
      } catch (...) {
        stop(std::current_exception());
      }
    }
    if (error_) std::rethrow_exception(error_);
    return !stopped_;
  }

 private:
  struct Filled {
    std::size_t slot;
    std::size_t chunk;
  };
  using Step = bool (Run::*)(std::unique_lock<std::mutex>& lock);

  void start(std::vector<std::jthread>& threads, std::size_t count, Step step) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // Python's signal handlers belong on its main thread
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back([this, step] { repeat(step); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void repeat(Step step) {
    try {
      std::unique_lock lock(mutex_);
      while ((this->*step)(lock)) {
      }
    } catch (...) {
      stop(std::current_exception());
    }
  }

  // A reader's step: the next chunk into a free slot. False when there is nothing left to read.
  bool read_next(std::unique_lock<std::mutex>& lock) {
    to_read_.wait(lock, [this] { return stopped_ || all_taken() || !free_.empty(); });
    if (stopped_ || all_taken()) return false;
    const Filled filled{free_.front(), next_++};
    free_.pop_front();
    if (all_taken()) to_read_.notify_all();
    lock.unlock();
    read(filled);
    lock.lock();
    filled_.push_back(filled);
    to_drain_.notify_one();
    return true;
  }

  // A drain's step: what is in a filled slot to its places. False when nothing will come any more.
  bool drain_next(std::unique_lock<std::mutex>& lock) {
    to_drain_.wait(lock, [this] { return stopped_ || draining_ == job_.chunks.size() || !filled_.empty(); });
    if (stopped_ || filled_.empty()) return false;
    const Filled filled = filled_.front();
    filled_.pop_front();
    if (++draining_ == job_.chunks.size()) to_drain_.notify_all();
    lock.unlock();
    drain(filled);
    lock.lock();
    done_bytes_ += job_.chunks[filled.chunk].bytes;
    if (++done_ == job_.chunks.size()) ended_.notify_one();
    free_.push_back(filled.slot);
    to_read_.notify_one();
    return true;
  }

  bool all_taken() const { return next_ == job_.chunks.size(); }

  std::byte* slot(const Filled& filled) const { return slots_.base() + filled.slot * slot_bytes_; }

  void read(const Filled& filled) const {
    const StageChunk& chunk = job_.chunks[filled.chunk];
    const std::uint64_t skew = chunk.begin % kDirect;
    const std::uint64_t needed = skew + extent(chunk);
    const std::uint64_t wanted = round_up(needed);
    std::uint64_t done = 0;
    while (done < wanted) {
      const ssize_t count = ::pread(files_[chunk.file].get(), slot(filled) + done, wanted - done,
                                    static_cast<off_t>(chunk.begin - skew + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_errno(job_.files[chunk.file] + ": cannot be read");
      done += static_cast<std::uint64_t>(count);
      if (count == 0 || done % kDirect != 0) break;  // the end of the file
    }
    if (done < needed) throw NativeError(job_.files[chunk.file] + ": ends early; it was changed while being read");
  }

  void drain(const Filled& filled) const {
    const StageChunk& chunk = job_.chunks[filled.chunk];
    const std::byte* data = slot(filled) + chunk.begin % kDirect;
    if (job_.inspect) job_.inspect(filled.chunk, data);
    const auto mover = memory_mover();
    for (const StagePart& part : chunk.parts) {
      const std::byte* src = data + (part.at - chunk.begin);
      if (part.of == job_.format) {
        copy_out(*mover, job_, part.to, src, part.bytes);
      } else {
        convert_out(*mover, job_, part, src);
      }
    }
    mover->finish();
  }

  // Until the end, in the caller's thread.
  void watch() {
    std::unique_lock lock(mutex_);
    const auto over = [this] { return stopped_ || done_ == job_.chunks.size(); };
    for (bool last = false; !last; ended_.wait_for(lock, kWatch, over)) {
      last = over();
      const std::uint64_t done = done_bytes_;
      lock.unlock();
      const bool go_on = !job_.watch || job_.watch(done);
      lock.lock();
      if (!go_on) stop_locked();
      last = last || !go_on;
    }
  }

  void stop(std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    if (!error_) error_ = std::move(error);
    stop_locked();
  }

  void stop_locked() {
    stopped_ = true;
    to_read_.notify_all();
    to_drain_.notify_all();
    ended_.notify_all();
  }

  const StageJob& job_;
  const Mapping& slots_;
  const std::size_t slot_bytes_;
  std::vector<Fd> files_;
  std::mutex mutex_;
  std::condition_variable to_read_;
  std::condition_variable to_drain_;
  std::condition_variable ended_;
  std::deque<std::size_t> free_;
  std::deque<Filled> filled_;
  std::size_t next_ = 0;      // chunks that a reader has taken
  std::size_t draining_ = 0;  // and a drain
  std::size_t done_ = 0;      // and that are in their places
  std::uint64_t done_bytes_ = 0;
  bool stopped_ = false;
  std::exception_ptr error_;
};

}  // namespace

StageRing::StageRing(std::size_t chunk_bytes, std::size_t depth, std::size_t readers)
    : chunk_bytes_(chunk_bytes),
      slot_bytes_(round_up(chunk_bytes) + 2 * kDirect),
      depth_(depth),
      readers_(std::min(readers, depth)),
      slots_(slots_of(slot_bytes_ * depth)) {
  if (chunk_bytes == 0 || depth == 0 || readers == 0) throw NativeError("stage ring: sizes must be 1 or more");
}

void StageRing::validate(const StageJob& job) const {
  for (const StageChunk& chunk : job.chunks) {
    const bool known = chunk.file < job.files.size() && chunk.bytes <= chunk_bytes_;
    const auto inside = [&chunk](const StagePart& part) {
      return part.at >= chunk.begin && part.at - chunk.begin <= chunk.bytes && part.bytes <= extent(chunk);
    };
    if (!known || extent(chunk) >= chunk.bytes + kDirect || !std::ranges::all_of(chunk.parts, inside)) {
      throw NativeError("stage ring: a chunk of " + std::to_string(chunk.bytes) + " bytes at " +
                        std::to_string(chunk.begin) + " does not fit slots of " + std::to_string(chunk_bytes_) +
                        " or its parts do not lie in it");
    }
  }
}

bool StageRing::run(const StageJob& job) {
  validate(job);
  return Run(job, slots_, slot_bytes_).perform(readers_);
}

}  // namespace aegaeon
