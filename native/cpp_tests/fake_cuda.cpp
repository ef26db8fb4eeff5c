#include "fake_cuda.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "aegaeon/cuda/api.hpp"
#include "aegaeon/cuda/pieces.hpp"

using namespace aegaeon::cuda;

namespace {

constexpr std::size_t kUnit = 2 << 20;
constexpr Result kInvalidValue = 1, kInvalidContext = 201, kLockedAlready = 712, kNotLocked = 713, kInvalidImage = 200;

struct Memory {
  int fd;
  std::size_t bytes;
  ~Memory() { ::close(fd); }
};

struct Mapped {
  std::size_t bytes;
  std::shared_ptr<Memory> memory;
};

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  bool held = false;
  std::map<std::string, std::pair<int, int>> failures;  // call -> (skip, code)
  std::map<std::string, int> calls;
  std::map<MemHandle, std::shared_ptr<Memory>> handles;
  std::map<DevicePtr, Mapped> mappings;
  std::map<DevicePtr, std::size_t> reservations;
  std::map<char*, std::size_t> locked;
  MemHandle next = 1;
  int contexts = 0, modules = 0, streams = 0, events = 0;
};

World& world() {
  static World the_world;
  return the_world;
}

thread_local std::vector<Context> contexts;

// What every call begins with: counted, and failed when a test says so.
Result entered(const char* name) {
  World& w = world();
  const std::scoped_lock lock(w.mutex);
  ++w.calls[name];
  const auto failure = w.failures.find(name);
  if (failure == w.failures.end() || failure->second.first-- > 0) return kSuccess;
  const int code = failure->second.second;
  w.failures.erase(failure);
  return code;
}

#define ENTER() \
  if (const Result failed = entered(__func__); failed != 0) return failed
#define ENTER_WITH_CONTEXT() \
  ENTER();                   \
  if (contexts.empty()) return kInvalidContext

void* pointer(DevicePtr address) { return reinterpret_cast<void*>(address); }

constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

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
        std::unique_lock held(world().mutex);
        world().changed.wait(held, [] { return !world().held; });
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

FakeLive fake_live() {
  World& w = world();
  const std::scoped_lock lock(w.mutex);
  const auto count = [](const auto& things) { return static_cast<int>(things.size()); };
  return {w.contexts,      w.modules, count(w.handles), count(w.mappings), count(w.reservations),
          count(w.locked), w.streams, w.events};
}

void fake_fail(const char* name, int code, int skip) {
  const std::scoped_lock lock(world().mutex);
  world().failures[name] = {skip, code};
}

void fake_hold(bool held) {
  const std::scoped_lock lock(world().mutex);
  world().held = held;
  world().changed.notify_all();
}

int fake_calls(const char* name) {
  const std::scoped_lock lock(world().mutex);
  return world().calls[name];
}

Result cuGetErrorString(Result code, const char** text) {
  *text = code == kOutOfMemory ? "out of memory" : code == kInvalidContext ? "invalid device context" : "a fake error";
  return kSuccess;
}

Result cuInit(unsigned) {
  ENTER();
  return kSuccess;
}

Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

Result cuDeviceGetCount(int* count) {
  *count = 1;
  return kSuccess;
}

Result cuDeviceGet(DeviceId* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}

Result cuDeviceGetName(char* name, int, DeviceId) {
  std::strcpy(name, "Fake GPU");
  return kSuccess;
}

Result cuDeviceTotalMem_v2(std::size_t* bytes, DeviceId) {
  *bytes = std::size_t{1} << 30;
  return kSuccess;
}

Result cuDeviceGetAttribute(int* value, int which, DeviceId) {
  *value = which == kAttributeMajor ? 9 : which == kAttributeMinor ? 0 : 1;
  return kSuccess;
}

Result cuDevicePrimaryCtxRetain(Context* context, DeviceId) {
  ENTER();
  const std::scoped_lock lock(world().mutex);
  ++world().contexts;
  *context = reinterpret_cast<Context>(&world());
  return kSuccess;
}

Result cuDevicePrimaryCtxRelease_v2(DeviceId) {
  const std::scoped_lock lock(world().mutex);
  --world().contexts;
  return kSuccess;
}

Result cuCtxPushCurrent_v2(Context context) {
  contexts.push_back(context);
  return kSuccess;
}

Result cuCtxPopCurrent_v2(Context* context) {
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}

Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTER_WITH_CONTEXT();
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  ENTER_WITH_CONTEXT();
  *free = *total = std::size_t{1} << 30;
  return kSuccess;
}

