#include "aegaeon/blocks.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "aegaeon/errors.hpp"

namespace aegaeon {

namespace {

std::size_t blocks_in(std::size_t slab_bytes, std::size_t block_bytes, std::size_t max_slabs) {
  const bool sane = block_bytes != 0 && max_slabs <= (std::size_t{1} << 46) / slab_bytes;
  const std::size_t capacity = sane ? slab_bytes * max_slabs / block_bytes : 0;
  if (capacity == 0 || capacity > static_cast<std::size_t>(std::numeric_limits<Block>::max())) {
    throw NativeError("blocks of " + std::to_string(block_bytes) + " bytes in " + std::to_string(max_slabs) +
                      " slabs of " + std::to_string(slab_bytes) + ": at least one and fewer than 2^31 must fit");
  }
  return capacity;
}

}  // namespace

BlockPool::BlockPool(std::shared_ptr<SlabPool> pool, std::size_t block_bytes, std::size_t max_slabs)
    : pool_(std::move(pool)),
      block_bytes_(block_bytes),
      slab_bytes_(pool_->slab_bytes()),
      capacity_(blocks_in(slab_bytes_, block_bytes, max_slabs)),
      range_(pool_, max_slabs),
      references_(capacity_, 0),
      kept_(capacity_, false),
      placed_(capacity_, kDormant),
      touching_(max_slabs, 0),
      caching_(max_slabs, 0),
      mapped_(max_slabs, false),
      lots_(kLots, Bitmap(capacity_)) {
  for (std::size_t block = 0; block < capacity_; ++block) lots_[kDormant].insert(block);
}

BlockPool::~BlockPool() {
  try {
    close();
  } catch (const NativeError&) {
    // The addresses go with the range; the slabs stay taken, which the pool's own check() shows.
  }
}

void BlockPool::require_open() const {
  if (closed_) throw NativeError("this block pool is closed");
}

std::size_t BlockPool::free() const {
  const std::scoped_lock lock(mutex_);
  return lot(kReady).count() + lot(kCachedReady).count();
}

std::size_t BlockPool::used() const {
  const std::scoped_lock lock(mutex_);
  return lot(kHeld).count();
}

std::size_t BlockPool::references() const {
  const std::scoped_lock lock(mutex_);
  return references_sum_;
}

std::size_t BlockPool::kept() const {
  const std::scoped_lock lock(mutex_);
  return kept_sum_;
}

std::size_t BlockPool::held_slabs() const {
  const std::scoped_lock lock(mutex_);
  return held_positions_;
}

std::vector<Slab> BlockPool::slabs() const {
  std::vector<Slab> layout = range_.layout();
  while (!layout.empty() && layout.back() == kNoSlab) layout.pop_back();
  return layout;
}

std::vector<Block> BlockPool::cached(bool ready) const {
  const std::scoped_lock lock(mutex_);
  std::vector<Block> blocks;
  for (const Lot which : {kCachedReady, kCachedIdle}) {
    if (ready && which != kCachedReady) continue;
    for (std::size_t b = lot(which).next(0); b != Bitmap::kNone; b = lot(which).next(b + 1)) {
      blocks.push_back(static_cast<Block>(b));
    }
  }
  return blocks;
}

std::vector<std::size_t> BlockPool::cached_positions() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::size_t> positions;
  for (std::size_t p = 0; p < caching_.size(); ++p) {
    if (caching_[p] > 0 && touching_[p] == 0) positions.push_back(p);
  }
  return positions;
}

std::size_t BlockPool::slabs_for(std::size_t count) const {
  const std::scoped_lock lock(mutex_);
  require_open();
  return cold(choose(count)).size();
}

// Free blocks, lowest ids first: those that take no slab, then the others, of which dormant ones wake in the order of
// their ids.
std::vector<std::size_t> BlockPool::choose(std::size_t count) const {
  const std::size_t free = lot(kReady).count() + lot(kIdle).count() + lot(kDormant).count();
  if (count > free) {
    throw OutOfSlabs(std::to_string(count) + " blocks asked for: the range has " + std::to_string(capacity_) + ", " +
                     std::to_string(lot(kHeld).count()) + " of them in use and " +
                     std::to_string(capacity_ - free - lot(kHeld).count()) + " cached");
  }
  std::vector<std::size_t> blocks;
  blocks.reserve(count);
  const auto take = [&](std::size_t block) { return blocks.push_back(block), block + 1; };
  for (std::size_t next = lot(kReady).lowest(); blocks.size() < count && next != Bitmap::kNone;) {
    next = lot(kReady).next(take(next));
  }
  std::size_t idle = lot(kIdle).lowest();
  std::size_t dormant = lot(kDormant).lowest();
  while (blocks.size() < count) {
    if (idle < dormant) {
      idle = lot(kIdle).next(take(idle));
    } else {
      dormant = lot(kDormant).next(take(dormant));
    }
  }
  return blocks;
}

