// One tier's physical memory, cut once into slabs of one size. The only owner of the state of slabs. An
// engine of several devices has one tier all the same: a slab is then one of each device, its ranks, held and mapped
// together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "aegaeon/bitmap.hpp"
#include "aegaeon/store.hpp"

namespace aegaeon {

using Slab = std::int32_t;
inline constexpr Slab kNoSlab = -1;

// What a pool of shared host memory is to be wrapped in, so that a device reaches its pages; see cuda::locking.
using StoreWrapper = std::function<std::shared_ptr<SlabStore>(std::shared_ptr<SlabStore> host, std::size_t slab_bytes,
                                                              std::size_t slabs, bool read_only)>;

class SlabPool {
 public:
  static std::shared_ptr<SlabPool> create_private(const std::string& name, std::size_t slab_bytes, std::size_t slabs);
  static std::shared_ptr<SlabPool> create_shared(const std::string& path, std::size_t slab_bytes, std::size_t slabs,
                                                 const StoreWrapper& wrapper = {});
  // `writable`: mapped so that its pages can be locked by a device that has no locks for reading alone.
  static std::shared_ptr<SlabPool> attach(const std::string& path, const StoreWrapper& wrapper = {},
                                          bool writable = false);
  static std::shared_ptr<SlabPool> create(std::shared_ptr<SlabStore> store, std::size_t slab_bytes, std::size_t slabs);
  // Slab i of the pool is slab i of each of these, which are alike, unused, and owned by this pool from now on.
  static std::shared_ptr<SlabPool> gang(const std::vector<std::shared_ptr<SlabPool>>& pools);

  std::size_t slab_bytes() const { return slab_bytes_; }
  std::size_t total() const { return total_; }
  std::size_t free() const;
  std::size_t kept() const;  // of the free ones, those whose content is kept
  std::size_t ranks() const { return stores_.size(); }
  std::uintptr_t address(std::size_t rank = 0) const { return reinterpret_cast<std::uintptr_t>(store(rank).linear()); }
  SlabStore& store(std::size_t rank = 0) const { return *stores_.at(rank); }

  std::vector<Slab> take(std::size_t count);
  void give(std::span<const Slab> slabs);
  // Free, but taken last, oldest first: their content is kept until then. `reclaim` takes back those that
  // were not taken meanwhile, the first ones of `slabs`, in order; none for a used ticket.
  std::uint64_t keep(std::span<const Slab> slabs);
  std::vector<Slab> reclaim(std::uint64_t ticket);
  // Memory behind a slab, free or taken, from now on instead of from its first use; what is in it stays.
  void prefault(Slab slab) const;
  void check() const;
  void close();

  // Put `count` slabs from `first` on at `offset` behind the base of each rank. For Range, which owns those addresses.
  void map_at(std::span<const std::shared_ptr<std::byte>> bases, std::size_t offset, Slab first,
              std::size_t count) const;

 private:
  using Stores = std::vector<std::shared_ptr<SlabStore>>;

  SlabPool(Stores stores, std::size_t slab_bytes, std::size_t slabs, bool owner);

  std::size_t index_of(Slab first, std::size_t count) const;
  void give_up_kept();
  void put(std::span<const Slab> slabs, Bitmap& into, const char* call);

  const std::size_t slab_bytes_;
  const std::size_t total_;
  const bool owner_;     // an attached pool hands out nothing
  const Stores stores_;  // by rank
  mutable std::mutex mutex_;
  Bitmap free_;                                      // and nothing of interest in them
  Bitmap kept_;                                      // free as well
  std::map<std::uint64_t, std::vector<Slab>> held_;  // the kept ones by ticket; tickets rise
  std::uint64_t ticket_ = 0;
  std::size_t taken_ = 0;
  bool closed_ = false;
};

}  // namespace aegaeon