Result cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProp* prop, int) {
  ENTER();
  if (prop->type != kAllocationPinned || prop->location.type != kLocationDevice) return kInvalidValue;
  *bytes = kUnit;
  return kSuccess;
}

Result cuMemCreate(MemHandle* handle, std::size_t bytes, const AllocationProp*, unsigned long long) {
  ENTER();
  if (bytes == 0 || bytes % kUnit != 0) return kInvalidValue;
  const int fd = ::memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  const std::scoped_lock lock(world().mutex);
  *handle = world().next++;
  world().handles[*handle] = std::make_shared<Memory>(fd, bytes);
  return kSuccess;
}

Result cuMemRelease(MemHandle handle) {
  ENTER();
  const std::scoped_lock lock(world().mutex);
  return world().handles.erase(handle) == 1 ? kSuccess : kInvalidValue;
}

Result cuMemAddressReserve(DevicePtr* address, std::size_t bytes, std::size_t, DevicePtr, unsigned long long) {
  ENTER();
  if (bytes == 0 || bytes % kUnit != 0) return kInvalidValue;
  void* base = ::mmap(nullptr, bytes, PROT_NONE, kNothing, -1, 0);
  if (base == MAP_FAILED) return kOutOfMemory;
  const std::scoped_lock lock(world().mutex);
  *address = reinterpret_cast<DevicePtr>(base);
  world().reservations[*address] = bytes;
  return kSuccess;
}

Result cuMemAddressFree(DevicePtr address, std::size_t bytes) {
  ENTER();
  World& w = world();
  const std::scoped_lock lock(w.mutex);
  const auto reservation = w.reservations.find(address);
  if (reservation == w.reservations.end() || reservation->second != bytes) return kInvalidValue;
  const auto mapped = w.mappings.lower_bound(address);
  if (mapped != w.mappings.end() && mapped->first < address + bytes) return kInvalidValue;
  ::munmap(pointer(address), bytes);
  w.reservations.erase(reservation);
  return kSuccess;
}

Result cuMemMap(DevicePtr address, std::size_t bytes, std::size_t offset, MemHandle handle, unsigned long long) {
  ENTER();
  World& w = world();
  const std::scoped_lock lock(w.mutex);
  auto reservation = w.reservations.upper_bound(address);
  if (reservation == w.reservations.begin()) return kInvalidValue;
  --reservation;
  const bool inside = address + bytes <= reservation->first + reservation->second;
  const auto memory = w.handles.find(handle);
  if (!inside || offset != 0 || memory == w.handles.end() || memory->second->bytes != bytes) return kInvalidValue;
  if (w.mappings.contains(address)) return kInvalidValue;
  w.mappings[address] = {bytes, memory->second};
  return kSuccess;
}

Result cuMemSetAccess(DevicePtr address, std::size_t bytes, const AccessDesc* access, std::size_t count) {
  ENTER();
  if (count != 1 || access->flags != kAccessReadWrite) return kInvalidValue;
  const std::scoped_lock lock(world().mutex);
  for (DevicePtr at = address; at < address + bytes;) {
    const auto mapped = world().mappings.find(at);
    if (mapped == world().mappings.end()) return kInvalidValue;
    const Mapped& what = mapped->second;
    ::mmap(pointer(at), what.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, what.memory->fd, 0);
    at += what.bytes;
  }
  return kSuccess;
}

Result cuMemUnmap(DevicePtr address, std::size_t bytes) {
  ENTER();
  const std::scoped_lock lock(world().mutex);
  const auto mapped = world().mappings.find(address);
  if (mapped == world().mappings.end() || mapped->second.bytes != bytes) return kInvalidValue;
  ::mmap(pointer(address), bytes, PROT_NONE, kNothing | MAP_FIXED, -1, 0);
  world().mappings.erase(mapped);
  return kSuccess;
}

Result cuMemHostRegister_v2(void* base, std::size_t bytes, unsigned) {
  ENTER_WITH_CONTEXT();
  World& w = world();
  const std::scoped_lock lock(w.mutex);
  auto* begin = static_cast<char*>(base);
  const auto next = w.locked.lower_bound(begin);
  if (next != w.locked.end() && next->first < begin + bytes) return kLockedAlready;
  w.locked[begin] = bytes;
  return kSuccess;
}

Result cuMemHostUnregister(void* base) {
  ENTER_WITH_CONTEXT();
  const std::scoped_lock lock(world().mutex);
  return world().locked.erase(static_cast<char*>(base)) == 1 ? kSuccess : kNotLocked;
}

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
