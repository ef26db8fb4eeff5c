// Blocks of one KV shape over slabs that come and go. A position of the range is mapped exactly while a used block
// touches it, so memory moves between shapes as soon as it is empty. Lowest ids first: the tail empties by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "aegaeon/bitmap.hpp"
#include "aegaeon/events.hpp"
#include "aegaeon/range.hpp"
#include "aegaeon/slabs.hpp"

namespace aegaeon {

using Block = std::int32_t;

class BlockPool {
 public:
  BlockPool(std::shared_ptr<SlabPool> pool, std::size_t block_bytes, std::size_t max_slabs);
  ~BlockPool();

  std::uintptr_t address() const { return range_.address(); }
  std::size_t block_bytes() const { return block_bytes_; }
  std::size_t capacity() const { return capacity_; }
  std::size_t free() const;
  std::size_t used() const;
  std::size_t mapped_slabs() const { return range_.mapped(); }
  std::vector<Slab> slabs() const;  // by position, up to the last one mapped
  std::size_t slabs_for(std::size_t count) const;

  void allocate(std::span<Block> out, std::size_t grant);
  void retain(std::span<const Block> blocks);
  std::size_t release(std::span<const Block> blocks);
  void defer(std::span<const Block> blocks, EventPtr event);
  std::size_t reclaim();
  void check() const;
  void close();

 private:
  struct Moving {
    std::vector<Block> blocks;
    EventPtr event;
  };

  std::size_t first_position(std::size_t block) const { return block * block_bytes_ / slab_bytes_; }
  std::size_t last_position(std::size_t block) const { return ((block + 1) * block_bytes_ - 1) / slab_bytes_; }
  std::size_t first_block(std::size_t position) const { return position * slab_bytes_ / block_bytes_; }
  std::size_t last_block(std::size_t position) const;
  bool is_mapped(std::size_t block) const;

  void require_open() const;
  void require_held(Block block, const char* call) const;
  std::vector<std::size_t> positions_for(std::size_t count) const;
  void grow(const std::vector<std::size_t>& positions);
  void awaken(std::size_t position);
  std::size_t drop(std::span<const Block> blocks);
  void free_block(std::size_t block);
  std::size_t shrink();
  void check_counts() const;
  void check_positions() const;

  const std::shared_ptr<SlabPool> pool_;
  const std::size_t block_bytes_;
  const std::size_t slab_bytes_;
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  Range range_;
  std::vector<std::uint32_t> references_;  // by block
  std::vector<std::uint32_t> moving_;      // by block: references that wait on the move list
  std::vector<std::uint32_t> touching_;    // by position: used blocks that touch it
  std::vector<bool> mapped_;               // by position
  Bitmap available_;                       // free, and all of it mapped
  Bitmap dormant_;                         // free, and some of it not mapped
  std::vector<std::size_t> emptied_;       // positions, during one release
  std::deque<Moving> moves_;
  std::size_t used_ = 0;
  bool closed_ = false;
};

}  // namespace aegaeon
