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
  // `library`: the driver. Throws NativeError when it, the GPU or virtual memory management is missing.
  Device(int ordinal, const std::string& library);
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

  // As the kernel names it: "0000:0a:00.0".
  std::string pci_bus_id() const;
  // Whether pages that are mapped for reading alone can be locked; elsewhere they must be writable.
  bool locks_read_only() const { return attribute(kAttributeReadOnlyLocks) != 0; }

  // Page-lock host memory, so that copies from and to it run at the link's rate, for all GPUs. `address` names it to
  // `unlock`. Locked in pieces: the kernel holds off every mmap and munmap of the process during each. Takes
  // `read_only` as a wish: it is writable memory where the GPU has no such locks.
  static constexpr std::size_t kLockedAtOnce = std::size_t{256} << 20;
  void lock_pages(std::byte* address, std::size_t bytes, bool read_only);
  void unlock_pages(std::byte* address) noexcept;
  AddressBook& book() const { return *book_; }

 private:
  friend class Active;
  int attribute(int which) const;
  void unlock(std::byte* address, std::size_t bytes) noexcept;

  const Driver driver_;
  const int ordinal_;
  DeviceId id_ = 0;
  Context context_ = nullptr;
  std::size_t granularity_ = 0;
  const std::shared_ptr<AddressBook> book_ = AddressBook::of_process();
};

using SharedDevice = std::shared_ptr<Device>;

// The UUID of a GPU, as nvidia-smi -L has it behind the kind: of its own from a restart to the next, whatever its
// ordinal. No context is made: it can be had of a GPU that takes none. Throws NativeError when the driver or the GPU is
// missing.
std::string uuid_of(int ordinal, const std::string& library);

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
