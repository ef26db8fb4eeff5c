#include "aegaeon/cuda/device.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "aegaeon/errors.hpp"

namespace aegaeon::cuda {

Device::Device(int ordinal, const std::string& library) : driver_(library), ordinal_(ordinal) {
  int count = 0;
  driver_.cuDeviceGetCount(&count);
  if (ordinal < 0 || ordinal >= count) {
    throw NativeError("cuda:" + std::to_string(ordinal) + ": the driver shows " + std::to_string(count) +
                      " devices; see nvidia-smi and CUDA_VISIBLE_DEVICES, or use device cpu");
  }
  driver_.cuDeviceGet(&id_, ordinal);
  if (attribute(kAttributeVmm) == 0 || attribute(kAttributeSameHostPointer) == 0) {
    throw NativeError("cuda:" + std::to_string(ordinal) + " (" + name() +
                      ") has no virtual memory management or no common addresses with the host; use another GPU");
  }
  const AllocationProp prop = allocation();
  driver_.cuDevicePrimaryCtxRetain(&context_, id_);
  try {
    const Active active(*this);
    driver_.cuMemGetAllocationGranularity(&granularity_, &prop, kGranularityMinimum);
  } catch (...) {
    driver_.cuDevicePrimaryCtxRelease_v2.quiet(id_);
    throw;
  }
}

std::string uuid_of(int ordinal, const std::string& library) {
  const Driver driver(library);
  DeviceId id = 0;
  driver.cuDeviceGet(&id, ordinal);
  Uuid uuid{};
  driver.cuDeviceGetUuid_v2(&uuid, id);
  std::string text;
  for (const unsigned char byte : uuid.bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    if (text.size() == 8 || text.size() == 13 || text.size() == 18 || text.size() == 23) text += '-';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Device::~Device() { driver_.cuDevicePrimaryCtxRelease_v2.quiet(id_); }

int Device::attribute(int which) const {
  int value = 0;
  driver_.cuDeviceGetAttribute(&value, which, id_);
  return value;
}

std::string Device::name() const {
  std::array<char, 256> text{};
  driver_.cuDeviceGetName(text.data(), static_cast<int>(text.size()) - 1, id_);
  return text.data();
}

std::string Device::pci_bus_id() const {
  std::array<char, 32> text{};
  driver_.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), id_);
  return text.data();
}

std::size_t Device::total_bytes() const {
  std::size_t bytes = 0;
  driver_.cuDeviceTotalMem_v2(&bytes, id_);
  return bytes;
}

std::size_t Device::free_bytes() const {
  const Active active(*this);
  std::size_t free = 0;
  std::size_t total = 0;
  driver_.cuMemGetInfo_v2(&free, &total);
  return free;
}

AllocationProp Device::allocation() const {
  AllocationProp prop{};
  prop.type = kAllocationPinned;
  prop.location = {kLocationDevice, id_};
  return prop;
}

void Device::lock_pages(std::byte* address, std::size_t bytes, bool read_only) {
  const Active active(*this);
  const bool reads = read_only && locks_read_only();
  const unsigned flags = kRegisterPortable | kRegisterDeviceMap | (reads ? kRegisterReadOnly : 0);
  book_->add_locked(address, bytes, kLockedAtOnce);
  std::size_t locked = 0;
  try {
    for (; locked < bytes; locked += kLockedAtOnce) {
      driver_.cuMemHostRegister_v2(address + locked, std::min(kLockedAtOnce, bytes - locked), flags);
    }
  } catch (...) {
    unlock(address, locked);
    book_->remove(address);
    throw;
  }
}

void Device::unlock_pages(std::byte* address) noexcept {
  try {
    const Active active(*this);
    unlock(address, book_->remove(address));
  } catch (const NativeError&) {
    // No context any more: nothing is locked either.
  }
}

void Device::unlock(std::byte* address, std::size_t bytes) noexcept {
  for (std::size_t at = 0; at < bytes; at += kLockedAtOnce) driver_.cuMemHostUnregister.quiet(address + at);
}

}  // namespace aegaeon::cuda
