// The double's memory: slabs of a GPU and their addresses, and host memory that is page-locked.
#include <sys/mman.h>
#include <sys/vfs.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "fake_cuda_world.hpp"

using namespace fake_cuda;

namespace fake_cuda {

namespace {

constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr long kTmpfs = 0x01021994, kHugetlbfs = 0x958458f6;

// The entry that an address lies in, or end().
template <typename Entries>
auto containing(const Entries& entries, DevicePtr address, auto bytes_of) {
  auto entry = entries.upper_bound(address);
  if (entry == entries.begin()) return entries.end();
  entry = std::prev(entry);
  return address < entry->first + bytes_of(entry->second) ? entry : entries.end();
}

std::size_t same(std::size_t bytes) { return bytes; }

// Whether the kernel pins these pages for long: they are mapped for what the GPU does with them, and no file system has
// to learn of pages that are written behind its back.
bool can_be_pinned(std::uintptr_t begin, std::uintptr_t end, bool written) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; begin < end && std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    char dash = 0;
    std::string permissions, offset, device, inode, path;
    fields >> std::hex >> first >> dash >> last >> permissions >> offset >> device >> inode >> path;
    if (last <= begin) continue;
    if (first > begin || permissions[0] != 'r' || (written && permissions[1] != 'w')) return false;
    struct statfs system{};
    const bool on_disk = permissions[3] == 's' && ::statfs(path.c_str(), &system) == 0 && system.f_type != kTmpfs &&
                         system.f_type != kHugetlbfs;
    if (written && on_disk) return false;
    begin = last;
  }
  return begin >= end;
}

}  // namespace

bool is_device_memory(DevicePtr address) {
  return containing(world().reservations, address, same) != world().reservations.end();
}

bool may_use(int device, DevicePtr address, std::size_t bytes) {
  const auto& mappings = world().mappings;
  for (DevicePtr at = address; at < address + bytes;) {
    const auto mapped = containing(mappings, at, [](const Mapped& m) { return m.bytes; });
    if (mapped == mappings.end() || !mapped->second.access.contains(device)) return false;
    at = mapped->first + mapped->second.bytes;
  }
  return true;
}

Host kind_of(int device, DevicePtr address, std::size_t bytes) {
  const auto& locked = world().locked;
  const auto lock = containing(locked, address, [](const Lock& l) { return l.bytes; });
  if (lock != locked.end()) {
    const auto& [size, owner, portable] = lock->second;
    if (!portable && owner != device) return Host::kPageable;
    return address + bytes <= lock->first + size ? Host::kLocked : Host::kAcrossLocks;
  }
  const auto next = locked.lower_bound(address);
  return next != locked.end() && next->first < address + bytes ? Host::kAcrossLocks : Host::kPageable;
}

}  // namespace fake_cuda

extern "C" {

Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  ENTER_WITH_CONTEXT();
  const std::scoped_lock lock(world().mutex);
  const std::size_t used = current().created + current().taken;
  *free = kTotal - std::min(used, kTotal);
  *total = kTotal;
  return kSuccess;
}

Result cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProp* prop, int) {
  ENTER();
  if (prop->type != kAllocationPinned || prop->location.type != kLocationDevice) return kInvalidValue;
  if (!is_gpu(prop->location.id)) return kInvalidDevice;
  const std::scoped_lock lock(world().mutex);
  *bytes = world().gpus[static_cast<std::size_t>(prop->location.id)].unit;
  return kSuccess;
}

Result cuMemCreate(MemHandle* handle, std::size_t bytes, const AllocationProp* prop, unsigned long long) {
  ENTER();
  if (!is_gpu(prop->location.id)) return kInvalidDevice;
  World& w = world();
  const std::scoped_lock lock(w.mutex);
  Gpu& gpu = w.gpus[static_cast<std::size_t>(prop->location.id)];
  if (bytes == 0 || bytes % gpu.unit != 0) return kInvalidValue;
  if (gpu.created + gpu.taken + bytes > kTotal) return kOutOfMemory;
  const int fd = ::memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  *handle = w.next++;
  w.handles[*handle] = std::make_shared<Memory>(fd, bytes, gpu);
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
  const auto reservation = containing(w.reservations, address, same);
  if (reservation == w.reservations.end()) return kInvalidValue;
  const bool inside = address + bytes <= reservation->first + reservation->second;
  const auto memory = w.handles.find(handle);
  if (!inside || offset != 0 || memory == w.handles.end() || memory->second->bytes != bytes) return kInvalidValue;
  if (w.mappings.contains(address)) return kInvalidValue;
  w.mappings[address] = {bytes, memory->second, {}};
  return kSuccess;
}

Result cuMemSetAccess(DevicePtr address, std::size_t bytes, const AccessDesc* access, std::size_t count) {
  ENTER();
  if (count != 1 || access->flags != kAccessReadWrite || !is_gpu(access->location.id)) return kInvalidValue;
  const std::scoped_lock lock(world().mutex);
  for (DevicePtr at = address; at < address + bytes;) {
    const auto mapped = world().mappings.find(at);
    if (mapped == world().mappings.end()) return kInvalidValue;
    Mapped& what = mapped->second;
    ::mmap(pointer(at), what.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, what.memory->fd, 0);
    what.access.insert(access->location.id);
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

// Of what the tests ask: CU_POINTER_ATTRIBUTE_DEVICE_POINTER. "If there exists no device pointer value through which
// kernels running in the current context may access ptr, then CUDA_ERROR_INVALID_VALUE is returned" (cuda.h).
Result cuPointerGetAttribute(void* value, int attribute, DevicePtr address) {
  ENTER_WITH_CONTEXT();
  if (attribute != kPointerDevicePointer) return kInvalidValue;
  const std::scoped_lock lock(world().mutex);
  if (!may_use(contexts.back()->device, address, 1)) return kInvalidValue;
  *static_cast<DevicePtr*>(value) = address;
  return kSuccess;
}

Result cuMemHostRegister_v2(void* base, std::size_t bytes, unsigned flags) {
  ENTER_WITH_CONTEXT();
  World& w = world();
  const bool reads = (flags & kRegisterReadOnly) != 0;
  const int device = contexts.back()->device;
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  const std::scoped_lock lock(w.mutex);
  if (reads && attribute_of(device, kAttributeReadOnlyLocks) == 0) return kNotSupported;
  if (!can_be_pinned(begin, begin + bytes, !reads)) return kInvalidValue;
  if (kind_of(device, begin, bytes) != Host::kPageable) return kLockedAlready;
  w.locked[begin] = {bytes, device, (flags & kRegisterPortable) != 0};
  w.longest_lock = std::max(w.longest_lock, bytes);
  return kSuccess;
}

// Of a lost GPU as well, so that a test sees what is left behind.
Result cuMemHostUnregister(void* base) {
  ENTER();
  if (contexts.empty()) return kInvalidContext;
  const std::scoped_lock lock(world().mutex);
  const bool known = world().locked.erase(reinterpret_cast<DevicePtr>(base)) == 1;
  return known ? current().lost.load() : kNotLocked;
}

}  // extern "C"
