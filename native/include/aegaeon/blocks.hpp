// Blocks of one KV shape over slabs mapped on demand. A block is free, held (it has references) or cached
// (unreferenced, its content is kept). A position of the range is mapped exactly while a held or cached block touches
// it. Cached blocks take no capacity: `free` and `held_slabs` are what they would be without them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "aegaeon/bitmap.hpp"
#include "aegaeon/range.hpp"
#include "aegaeon/slabs.hpp"

namespace aegaeon {

using Block = std::int32_t;

class BlockPool {
 public:
  BlockPool(std::shared_ptr<SlabPool> pool, std::size_t block_bytes, std::size_t max_slabs);
  ~BlockPool();

  std::size_t ranks() const { return range_.ranks(); }
  std::uintptr_t address(std::size_t rank = 0) const { return range_.address(rank); }
  int device(std::size_t rank = 0) const { return range_.device(rank); }
  std::size_t block_bytes() const { return block_bytes_; }
  std::size_t capacity() const { return capacity_; }
  std::size_t free() const;        // in slabs that held blocks touch, cached ones among them
  std::size_t used() const;        // held
  std::size_t references() const;  // of all held blocks together
  std::size_t kept() const;        // whose content is kept, held or cached
  std::size_t mapped_slabs() const { return range_.mapped(); }
  std::size_t held_slabs() const;                     // of these, touched by held blocks
  std::vector<Slab> slabs() const;                    // by position, up to the last one mapped
  std::vector<Block> cached(bool ready) const;        // `ready`: only those that `free` counts
  std::vector<std::size_t> cached_positions() const;  // touched by cached blocks alone
  std::size_t slabs_for(std::size_t count) const;

  void allocate(std::span<Block> out, std::size_t grant);
  void retain(std::span<const Block> blocks, std::size_t grant);
  std::size_t release(std::span<const Block> blocks);
  void keep(std::span<const Block> blocks);
  std::size_t forget(std::span<const Block> blocks);
  void check() const;
  void close();

 private:
  // Where a block stands. Ready: every slab of it is touched by held blocks. Idle: mapped, but for cached ones alone.
  enum Lot : std::uint8_t { kReady, kIdle, kDormant, kCachedReady, kCachedIdle, kHeld, kLots };

  std::size_t first_position(std::size_t block) const { return block * block_bytes_ / slab_bytes_; }
  std::size_t last_position(std::size_t block) const { return ((block + 1) * block_bytes_ - 1) / slab_bytes_; }
  std::size_t first_block(std::size_t position) const { return position * slab_bytes_ / block_bytes_; }
  std::size_t last_block(std::size_t position) const;

  const Bitmap& lot(Lot lot) const { return lots_[lot]; }
  Lot lot_of(std::size_t block) const;
  void place(std::size_t block);
  void turn(std::size_t block, std::vector<std::uint32_t>& counts, int by);
  std::size_t return_empty_slabs();

  void require_open() const;
  std::size_t require(Block block, bool cached, const char* call) const;
  std::vector<std::size_t> choose(std::size_t count) const;
  std::vector<std::size_t> cold(std::span<const std::size_t> blocks) const;
  void afford(const std::vector<std::size_t>& positions, std::size_t grant, const std::string& what) const;
  void map(const std::vector<std::size_t>& positions);
  void hold(std::size_t block);
  void check_blocks() const;
  void check_positions() const;

  const std::shared_ptr<SlabPool> pool_;
  const std::size_t block_bytes_;
  const std::size_t slab_bytes_;
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  Range range_;
  std::vector<std::uint32_t> references_;  // by block
  std::vector<bool> kept_;                 // by block: free ones never are
  std::vector<std::uint8_t> placed_;       // by block: its lot
  std::vector<std::uint32_t> touching_;    // by position: held blocks that touch it
  std::vector<std::uint32_t> caching_;     // by position: cached blocks that touch it
  std::vector<bool> mapped_;               // by position
  std::vector<Bitmap> lots_;
  std::vector<std::size_t> turned_;  // positions whose counts left or reached 0, during one call
  std::size_t references_sum_ = 0;
  std::size_t kept_sum_ = 0;
  std::size_t held_positions_ = 0;
  bool closed_ = false;
};

}  // namespace aegaeon
