// What the parts of the double share: everything that is alive, what is to fail, and the contexts of each thread.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "aegaeon/cuda/api.hpp"

namespace fake_cuda {

using namespace aegaeon::cuda;

constexpr Result kInvalidValue = 1, kInvalidContext = 201;

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

World& world();

extern thread_local std::vector<Context> contexts;

// What every call begins with: counted, and failed when a test says so.
Result entered(const char* name);

#define ENTER() \
  if (const Result failed = entered(__func__); failed != 0) return failed
#define ENTER_WITH_CONTEXT() \
  ENTER();                   \
  if (contexts.empty()) return kInvalidContext

inline void* pointer(DevicePtr address) { return reinterpret_cast<void*>(address); }

}  // namespace fake_cuda
