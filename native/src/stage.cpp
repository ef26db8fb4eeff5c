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
#include "aegaeon/stage_out.hpp"

namespace aegaeon {

namespace {

using namespace std::chrono_literals;

constexpr auto kWatch = 20ms;
constexpr std::size_t kDirect = 4096;  // what O_DIRECT wants offsets, lengths and addresses to be multiples of
constexpr std::size_t kMostDrains = 4;

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + kDirect - 1) / kDirect * kDirect; }

// Huge pages: the disk's driver is given a few long pieces of memory instead of one for every 4 KiB.
Mapping pages_of(std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw_errno("mmap of " + std::to_string(bytes) + " bytes for the stage ring");
  Mapping pages(base, bytes);
  ask_for_huge_pages(pages.base(), bytes);
  return pages;
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

// What a ring is made of, for its runs.
struct Parts {
  std::byte* slots;
  std::size_t slot_bytes;
  std::size_t depth;
  std::byte* pieces;  // one for each drain
  cuda::SharedDevice device;
};

// One run's threads and what they share: free slots go to the readers, filled ones to the drains.
class Run {
 public:
  Run(const StageJob& job, Parts parts) : job_(job), parts_(std::move(parts)) {
    for (const std::string& path : job.files) files_.push_back(open_direct(path));
    for (std::size_t slot = 0; slot < parts_.depth; ++slot) free_.push_back(slot);
  }

  bool perform(std::size_t readers) {
    {
      std::vector<std::jthread> threads;
      try {
        const std::size_t cores = std::max(std::thread::hardware_concurrency(), 1U);
        const std::size_t drains = std::min({free_.size(), kMostDrains, cores});
        start(threads, readers, [this](std::size_t) { read_all(); });
        start(threads, drains, [this](std::size_t number) { drain_all(number); });
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
  using Lock = std::unique_lock<std::mutex>;

  void start(std::vector<std::jthread>& threads, std::size_t count, const std::function<void(std::size_t)>& work) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // Python's signal handlers belong on its main thread
    for (std::size_t i = 0; i < count; ++i) {
      threads.emplace_back([this, work, i] {
        try {
          work(i);
        } catch (...) {
          stop(std::current_exception());
        }
      });
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void read_all() {
    Lock lock(mutex_);
    while (read_next(lock)) {
    }
  }

  void drain_all(std::size_t number) {
    StageOut out(job_, parts_.pieces + number * StageOut::kPieceBytes, parts_.device);
    Lock lock(mutex_);
    while (drain_next(lock, out)) {
    }
  }

  // A reader's step: the next chunk into a free slot. False when there is nothing left to read.
  bool read_next(Lock& lock) {
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
  bool drain_next(Lock& lock, StageOut& out) {
    to_drain_.wait(lock, [this] { return stopped_ || draining_ == job_.chunks.size() || !filled_.empty(); });
    if (stopped_ || filled_.empty()) return false;
    const Filled filled = filled_.front();
    filled_.pop_front();
    if (++draining_ == job_.chunks.size()) to_drain_.notify_all();
    lock.unlock();
    drain(filled, out);
    lock.lock();
    done_bytes_ += job_.chunks[filled.chunk].bytes;
    if (++done_ == job_.chunks.size()) ended_.notify_one();
    free_.push_back(filled.slot);
    to_read_.notify_one();
    return true;
  }

  bool all_taken() const { return next_ == job_.chunks.size(); }

  std::byte* slot(const Filled& filled) const { return parts_.slots + filled.slot * parts_.slot_bytes; }

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

  void drain(const Filled& filled, StageOut& out) const {
    const StageChunk& chunk = job_.chunks[filled.chunk];
    const std::byte* data = slot(filled) + chunk.begin % kDirect;
    if (job_.inspect) job_.inspect(filled.chunk, data);
    for (const StagePart& part : chunk.parts) out.write(part, data + (part.at - chunk.begin));
    out.finish();
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
  const Parts parts_;
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

StageRing::StageRing(std::size_t chunk_bytes, std::size_t depth, std::size_t readers, cuda::SharedDevice device)
    : chunk_bytes_(chunk_bytes),
      slot_bytes_(round_up(chunk_bytes) + 2 * kDirect),
      depth_(depth),
      readers_(std::min(readers, depth)),
      device_(std::move(device)),
      memory_(pages_of(slot_bytes_ * depth + kMostDrains * StageOut::kPieceBytes)) {
  if (chunk_bytes == 0 || depth == 0 || readers == 0) throw NativeError("stage ring: sizes must be 1 or more");
  if (device_) locked_ = std::make_unique<cuda::LockedPages>(device_, memory_.base(), memory_.bytes());
}

void StageRing::validate(const StageJob& job) const {
  if (job.on_device != nullptr && !device_) throw NativeError("stage ring: it was made for no device");
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
  std::byte* const pieces = memory_.base() + slot_bytes_ * depth_;
  return Run(job, {memory_.base(), slot_bytes_, depth_, pieces, device_}).perform(readers_);
}

}  // namespace aegaeon
