// The double's streams, each a thread, with their events, copies and the kernel.
#include <cstring>
#include <deque>
#include <functional>
#include <thread>

#include "aegaeon/cuda/pieces.hpp"
#include "fake_cuda_world.hpp"

using namespace fake_cuda;

namespace {

constexpr Result kInvalidImage = 200;

}  // namespace

namespace aegaeon::cuda {

struct StreamOf {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool busy = false, closing = false;
  std::thread thread{[this] { run(); }};

  void push(std::function<void()> work) {
    const std::scoped_lock lock(mutex);
    queue.push_back(std::move(work));
    changed.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return closing || !queue.empty(); });
      if (queue.empty()) return;
      auto work = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      {
        std::unique_lock held(fake_cuda::world().mutex);
        fake_cuda::world().changed.wait(held, [] { return !fake_cuda::world().held; });
      }
      work();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }

  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return queue.empty() && !busy; });
  }

  ~StreamOf() {
    {
      const std::scoped_lock lock(mutex);
      closing = true;
      changed.notify_all();
    }
    thread.join();
  }
};

struct EventOf {
  std::mutex mutex;
  std::condition_variable changed;
  int recorded = 0, reached = 0;
};

}  // namespace aegaeon::cuda

extern "C" {

Result cuStreamCreateWithPriority(Stream* stream, unsigned, int priority) {
  ENTER_WITH_CONTEXT();
  if (priority > 0 || priority < -5) return kInvalidValue;
  *stream = new StreamOf();
  const std::scoped_lock lock(world().mutex);
  ++world().streams;
  return kSuccess;
}

Result cuStreamSynchronize(Stream stream) {
  ENTER_WITH_CONTEXT();
  stream->drain();
  return kSuccess;
}

Result cuStreamDestroy_v2(Stream stream) {
  ENTER_WITH_CONTEXT();
  delete stream;
  const std::scoped_lock lock(world().mutex);
  --world().streams;
  return kSuccess;
}

Result cuEventCreate(CuEvent* event, unsigned) {
  ENTER_WITH_CONTEXT();
  *event = new EventOf();
  const std::scoped_lock lock(world().mutex);
  ++world().events;
  return kSuccess;
}

Result cuEventDestroy_v2(CuEvent event) {
  ENTER_WITH_CONTEXT();
  delete event;
  const std::scoped_lock lock(world().mutex);
  --world().events;
  return kSuccess;
}

Result cuEventRecord(CuEvent event, Stream stream) {
  ENTER_WITH_CONTEXT();
  int number = 0;
  {
    const std::scoped_lock lock(event->mutex);
    number = ++event->recorded;
  }
  stream->push([event, number] {
    const std::scoped_lock lock(event->mutex);
    event->reached = number;
    event->changed.notify_all();
  });
  return kSuccess;
}

Result cuEventSynchronize(CuEvent event) {
  ENTER_WITH_CONTEXT();
  std::unique_lock lock(event->mutex);
  event->changed.wait(lock, [event, number = event->recorded] { return event->reached >= number; });
  return kSuccess;
}

Result cuMemcpyAsync(DevicePtr to, DevicePtr from, std::size_t bytes, Stream stream) {
  ENTER_WITH_CONTEXT();
  stream->push([=] { std::memcpy(pointer(to), pointer(from), bytes); });
  return kSuccess;
}

Result cuMemcpyBatchAsync_v2(DevicePtr* to, DevicePtr* from, std::size_t* bytes, std::size_t count,
                             CopyAttributes* attributes, std::size_t* indices, std::size_t kinds, Stream stream) {
  ENTER_WITH_CONTEXT();
  if (kinds != 1 || indices[0] != 0 || attributes->source_order != kSourceOrderStream) return kInvalidValue;
  for (std::size_t i = 0; i < count; ++i) {
    stream->push(
        [target = pointer(to[i]), source = pointer(from[i]), size = bytes[i]] { std::memcpy(target, source, size); });
  }
  return kSuccess;
}

Result cuModuleLoadData(Module* module, const void* image) {
  ENTER_WITH_CONTEXT();
  if (std::strcmp(static_cast<const char*>(image), "fake kernels") != 0) return kInvalidImage;
  *module = reinterpret_cast<Module>(&world());
  const std::scoped_lock lock(world().mutex);
  ++world().modules;
  return kSuccess;
}

Result cuModuleUnload(Module) {
  ENTER_WITH_CONTEXT();
  const std::scoped_lock lock(world().mutex);
  --world().modules;
  return kSuccess;
}

Result cuModuleGetFunction(Function* function, Module, const char* name) {
  ENTER_WITH_CONTEXT();
  if (std::strcmp(name, kCopyPieces) != 0) return kInvalidValue;
  *function = reinterpret_cast<Function>(&world());
  return kSuccess;
}

// What kernels.cu does, piece by piece.
Result cuLaunchKernel(Function, unsigned across, unsigned down, unsigned, unsigned threads, unsigned, unsigned,
                      unsigned, Stream stream, void** parameters, void**) {
  ENTER_WITH_CONTEXT();
  const auto pieces = *static_cast<const Pieces*>(parameters[0]);
  if (across == 0 || down != pieces.count || threads != kThreads) return kInvalidValue;
  stream->push([pieces] {
    for (unsigned i = 0; i < pieces.count; ++i) {
      std::memcpy(pointer(pieces.to[i]), pointer(pieces.from[i]), pieces.bytes[i] / kUnitBytes * kUnitBytes);
    }
  });
  return kSuccess;
}

}  // extern "C"
