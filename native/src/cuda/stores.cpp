#include "aegaeon/cuda/stores.hpp"

#include <string>
#include <utility>

#include "aegaeon/errors.hpp"

namespace aegaeon::cuda {

namespace {

DevicePtr at(const std::byte* address) { return reinterpret_cast<DevicePtr>(address); }

}  // namespace

DeviceStore::DeviceStore(SharedDevice device, std::size_t slab_bytes, std::size_t slabs)
    : device_(std::move(device)), slab_bytes_(slab_bytes) {
  const std::size_t unit = device_->granularity();
  if (slab_bytes == 0 || slab_bytes % unit != 0) {
    throw NativeError("slab size " + std::to_string(slab_bytes) + " is not a positive multiple of " +
                      std::to_string(unit) + " bytes, the unit of this GPU's memory");
  }
  create(slabs);
}

void DeviceStore::create(std::size_t slabs) {
  const Active active(*device_);
  const AllocationProp prop = device_->allocation();
  handles_.reserve(slabs);
  try {
    while (handles_.size() < slabs) {
      MemHandle handle = 0;
      device_->driver().cuMemCreate(&handle, slab_bytes_, &prop, 0);
      handles_.push_back(handle);
    }
  } catch (const NativeError& error) {
    const std::size_t made = handles_.size();
    release();
    throw NativeError("cuda:" + std::to_string(device_->ordinal()) + " has room for " + std::to_string(made) + " of " +
                      std::to_string(slabs) + " slabs of " + std::to_string(slab_bytes_) + " bytes (" + error.what() +
                      "); lower the device's memory, or end what else uses it");
  }
}

void DeviceStore::release() noexcept {
  for (const MemHandle handle : handles_) device_->driver().cuMemRelease.quiet(handle);
  handles_.clear();
}

DeviceStore::~DeviceStore() { DeviceStore::close(); }

std::shared_ptr<std::byte> DeviceStore::reserve(std::size_t bytes) {
  const Active active(*device_);
  DevicePtr base = 0;
  device_->driver().cuMemAddressReserve(&base, bytes, 0, 0, 0);
  auto* addresses =
      reinterpret_cast<std::byte*>(base);  // NOLINT(performance-no-int-to-ptr): the driver's addresses are integers
  device_->book().add(addresses, bytes, addresses);
  return {addresses, [device = device_, bytes](std::byte* freed) {
            device->book().remove(freed);
            device->driver().cuMemAddressFree.quiet(at(freed), bytes);
          }};
}

void DeviceStore::map(std::byte* where, std::size_t first, std::size_t count) {
  const std::scoped_lock lock(mutex_);
  if (handles_.empty()) throw NativeError("this slab pool is closed");
  const Active active(*device_);
  const Driver& driver = device_->driver();
  const AccessDesc access{{kLocationDevice, device_->ordinal()}, kAccessReadWrite};
  std::size_t mapped = 0;
  try {
    for (; mapped < count; ++mapped) {
      driver.cuMemMap(at(where + mapped * slab_bytes_), slab_bytes_, 0, handles_[first + mapped], 0);
    }
    driver.cuMemSetAccess(at(where), count * slab_bytes_, &access, 1);
  } catch (...) {
    while (mapped-- > 0) driver.cuMemUnmap.quiet(at(where + mapped * slab_bytes_), slab_bytes_);
    throw;
  }
}

// One call a slab: what was mapped by one call is unmapped by one.
void DeviceStore::unmap(std::byte* where, std::size_t count) {
  const Active active(*device_);
  for (std::size_t i = 0; i < count; ++i) device_->driver().cuMemUnmap(at(where + i * slab_bytes_), slab_bytes_);
}

std::byte* DeviceStore::linear() const {
  throw NativeError("a device's pool is not mapped linearly; map its slabs into a Range");
}

// The driver keeps the memory of a released handle until its last mapping is gone.
void DeviceStore::close() {
  const std::scoped_lock lock(mutex_);
  release();
}

LockedStore::LockedStore(std::shared_ptr<SlabStore> host, SharedDevice device, std::size_t slab_bytes,
                         std::size_t slabs, bool read_only)
    : host_(std::move(host)), device_(std::move(device)), slab_bytes_(slab_bytes), locked_(host_->linear()) {
  device_->lock_pages(locked_, slab_bytes * slabs, read_only);
}

void LockedStore::map(std::byte* where, std::size_t first, std::size_t count) {
  host_->map(where, first, count);
  std::byte* target = host_->linear() + first * slab_bytes_;
  for (std::size_t i = 0; i < count; ++i) {
    device_->book().add(where + i * slab_bytes_, slab_bytes_, target + i * slab_bytes_);
  }
}

void LockedStore::unmap(std::byte* where, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) device_->book().remove(where + i * slab_bytes_);
  host_->unmap(where, count);
}

void LockedStore::unlock() noexcept {
  const std::scoped_lock lock(mutex_);
  if (locked_ != nullptr) device_->unlock_pages(std::exchange(locked_, nullptr));
}

void LockedStore::close() {
  unlock();
  host_->close();
}

std::shared_ptr<SlabPool> create_pool(const SharedDevice& device, std::size_t slab_bytes, std::size_t slabs) {
  return SlabPool::create(std::make_shared<DeviceStore>(device, slab_bytes, slabs), slab_bytes, slabs);
}

StoreWrapper locking(const SharedDevice& device) {
  if (!device) return {};
  return [device](std::shared_ptr<SlabStore> host, std::size_t slab_bytes, std::size_t slabs, bool read_only) {
    return std::make_shared<LockedStore>(std::move(host), device, slab_bytes, slabs, read_only);
  };
}

}  // namespace aegaeon::cuda
