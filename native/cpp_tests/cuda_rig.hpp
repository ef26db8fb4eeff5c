// What the tests of the CUDA tier share: pools, lanes and page-locked memory over the double of the driver.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "aegaeon/blocks.hpp"
#include "aegaeon/copylane.hpp"
#include "aegaeon/cuda/stores.hpp"
#include "aegaeon/cuda/stream_mover.hpp"
#include "fake_cuda.hpp"

namespace cuda_rig {

using namespace aegaeon;
using cuda::SharedDevice;

inline constexpr std::size_t kSlab = 2 << 20;
inline constexpr std::size_t kChunk = 65536;

inline SharedDevice open(int ordinal = 0) { return std::make_shared<cuda::Device>(ordinal, FAKE_CUDA); }

inline std::shared_ptr<SlabPool> device_pool(const SharedDevice& device, std::size_t slabs) {
  return cuda::create_pool(device, kSlab, slabs);
}

// On a tmpfs, as pages of other file systems cannot be locked.
inline std::string fresh_path(const std::string& folder = "/dev/shm/") {
  static std::atomic<int> number{0};
  return folder + "cuda-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

inline std::shared_ptr<SlabPool> host_pool(const SharedDevice& device, std::size_t slabs) {
  return SlabPool::create_shared(fresh_path(), kSlab, slabs, cuda::locking(device));
}

inline CopyLane lane_of(const SharedDevice& device, std::size_t chunk = kChunk,
                        std::size_t burst = cuda::StreamMover::kBurstBytes) {
  return CopyLane("cuda", chunk, std::make_unique<cuda::StreamMover>(device, burst));
}

// Host memory that copies do not wait for.
class Locked {
 public:
  Locked(const SharedDevice& device, std::size_t size, std::byte value = std::byte{0})
      : bytes(size, value), pages_(device, bytes.data(), size) {}

  std::vector<std::byte> bytes;

 private:
  cuda::LockedPages pages_;
};

class Cuda : public testing::Test {
 protected:
  void TearDown() override {
    fake_reset();
    const FakeLive live = fake_live();
    EXPECT_EQ(live.contexts + live.handles + live.mappings + live.reservations, 0) << "the driver still has memory";
    EXPECT_EQ(live.locked + live.streams + live.events, 0) << "the driver still holds something";
    EXPECT_EQ(cuda::AddressBook::of_process()->size(), 0u);
  }
};

}  // namespace cuda_rig
