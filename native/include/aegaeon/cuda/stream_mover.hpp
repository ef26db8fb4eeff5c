// A lane's bytes by a stream of the GPU: its copy engines, or a kernel where the pieces are small.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aegaeon/cuda/device.hpp"
#include "aegaeon/mover.hpp"

namespace aegaeon::cuda {

class StreamMover final : public Mover {
 public:
  // Below this size a copy engine takes longer to start a piece than a link of 25 to 50 GB/s to move it.
  static constexpr std::size_t kKernelBelow = std::size_t{128} << 10;

  // `priority`: 0 is the least urgent, further down to -5 is more so, as far as the GPU knows so many levels.
  StreamMover(SharedDevice device, int priority, std::size_t kernel_below);
  ~StreamMover() override;

  void copy(std::byte* dst, const std::byte* src, std::size_t bytes, std::size_t whole) override;
  void copy_blocks(std::byte* dst, const std::byte* src, std::size_t block_bytes,
                   std::span<const std::int32_t> dst_blocks, std::span<const std::int32_t> src_blocks,
                   std::size_t whole) override;
  void finish() override;
  bool any_thread() const override { return false; }  // the device's context is the lane thread's

 private:
  static constexpr std::size_t kInFlight = 4;  // chunks: enough to hide the lane, few enough to cancel soon

  void add(std::byte* dst, std::byte* src, std::size_t bytes);
  void issue();
  void forget();
  bool for_kernel() const;
  void by_kernel();
  void by_engines();
  void shut() noexcept;

  const SharedDevice device_;
  const std::size_t kernel_below_;
  Stream stream_ = nullptr;
  std::array<CuEvent, kInFlight> events_{};
  std::size_t chunks_ = 0;
  bool reachable_ = true;             // by a kernel: every piece is known to the book
  std::vector<DevicePtr> to_, from_;  // of the chunk that is being put together
  std::vector<std::size_t> bytes_;
};

}  // namespace aegaeon::cuda
