#include "aegaeon/cuda/stream_mover.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "aegaeon/errors.hpp"

namespace aegaeon::cuda {

StreamMover::StreamMover(SharedDevice device, std::size_t burst_bytes)
    : device_(std::move(device)), burst_bytes_(burst_bytes) {
  const Active active(*device_);
  const Driver& driver = device_->driver();
  driver.cuStreamCreate(&stream_, kStreamNonBlocking);
  try {
    for (CuEvent& event : events_) driver.cuEventCreate(&event, kEventBlockingNoTiming);
  } catch (...) {
    shut();
    throw;
  }
}

StreamMover::~StreamMover() {
  try {
    const Active active(*device_);
    shut();
  } catch (const NativeError&) {
    // No context any more: its streams went with it.
  }
}

void StreamMover::shut() noexcept {
  const Driver& driver = device_->driver();
  driver.cuStreamSynchronize.quiet(stream_);  // bytes under way must not land after their memory is given back
  for (CuEvent event : events_) {
    if (event != nullptr) driver.cuEventDestroy_v2.quiet(event);
  }
  driver.cuStreamDestroy_v2.quiet(stream_);
}

void StreamMover::copy(std::byte* dst, const std::byte* src, std::size_t bytes, std::size_t) {
  add(dst, const_cast<std::byte*>(src), bytes);
  issue();
}

void StreamMover::copy_blocks(std::byte* dst, const std::byte* src, std::size_t block_bytes,
                              std::span<const std::int32_t> dst_blocks, std::span<const std::int32_t> src_blocks,
                              std::size_t) {
  auto* source = const_cast<std::byte*>(src);
  for (std::size_t i = 0; i < dst_blocks.size(); ++i) {
    const auto to = static_cast<std::size_t>(dst_blocks[i]);
    const auto from = static_cast<std::size_t>(src_blocks[i]);
    add(dst + to * block_bytes, source + from * block_bytes, block_bytes);
  }
  issue();
}

// Cuts where either side does not go on in a row, and joins what does.
void StreamMover::add(std::byte* dst, std::byte* src, std::size_t bytes) {
  while (bytes > 0) {
    const auto target = device_->book().find(dst, bytes);
    const auto source = device_->book().find(src, target.bytes);
    const auto to = reinterpret_cast<DevicePtr>(target.target);
    const auto from = reinterpret_cast<DevicePtr>(source.target);
    const bool known = target.known && source.known;
    const bool border = known != std::exchange(known_, known) || target.border || source.border;
    reachable_ = reachable_ && known;
    if (!border && !to_.empty() && to_.back() + bytes_.back() == to && from_.back() + bytes_.back() == from) {
      bytes_.back() += source.bytes;
    } else {
      to_.push_back(to);
      from_.push_back(from);
      bytes_.push_back(source.bytes);
    }
    dst += source.bytes;
    src += source.bytes;
    bytes -= source.bytes;
  }
}

void StreamMover::issue() {
  const Active active(*device_);
  const Driver& driver = device_->driver();
  const CuEvent event = events_[chunks_ % kInFlight];
  if (chunks_ >= kInFlight) driver.cuEventSynchronize(event);
  let_others_in();
  try {
    start();
    driver.cuEventRecord(event, stream_);
  } catch (...) {
    forget();
    driver.cuStreamSynchronize.quiet(stream_);  // the caller that sees the failure frees the memory
    throw;
  }
  forget();
  ++chunks_;
}

void StreamMover::let_others_in() {
  const std::size_t bytes = std::accumulate(bytes_.begin(), bytes_.end(), std::size_t{0});
  if (burst_ + bytes > burst_bytes_) finish();
  burst_ += bytes;
}

void StreamMover::forget() {
  to_.clear();
  from_.clear();
  bytes_.clear();
  reachable_ = true;
}

void StreamMover::start() {
  const Driver& driver = device_->driver();
  if (driver.cuMemcpyBatchAsync_v2 && to_.size() > 1 && reachable_) {
    CopyAttributes attributes{kSourceOrderStream, {}, {}, 0};
    std::size_t first = 0;
    driver.cuMemcpyBatchAsync_v2(to_.data(), from_.data(), bytes_.data(), to_.size(), &attributes, &first, 1, stream_);
    return;
  }
  for (std::size_t i = 0; i < to_.size(); ++i) driver.cuMemcpyAsync(to_[i], from_[i], bytes_[i], stream_);
}

void StreamMover::finish() {
  if (chunks_ == 0) return;
  const Active active(*device_);
  device_->driver().cuEventSynchronize(events_[(chunks_ - 1) % kInFlight]);
  burst_ = 0;
}

}  // namespace aegaeon::cuda
