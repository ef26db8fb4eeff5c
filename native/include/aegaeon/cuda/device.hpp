// One GPU: its primary context (the one that torch uses), what it can do, and the memory it reaches.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "aegaeon/cuda/address_book.hpp"
#include "aegaeon/cuda/driver.hpp"

namespace aegaeon::cuda {

class Device {
 public:
  // `library`: the driver; `kernels`: what `make cuda` compiled, or empty: blocks are then moved by copies alone.
  // Throws NativeError when the driver, the GPU or virtual memory management is missing.
  Device(int ordinal, const std::string& library, const std::string& kernels);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  std::size_t granularity() const { return granularity_; }
  std::string name() const;
  std::size_t total_bytes() const;
  std::size_t free_bytes() const;
  int capability() const { return attribute(kAttributeMajor) * 10 + attribute(kAttributeMinor); }
  AllocationProp allocation() const;

  // Page-lock host memory, so that copies from and to it run at the link's rate. `address` names it to `unlock`.
  void lock_pages(std::byte* address, std::size_t bytes, bool read_only);
  void unlock_pages(std::byte* address) noexcept;
  AddressBook& book() const { return book_; }

  // Null without kernels.
  Function copy_kernel() const { return copy_kernel_; }

 private:
  friend class Active;
  int attribute(int which) const;
  void load_kernels(const std::string& kernels);

  const Driver driver_;
  const int ordinal_;
  DeviceId id_ = 0;
  Context context_ = nullptr;
  std::size_t granularity_ = 0;
  Module module_ = nullptr;
  Function copy_kernel_ = nullptr;
  mutable AddressBook book_;
};

using SharedDevice = std::shared_ptr<Device>;

// The device's context on this thread, for this scope; the thread's former context is restored.
class Active {
 public:
  explicit Active(const Device& device) : driver_(device.driver()) { driver_.cuCtxPushCurrent_v2(device.context_); }
  ~Active() {
    Context ours = nullptr;
    driver_.cuCtxPopCurrent_v2.quiet(&ours);
  }
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;

 private:
  const Driver& driver_;
};

// Host memory that is page-locked for a device while this lives.
class LockedPages {
 public:
  LockedPages(SharedDevice device, std::byte* base, std::size_t bytes) : device_(std::move(device)), base_(base) {
    device_->lock_pages(base, bytes, false);
  }
  ~LockedPages() { device_->unlock_pages(base_); }
  LockedPages(const LockedPages&) = delete;
  LockedPages& operator=(const LockedPages&) = delete;

 private:
  const SharedDevice device_;
  std::byte* const base_;
};

}  // namespace aegaeon::cuda
