// The double's streams, each a thread, with their events and copies.
#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <thread>

#include "fake_cuda_world.hpp"

using namespace fake_cuda;

namespace {

// Work in the order in which it was pushed. Where streams are late, none of it starts that no thread waits for.
class Queue {
 public:
  ~Queue() {
    {
      const std::scoped_lock lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  // Its number. `bytes`: that it copies.
  std::size_t push(std::function<void()> work, std::size_t bytes = 0) {
    const std::scoped_lock lock(mutex_);
    if (done_ == pushed_) burst_ = 0;
    burst_ += bytes;
    world().longest_burst = std::max(world().longest_burst.load(), burst_);
    queue_.push_back(std::move(work));
    if (!world().late) asked_ = pushed_ + 1;
    changed_.notify_all();
    return ++pushed_;
  }

  // Until everything up to this number is done.
  void wait(std::size_t number) {
    std::unique_lock lock(mutex_);
    asked_ = std::max(asked_, number);
    changed_.notify_all();
    changed_.wait(lock, [this, number] { return done_ >= number; });
  }

  void drain() {
    std::unique_lock lock(mutex_);
    const std::size_t all = pushed_;
    lock.unlock();
    wait(all);
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closing_ || done_ < std::min(asked_, pushed_); });
      if (queue_.empty()) return;
      auto work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      await_release();
      work();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  static void await_release() {
    std::unique_lock held(world().mutex);
    world().changed.wait(held, [] { return !world().held; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::size_t pushed_ = 0, done_ = 0, asked_ = 0;
  std::size_t burst_ = 0;  // bytes of copies since it was empty
  bool closing_ = false;
  std::thread thread_{[this] { run(); }};
};

struct Piece {
  DevicePtr to, from;
  std::size_t bytes;
};

// A side of a copy as the driver sees it when the copy is issued. The lock is held.
Result look(int device, DevicePtr address, std::size_t bytes, bool& pageable) {
  if (is_device_memory(address)) return kSuccess;
  const Host kind = kind_of(device, address, bytes);
  pageable = pageable || kind == Host::kPageable;
  return kind == Host::kAcrossLocks ? kInvalidValue : kSuccess;
}

// And as the GPU finds it when it makes the copy: what it cannot reach by then is the last that it says.
void make(int device, const Piece& piece) {
  const std::scoped_lock lock(world().mutex);
  Gpu& gpu = world().gpus[static_cast<std::size_t>(device)];
  if (gpu.lost != kSuccess) return;
  const auto reachable = [&](DevicePtr address) {
    return !is_device_memory(address) || may_use(device, address, piece.bytes);
  };
  if (!reachable(piece.to) || !reachable(piece.from)) {
    gpu.lost = kIllegalAddress;
    return;
  }
  std::memcpy(pointer(piece.to), pointer(piece.from), piece.bytes);
}

}  // namespace

namespace aegaeon::cuda {

struct StreamOf {
  int device;
  std::shared_ptr<Queue> queue = std::make_shared<Queue>();
};

struct EventOf {
  int device;
  std::weak_ptr<Queue> queue = {};  // that it was recorded in last
  std::size_t number = 0;
};

}  // namespace aegaeon::cuda

namespace {

bool is_here(const StreamOf* stream) { return stream->device == contexts.back()->device; }
bool is_here(const EventOf* event) { return event->device == contexts.back()->device; }

// Copies of pageable memory have the caller wait.
Result copy(std::vector<Piece> pieces, Stream stream) {
  if (!is_here(stream)) return kInvalidHandle;
  bool pageable = false;
  std::size_t bytes = 0;
  {
    const std::scoped_lock lock(world().mutex);
    for (const Piece& piece : pieces) {
      bytes += piece.bytes;
      bool of_this = false;
      for (const DevicePtr side : {piece.to, piece.from}) {
        if (const Result wrong = look(stream->device, side, piece.bytes, of_this); wrong != kSuccess) return wrong;
      }
      if (of_this) world().pageable += piece.bytes;
      pageable = pageable || of_this;
    }
  }
  const std::size_t number = stream->queue->push(
      [device = stream->device, pieces = std::move(pieces)] {
        for (const Piece& piece : pieces) make(device, piece);
      },
      bytes);
  if (pageable) stream->queue->wait(number);
  return current().lost;
}

}  // namespace

extern "C" {

Result cuStreamCreate(Stream* stream, unsigned) {
  ENTER_WITH_CONTEXT();
  *stream = new StreamOf{contexts.back()->device};
  const std::scoped_lock lock(world().mutex);
  ++world().streams;
  return kSuccess;
}

// Of a lost GPU as well: nothing is under way afterwards.
Result cuStreamSynchronize(Stream stream) {
  ENTER();
  if (contexts.empty()) return kInvalidContext;
  if (!is_here(stream)) return kInvalidHandle;
  stream->queue->drain();
  return current().lost;
}

Result cuStreamDestroy_v2(Stream stream) {
  ENTER();
  if (contexts.empty()) return kInvalidContext;
  if (!is_here(stream)) return kInvalidHandle;
  delete stream;
  const std::scoped_lock lock(world().mutex);
  --world().streams;
  return current().lost;
}

Result cuEventCreate(CuEvent* event, unsigned) {
  ENTER_WITH_CONTEXT();
  *event = new EventOf{contexts.back()->device};
  const std::scoped_lock lock(world().mutex);
  ++world().events;
  return kSuccess;
}

Result cuEventDestroy_v2(CuEvent event) {
  ENTER();
  if (contexts.empty()) return kInvalidContext;
  if (!is_here(event)) return kInvalidHandle;
  delete event;
  const std::scoped_lock lock(world().mutex);
  --world().events;
  return current().lost;
}

Result cuEventRecord(CuEvent event, Stream stream) {
  ENTER_WITH_CONTEXT();
  if (!is_here(event) || !is_here(stream)) return kInvalidHandle;
  event->queue = stream->queue;
  event->number = stream->queue->push([] {});
  return kSuccess;
}

Result cuEventSynchronize(CuEvent event) {
  ENTER();
  if (contexts.empty()) return kInvalidContext;
  if (!is_here(event)) return kInvalidHandle;
  if (const auto queue = event->queue.lock()) queue->wait(event->number);
  return current().lost;
}

Result cuMemcpyAsync(DevicePtr to, DevicePtr from, std::size_t bytes, Stream stream) {
  ENTER_WITH_CONTEXT();
  return copy({{to, from, bytes}}, stream);
}

// Its copies have no order among themselves.
Result cuMemcpyBatchAsync_v2(DevicePtr* to, DevicePtr* from, std::size_t* bytes, std::size_t count,
                             CopyAttributes* attributes, std::size_t* indices, std::size_t kinds, Stream stream) {
  ENTER_WITH_CONTEXT();
  if (kinds != 1 || indices[0] != 0 || attributes->source_order != kSourceOrderStream) return kInvalidValue;
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < count; ++i) pieces.push_back({to[i], from[i], bytes[i]});
  std::shuffle(pieces.begin(), pieces.end(), std::minstd_rand(static_cast<unsigned>(count)));
  return copy(std::move(pieces), stream);
}

}  // extern "C"
