// A permanent range of virtual addresses over slabs. Nothing is ever re-pointed: tensors keep their addresses while
// the memory behind them comes and goes. The addresses stay reserved until the last owner of the Range is gone, so a
// view that outlives close() faults instead of reading another owner's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "aegaeon/slabs.hpp"

namespace aegaeon {

class Range {
 public:
  Range(std::shared_ptr<SlabPool> pool, std::size_t slabs);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  std::size_t ranks() const { return bases_.size(); }  // each has addresses of its own, mapped alike
  std::uintptr_t address(std::size_t rank = 0) const { return reinterpret_cast<std::uintptr_t>(bases_.at(rank).get()); }
  int device(std::size_t rank = 0) const { return pool_->store(rank).device(); }
  std::size_t slabs() const { return at_.size(); }
  std::size_t bytes() const { return at_.size() * slab_bytes_; }
  std::size_t mapped() const;
  std::vector<Slab> layout() const;  // the slab at each position, kNoSlab where nothing is mapped

  // Positions whose slab is kNoSlab are left as they are. All or nothing.
  void map(std::size_t position, std::span<const Slab> slabs);
  std::vector<Slab> unmap(std::size_t position, std::size_t count);
  std::byte* at(std::size_t offset, std::size_t bytes, std::size_t rank = 0) const;
  void close();

 private:
  void require_free(std::size_t position, std::span<const Slab> slabs) const;
  void map_runs(std::size_t position, std::span<const Slab> slabs);
  void clear(std::size_t position, std::size_t count);

  const std::shared_ptr<SlabPool> pool_;
  const std::size_t slab_bytes_;
  const std::vector<std::shared_ptr<std::byte>> bases_;  // by rank
  mutable std::mutex mutex_;
  std::vector<Slab> at_;
  std::size_t mapped_ = 0;
  bool closed_ = false;
};

}  // namespace aegaeon
