#include "fake_cuda.hpp"

#include <sys/mman.h>

#include <cstring>

#include "fake_cuda_world.hpp"

using namespace fake_cuda;

namespace fake_cuda {

World& world() {
  static World the_world;
  return the_world;
}

thread_local std::vector<Context> contexts;

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

}  // namespace fake_cuda

namespace {

constexpr std::size_t kUnit = 2 << 20;
constexpr Result kLockedAlready = 712, kNotLocked = 713;
constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

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

}  // extern "C"