void BlockPool::afford(const std::vector<std::size_t>& positions, std::size_t grant, const std::string& what) const {
  if (positions.size() <= grant) return;
  throw OutOfSlabs(what + " need " + std::to_string(positions.size()) + " more slabs, granted are " +
                   std::to_string(grant));
}

void BlockPool::allocate(std::span<Block> out, std::size_t grant) {
  const std::scoped_lock lock(mutex_);
  require_open();
  const auto blocks = choose(out.size());
  if (out.size() > lot(kReady).count()) {
    const auto positions = cold(blocks);
    afford(positions, grant, "allocate: " + std::to_string(out.size()) + " blocks");
    map(positions);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    hold(blocks[i]);
    out[i] = static_cast<Block>(blocks[i]);
  }
  return_empty_slabs();
}

std::size_t BlockPool::require(Block block, bool cached, const char* call) const {
  const bool known = block >= 0 && static_cast<std::size_t>(block) < capacity_;
  const auto index = static_cast<std::size_t>(block);
  if (known && (references_[index] > 0 || (cached && kept_[index]))) return index;
  throw NativeError(std::string(call) + ": block " + std::to_string(block) +
                    (known ? (cached ? " is neither held nor cached" : " is not held")
                           : " is outside 0.." + std::to_string(capacity_ - 1)));
}

void BlockPool::hold(std::size_t block) {
  ++references_sum_;
  if (references_[block]++ > 0) return;
  if (kept_[block]) turn(block, caching_, -1);
  turn(block, touching_, 1);
  place(block);
}

void BlockPool::retain(std::span<const Block> blocks, std::size_t grant) {
  const std::scoped_lock lock(mutex_);
  require_open();
  std::vector<std::size_t> ids;
  for (const Block block : blocks) ids.push_back(require(block, true, "retain"));
  afford(cold(ids), grant, "retain: " + std::to_string(blocks.size()) + " blocks");
  for (const std::size_t block : ids) hold(block);
  return_empty_slabs();
}

// All or nothing: references dropped before a block that is not held are taken up again.
std::size_t BlockPool::release(std::span<const Block> blocks) {
  const std::scoped_lock lock(mutex_);
  require_open();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    try {
      --references_[require(blocks[i], false, "release")];
    } catch (...) {
      for (const Block block : blocks.first(i)) ++references_[static_cast<std::size_t>(block)];
      throw;
    }
  }
  references_sum_ -= blocks.size();
  for (const Block block : blocks) {
    const auto index = static_cast<std::size_t>(block);
    if (references_[index] > 0 || placed_[index] != kHeld) continue;
    turn(index, touching_, -1);
    if (kept_[index]) turn(index, caching_, 1);
    place(index);
  }
  return return_empty_slabs();
}

void BlockPool::keep(std::span<const Block> blocks) {
  const std::scoped_lock lock(mutex_);
  require_open();
  for (const Block block : blocks) require(block, false, "keep");
  for (const Block block : blocks) {
    const auto index = static_cast<std::size_t>(block);
    kept_sum_ += !kept_[index];
    kept_[index] = true;
  }
}

std::size_t BlockPool::forget(std::span<const Block> blocks) {
  const std::scoped_lock lock(mutex_);
  require_open();
  for (const Block block : blocks) require(block, true, "forget");
  for (const Block block : blocks) {
    const auto index = static_cast<std::size_t>(block);
    if (!kept_[index]) continue;
    --kept_sum_;
    kept_[index] = false;
    if (references_[index] > 0) continue;
    turn(index, caching_, -1);
    place(index);
  }
  return return_empty_slabs();
}

void BlockPool::close() {
  const std::scoped_lock lock(mutex_);
  if (closed_) return;
  closed_ = true;
  std::vector<Slab> held = range_.layout();
  range_.close();
  std::erase(held, kNoSlab);
  pool_->give(held);
  std::fill(references_.begin(), references_.end(), 0);
  std::fill(kept_.begin(), kept_.end(), false);
  std::fill(placed_.begin(), placed_.end(), kLots);
  std::fill(touching_.begin(), touching_.end(), 0);
  std::fill(caching_.begin(), caching_.end(), 0);
  std::fill(mapped_.begin(), mapped_.end(), false);
  lots_.assign(kLots, Bitmap(capacity_));
  references_sum_ = kept_sum_ = held_positions_ = 0;
}

}  // namespace aegaeon
