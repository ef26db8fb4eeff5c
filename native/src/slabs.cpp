#include "aegaeon/slabs.hpp"

#include <limits>
#include <utility>

#include "aegaeon/errors.hpp"
#include "aegaeon/file_store.hpp"

namespace aegaeon {

namespace {

constexpr std::uint64_t kMagic = 0x3162616c73656761;  // "ageslab1", little endian

void validate(std::size_t slab_bytes, std::size_t slabs) {
  if (slab_bytes == 0 || slab_bytes % page_bytes() != 0) {
    throw NativeError("slab size " + std::to_string(slab_bytes) + " is not a positive multiple of the page size " +
                      std::to_string(page_bytes()));
  }
  constexpr std::size_t kMostSlabs = std::numeric_limits<Slab>::max();
  if (slabs == 0 || slabs > kMostSlabs || slabs > (std::size_t{1} << 46) / slab_bytes) {
    throw NativeError("a pool of " + std::to_string(slabs) + " slabs: at least one, and at most 64 TiB in all");
  }
}

}  // namespace

SlabPool::SlabPool(Stores stores, std::size_t slab_bytes, std::size_t slabs, bool owner)
    : slab_bytes_(slab_bytes), total_(slabs), owner_(owner), stores_(std::move(stores)), free_(slabs), kept_(slabs) {
  if (!owner_) return;
  for (std::size_t slab = 0; slab < slabs; ++slab) free_.insert(slab);
}

std::shared_ptr<SlabPool> SlabPool::create(std::shared_ptr<SlabStore> store, std::size_t slab_bytes,
                                           std::size_t slabs) {
  validate(slab_bytes, slabs);
  return std::shared_ptr<SlabPool>(new SlabPool({std::move(store)}, slab_bytes, slabs, true));
}

std::shared_ptr<SlabPool> SlabPool::gang(const std::vector<std::shared_ptr<SlabPool>>& pools) {
  if (pools.empty()) throw NativeError("gang: at least one pool is needed");
  const SlabPool& first = *pools.front();
  Stores stores;
  for (const auto& pool : pools) {
    const bool alike = pool->slab_bytes_ == first.slab_bytes_ && pool->total_ == first.total_;
    const bool unused = !pool->owner_ || pool->free() == pool->total_;
    if (!alike || !unused || pool->owner_ != first.owner_) {
      throw NativeError("gang: a pool of " + std::to_string(pool->total_) + " slabs of " +
                        std::to_string(pool->slab_bytes_) + " bytes beside one of " + std::to_string(first.total_) +
                        " of " + std::to_string(first.slab_bytes_) + ": they must be alike, and unused");
    }
    stores.insert(stores.end(), pool->stores_.begin(), pool->stores_.end());
  }
  return std::shared_ptr<SlabPool>(new SlabPool(std::move(stores), first.slab_bytes_, first.total_, first.owner_));
}

std::shared_ptr<SlabPool> SlabPool::create_private(const std::string& name, std::size_t slab_bytes, std::size_t slabs) {
  validate(slab_bytes, slabs);
  return create(std::make_shared<FileStore>(MemoryFile::anonymous(name, slab_bytes * slabs), slab_bytes), slab_bytes,
                slabs);
}

std::shared_ptr<SlabPool> SlabPool::create_shared(const std::string& path, std::size_t slab_bytes, std::size_t slabs,
                                                  const StoreWrapper& wrapper) {
  validate(slab_bytes, slabs);
  std::shared_ptr<SlabStore> store =
      std::make_shared<FileStore>(MemoryFile::create(path, {kMagic, slab_bytes, slabs}), slab_bytes);
  if (wrapper) store = wrapper(std::move(store), slab_bytes, slabs, false);
  return create(std::move(store), slab_bytes, slabs);
}

std::shared_ptr<SlabPool> SlabPool::attach(const std::string& path, const StoreWrapper& wrapper, bool writable) {
  std::shared_ptr<MemoryFile> file = MemoryFile::attach(path, kMagic, writable);
  const Trailer trailer = file->trailer();
  validate(trailer.unit_bytes, trailer.units);
  std::shared_ptr<SlabStore> store = std::make_shared<FileStore>(std::move(file), trailer.unit_bytes);
  if (wrapper) store = wrapper(std::move(store), trailer.unit_bytes, trailer.units, true);
  return std::shared_ptr<SlabPool>(new SlabPool({std::move(store)}, trailer.unit_bytes, trailer.units, false));
}

std::size_t SlabPool::free() const {
  const std::scoped_lock lock(mutex_);
  return free_.count() + kept_.count();
}

std::size_t SlabPool::kept() const {
  const std::scoped_lock lock(mutex_);
  return kept_.count();
}

std::vector<Slab> SlabPool::take(std::size_t count) {
  const std::scoped_lock lock(mutex_);
  if (closed_) throw NativeError("take: this slab pool is closed");
  if (!owner_) throw NativeError("take: an attached pool is for reading; its creator alone hands out slabs");
  const std::size_t free = free_.count() + kept_.count();
  if (count > free) {
    throw OutOfSlabs("take: " + std::to_string(count) + " slabs asked for, " + std::to_string(free) + " of " +
                     std::to_string(total_) + " free");
  }
  while (free_.count() < count) give_up_kept();
  std::vector<Slab> slabs;
  slabs.reserve(count);
  while (slabs.size() < count) {
    const std::size_t slab = free_.lowest();
    free_.erase(slab);
    slabs.push_back(static_cast<Slab>(slab));
  }
  taken_ += count;
  return slabs;
}

// The last slab of the oldest ticket: what remains of it stays a beginning.
void SlabPool::give_up_kept() {
  const auto oldest = held_.begin();
  const auto slab = static_cast<std::size_t>(oldest->second.back());
  oldest->second.pop_back();
  if (oldest->second.empty()) held_.erase(oldest);
  kept_.erase(slab);
  free_.insert(slab);
}

void SlabPool::give(std::span<const Slab> slabs) {
  const std::scoped_lock lock(mutex_);
  put(slabs, free_, "give");
}

std::uint64_t SlabPool::keep(std::span<const Slab> slabs) {
  const std::scoped_lock lock(mutex_);
  put(slabs, kept_, "keep");
  if (slabs.empty()) return 0;
  held_.emplace(++ticket_, std::vector<Slab>(slabs.begin(), slabs.end()));
  return ticket_;
}

std::vector<Slab> SlabPool::reclaim(std::uint64_t ticket) {
  const std::scoped_lock lock(mutex_);
  auto held = held_.extract(ticket);
  if (held.empty()) return {};
  for (const Slab slab : held.mapped()) kept_.erase(static_cast<std::size_t>(slab));
  taken_ += held.mapped().size();
  return std::move(held.mapped());
}

// Taken slabs into one of the sets of free ones; all or none.
void SlabPool::put(std::span<const Slab> slabs, Bitmap& into, const char* call) {
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    const auto slab = static_cast<std::size_t>(slabs[i]);
    const bool known = owner_ && slabs[i] >= 0 && slab < total_;
    if (known && !free_.contains(slab) && !kept_.contains(slab)) {
      into.insert(slab);
      continue;
    }
    for (const Slab given : slabs.first(i)) into.erase(static_cast<std::size_t>(given));
    throw NativeError(std::string(call) + ": slab " + std::to_string(slabs[i]) +
                      (known ? " is free already" : " is not of this pool"));
  }
  taken_ -= slabs.size();
}

