#include "aegaeon/range.hpp"

#include <algorithm>
#include <utility>

#include "aegaeon/errors.hpp"

namespace aegaeon {

namespace {

std::vector<std::shared_ptr<std::byte>> reserve(const SlabPool& pool, std::size_t slabs) {
  if (slabs == 0 || slabs > (std::size_t{1} << 46) / pool.slab_bytes()) {
    throw NativeError("a range of " + std::to_string(slabs) + " slabs: at least one, and at most 64 TiB in all");
  }
  std::vector<std::shared_ptr<std::byte>> bases;
  bases.reserve(pool.ranks());
  for (std::size_t rank = 0; rank < pool.ranks(); ++rank) {
    bases.push_back(pool.store(rank).reserve(pool.slab_bytes() * slabs));
  }
  return bases;
}

}  // namespace

Range::Range(std::shared_ptr<SlabPool> pool, std::size_t slabs)
    : pool_(std::move(pool)), slab_bytes_(pool_->slab_bytes()), bases_(reserve(*pool_, slabs)), at_(slabs, kNoSlab) {}

Range::~Range() {
  try {
    close();
  } catch (const NativeError&) {
    // No caller is left to report to; the addresses end with the process.
  }
}

std::size_t Range::mapped() const {
  const std::scoped_lock lock(mutex_);
  return mapped_;
}

std::vector<Slab> Range::layout() const {
  const std::scoped_lock lock(mutex_);
  return at_;
}

std::byte* Range::at(std::size_t offset, std::size_t nbytes, std::size_t rank) const {
  if (offset > bytes() || nbytes > bytes() - offset) {
    throw NativeError("view of " + std::to_string(nbytes) + " bytes at " + std::to_string(offset) + ": the range has " +
                      std::to_string(bytes()));
  }
  return bases_.at(rank).get() + offset;
}

void Range::require_free(std::size_t position, std::span<const Slab> slabs) const {
  if (closed_) throw NativeError("map: this range is closed");
  if (position > at_.size() || slabs.size() > at_.size() - position) {
    throw NativeError("map: positions " + std::to_string(position) + " to " + std::to_string(position + slabs.size()) +
                      " of a range of " + std::to_string(at_.size()) + " slabs");
  }
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    if (slabs[i] != kNoSlab && at_[position + i] != kNoSlab) {
      throw NativeError("map: position " + std::to_string(position + i) + " holds slab " +
                        std::to_string(at_[position + i]) + " already; unmap it first");
    }
  }
}

void Range::map(std::size_t position, std::span<const Slab> slabs) {
  const std::scoped_lock lock(mutex_);
  require_free(position, slabs);
  map_runs(position, slabs);
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    if (slabs[i] == kNoSlab) continue;
    at_[position + i] = slabs[i];
    ++mapped_;
  }
}

// One system call for slabs that follow each other in the pool; what was mapped is undone when a later call fails.
void Range::map_runs(std::size_t position, std::span<const Slab> slabs) {
  std::size_t begin = 0;
  try {
    while (begin < slabs.size()) {
      std::size_t end = begin + 1;
      if (slabs[begin] != kNoSlab) {
        while (end < slabs.size() && slabs[end] == slabs[end - 1] + 1) ++end;
        pool_->map_at(bases_, (position + begin) * slab_bytes_, slabs[begin], end - begin);
      }
      begin = end;
    }
  } catch (...) {
    for (std::size_t i = 0; i < begin; ++i) {
      if (slabs[i] != kNoSlab) clear(position + i, 1);
    }
    throw;
  }
}

std::vector<Slab> Range::unmap(std::size_t position, std::size_t count) {
  const std::scoped_lock lock(mutex_);
  if (position > at_.size() || count > at_.size() - position) {
    throw NativeError("unmap: positions " + std::to_string(position) + " to " + std::to_string(position + count) +
                      " of a range of " + std::to_string(at_.size()) + " slabs");
  }
  const auto begin = at_.begin() + static_cast<std::ptrdiff_t>(position);
  std::vector<Slab> slabs(begin, begin + static_cast<std::ptrdiff_t>(count));
  const auto hole = std::find(slabs.begin(), slabs.end(), kNoSlab);
  if (hole != slabs.end()) {
    throw NativeError("unmap: nothing is mapped at position " +
                      std::to_string(position + static_cast<std::size_t>(hole - slabs.begin())));
  }
  if (count != 0) clear(position, count);
  std::fill_n(begin, count, kNoSlab);
  mapped_ -= count;
  return slabs;
}

void Range::clear(std::size_t position, std::size_t count) {
  for (std::size_t rank = 0; rank < bases_.size(); ++rank) {
    pool_->store(rank).unmap(bases_[rank].get() + position * slab_bytes_, count);
  }
}

void Range::close() {
  const std::scoped_lock lock(mutex_);
  if (closed_) return;
  for (std::size_t position = 0; mapped_ > 0; ++position) {
    if (at_[position] == kNoSlab) continue;
    std::size_t end = position + 1;
    while (end < at_.size() && at_[end] != kNoSlab) ++end;
    clear(position, end - position);
    std::fill(at_.begin() + static_cast<std::ptrdiff_t>(position), at_.begin() + static_cast<std::ptrdiff_t>(end),
              kNoSlab);
    mapped_ -= end - position;
    position = end - 1;
  }
  closed_ = true;
}

}  // namespace aegaeon
