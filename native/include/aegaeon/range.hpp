// A permanent range of virtual addresses over slabs. Nothing is ever re-pointed: tensors keep their addresses while
// the memory behind them comes and goes. The addresses stay reserved until the last owner of the Range is gone, so a
// view that outlives close() faults instead of reading somebody else's memory.
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

  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(base_.get()); }
  int device() const { return pool_->store().device(); }
  std::size_t slabs() const { return at_.size(); }
  std::size_t bytes() const { return at_.size() * slab_bytes_; }
  std::size_t mapped() const;
  std::vector<Slab> layout() const;  // the slab at each position, kNoSlab where nothing is mapped

  // Positions whose slab is kNoSlab are left as they are. All or nothing.
  void map(std::size_t position, std::span<const Slab> slabs);
  std::vector<Slab> unmap(std::size_t position, std::size_t count);
  std::byte* at(std::size_t offset, std::size_t bytes) const;
  void close();

 private:
  void require_free(std::size_t position, std::span<const Slab> slabs) const;
  void map_runs(std::size_t position, std::span<const Slab> slabs);
  void clear(std::size_t position, std::size_t count);

  const std::shared_ptr<SlabPool> pool_;
  const std::size_t slab_bytes_;
  const std::shared_ptr<std::byte> base_;
  mutable std::mutex mutex_;
  std::vector<Slab> at_;
  std::size_t mapped_ = 0;
  bool closed_ = false;
};

}  // namespace aegaeon
