// A lane's bytes by a stream of the GPU: its copy engines.
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
  explicit StreamMover(SharedDevice device);
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
  void start();
  void shut() noexcept;

  const SharedDevice device_;
  Stream stream_ = nullptr;
  std::array<CuEvent, kInFlight> events_{};
  std::size_t chunks_ = 0;
  bool reachable_ = true;             // by the GPU itself: every piece is known to the book
  std::vector<DevicePtr> to_, from_;  // of the chunk that is being put together
  std::vector<std::size_t> bytes_;
};

}  // namespace aegaeon::cuda
