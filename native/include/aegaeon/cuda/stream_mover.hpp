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
  // Bytes after which the stream runs empty. A copy engine serves a stream as long as that has copies queued: beside a
  // load of 16 GB the inputs of no other model's step, a few hundred bytes, came in before its end (seen on an H200).
  static constexpr std::size_t kBurstBytes = std::size_t{64} << 20;

  explicit StreamMover(SharedDevice device, std::size_t burst_bytes = kBurstBytes);
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
  void let_others_in();
  void shut() noexcept;

  const SharedDevice device_;
  const std::size_t burst_bytes_;
  Stream stream_ = nullptr;
  std::array<CuEvent, kInFlight> events_{};
  std::size_t chunks_ = 0;
  std::size_t burst_ = 0;             // bytes since the stream was empty
  bool reachable_ = true;             // by the GPU itself: every piece is known to the book
  bool known_ = true;                 // the last piece is: a copy must not go on from locked to other memory
  std::vector<DevicePtr> to_, from_;  // of the chunk that is being put together
  std::vector<std::size_t> bytes_;
};

}  // namespace aegaeon::cuda
