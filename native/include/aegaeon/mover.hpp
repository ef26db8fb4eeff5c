// The seam between a lane's order and what moves its bytes: memcpy on the lane's own thread (here), or a GPU's copy
// engines (cuda/mover.hpp), which work on while the lane issues more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace aegaeon {

// Called by the lane's thread alone, a chunk at a time: what is not issued yet can be cancelled.
class Mover {
 public:
  virtual ~Mover() = default;
  // `whole`: bytes of the request that this chunk is part of. May return before the bytes have arrived.
  virtual void copy(std::byte* dst, const std::byte* src, std::size_t bytes, std::size_t whole) = 0;
  virtual void copy_blocks(std::byte* dst, const std::byte* src, std::size_t block_bytes,
                           std::span<const std::int32_t> dst_blocks, std::span<const std::int32_t> src_blocks,
                           std::size_t whole) = 0;
  // Waits until all bytes have arrived. Throws what a copy failed with.
  virtual void finish() = 0;
  // Whether threads other than the lane's may take turns in using it.
  virtual bool any_thread() const = 0;
};

std::unique_ptr<Mover> memory_mover();

}  // namespace aegaeon