void SlabPool::check() const {
  const std::scoped_lock lock(mutex_);
  const std::size_t free = free_.recount();
  const std::size_t kept = kept_.recount();
  std::size_t held = 0;
  for (const auto& [ticket, slabs] : held_) held += slabs.size();
  const std::size_t expected = owner_ ? total_ : 0;
  const bool counted = free == free_.count() && kept == kept_.count() && kept == held;
  if (counted && free + kept + taken_ == expected) return;
  throw NativeError("conservation: " + std::to_string(free) + " slabs marked free, " + std::to_string(free_.count()) +
                    " counted free, " + std::to_string(kept) + " kept, " + std::to_string(held) + " by ticket, " +
                    std::to_string(taken_) + " taken, of " + std::to_string(expected));
}

void SlabPool::close() {
  const std::scoped_lock lock(mutex_);
  closed_ = true;
  for (const auto& store : stores_) store->close();
}

// Where `count` slabs from `first` on begin in each store.
std::size_t SlabPool::index_of(Slab first, std::size_t count) const {
  const auto begin = static_cast<std::size_t>(first);
  if (first < 0 || begin > total_ || count > total_ - begin) {
    throw NativeError("slab " + std::to_string(first) + " is not of this pool of " + std::to_string(total_));
  }
  return begin;
}

void SlabPool::prefault(Slab slab) const {
  const std::size_t begin = index_of(slab, 1);
  for (const auto& store : stores_) store->prefault(begin, 1);
}

// All ranks or none.
void SlabPool::map_at(std::span<const std::shared_ptr<std::byte>> bases, std::size_t offset, Slab first,
                      std::size_t count) const {
  const std::size_t begin = index_of(first, count);
  std::size_t rank = 0;
  try {
    for (; rank < stores_.size(); ++rank) stores_[rank]->map(bases[rank].get() + offset, begin, count);
  } catch (...) {
    while (rank-- > 0) stores_[rank]->unmap(bases[rank].get() + offset, count);
    throw;
  }
}

}  // namespace aegaeon
