// What the parts of the double share: everything that is alive, what is to fail, and the contexts of each thread.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aegaeon/cuda/api.hpp"

namespace aegaeon::cuda {

// A GPU's primary context; there are no others.
struct ContextOf {
  int device;
};

}  // namespace aegaeon::cuda

namespace fake_cuda {

using namespace aegaeon::cuda;

constexpr int kPointerDevicePointer = 3;  // of CUpointer_attribute
constexpr Result kInvalidValue = 1, kInvalidDevice = 101, kInvalidContext = 201, kInvalidHandle = 400;
constexpr Result kIllegalAddress = 700, kLockedAlready = 712, kNotLocked = 713, kNotSupported = 801;
constexpr std::size_t kTotal = std::size_t{1} << 30;
constexpr std::size_t kUnit = std::size_t{2} << 20;

struct Gpu {
  explicit Gpu(int device) : context{device} {}
  ContextOf context;
  int retained = 0;
  std::atomic<Result> lost = kSuccess;  // the sticky error after which it says nothing else
  std::atomic<std::size_t> created = 0;
  std::size_t taken = 0, unit = kUnit;
  std::map<int, int> attributes;
};

struct Memory {
  int fd;
  std::size_t bytes;
  Gpu& gpu;
  Memory(int file, std::size_t size, Gpu& of) : fd(file), bytes(size), gpu(of) { gpu.created += size; }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    ::close(fd);
    gpu.created -= bytes;
  }
};

struct Mapped {
  std::size_t bytes;
  std::shared_ptr<Memory> memory;
  std::set<int> access;  // GPUs that may use it
};

struct Lock {
  std::size_t bytes;
  int device;  // that alone copies by it, unless it is portable
  bool portable;
};

struct World {
  World();
  std::mutex mutex;
  std::condition_variable changed;
  std::array<Gpu, 2> gpus{Gpu(0), Gpu(1)};
  bool held = false;
  std::atomic<bool> late = false;
  std::map<std::string, std::pair<int, int>> failures;  // call -> (skip, code)
  std::map<std::string, int> calls;
  std::map<MemHandle, std::shared_ptr<Memory>> handles;
  std::map<DevicePtr, Mapped> mappings;
  std::map<DevicePtr, std::size_t> reservations;
  std::map<DevicePtr, Lock> locked;
  MemHandle next = 1;
  int streams = 0, events = 0;
  std::size_t longest_lock = 0, pageable = 0;
  std::atomic<std::size_t> longest_burst = 0;
};

World& world();

extern thread_local std::vector<Context> contexts;

inline Gpu& current() { return world().gpus[static_cast<std::size_t>(contexts.back()->device)]; }
inline bool is_gpu(int device) { return device >= 0 && static_cast<std::size_t>(device) < world().gpus.size(); }

// The lock is held.
int attribute_of(int device, int which);

// What every call begins with: counted, and failed when a test says so.
Result entered(const char* name);
// The same for calls that need a context, which is of no use any more once its GPU is lost.
Result entered_with_context(const char* name);

#define ENTER() \
  if (const Result failed = entered(__func__); failed != kSuccess) return failed
#define ENTER_WITH_CONTEXT() \
  if (const Result failed = entered_with_context(__func__); failed != kSuccess) return failed

inline void* pointer(DevicePtr address) { return reinterpret_cast<void*>(address); }

// Of memory on the device: whether this GPU may use all of it. The lock is held.
bool is_device_memory(DevicePtr address);
bool may_use(int device, DevicePtr address, std::size_t bytes);

enum class Host { kLocked, kPageable, kAcrossLocks };
// Of host memory, to a GPU. The lock is held.
Host kind_of(int device, DevicePtr address, std::size_t bytes);

}  // namespace fake_cuda
