// The two kinds of slabs of a machine with a GPU: the device's own memory, and host memory that the device reaches.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "aegaeon/cuda/device.hpp"
#include "aegaeon/slabs.hpp"
#include "aegaeon/store.hpp"

namespace aegaeon::cuda {

// Slabs of device memory, one allocation each, mapped by CUDA's virtual memory management.
class DeviceStore final : public SlabStore {
 public:
  DeviceStore(SharedDevice device, std::size_t slab_bytes, std::size_t slabs);
  ~DeviceStore() override;

  std::shared_ptr<std::byte> reserve(std::size_t bytes) override;
  void map(std::byte* where, std::size_t first, std::size_t count) override;
  void unmap(std::byte* where, std::size_t count) override;
  std::byte* linear() const override;
  int device() const override { return device_->ordinal(); }
  void close() override;

 private:
  void create(std::size_t slabs);
  void release() noexcept;

  const SharedDevice device_;
  const std::size_t slab_bytes_;
  std::mutex mutex_;
  std::vector<MemHandle> handles_;  // by slab; empty once closed
};

// Another store's slabs, page-locked where they are mapped linearly; ranges over them are known to the device's book.
class LockedStore final : public SlabStore {
 public:
  LockedStore(std::shared_ptr<SlabStore> host, SharedDevice device, std::size_t slab_bytes, std::size_t slabs,
              bool read_only);
  ~LockedStore() override { unlock(); }

  std::shared_ptr<std::byte> reserve(std::size_t bytes) override { return host_->reserve(bytes); }
  void map(std::byte* where, std::size_t first, std::size_t count) override;
  void unmap(std::byte* where, std::size_t count) override;
  std::byte* linear() const override { return host_->linear(); }
  void close() override;

 private:
  void unlock() noexcept;

  const std::shared_ptr<SlabStore> host_;
  const SharedDevice device_;
  const std::size_t slab_bytes_;
  std::mutex mutex_;
  std::byte* locked_;  // null once closed
};

std::shared_ptr<SlabPool> create_pool(const SharedDevice& device, std::size_t slab_bytes, std::size_t slabs);
// For host pools: nothing where `device` is null.
StoreWrapper locking(const SharedDevice& device);

}  // namespace aegaeon::cuda
