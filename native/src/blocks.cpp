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

// Calls `act(begin, count)` for every run of consecutive numbers in sorted `positions`.
template <typename Act>
void for_runs(const std::vector<std::size_t>& positions, Act act) {
  for (std::size_t i = 0; i < positions.size();) {
    std::size_t end = i + 1;
    while (end < positions.size() && positions[end] == positions[end - 1] + 1) ++end;
    act(i, end - i);
    i = end;
  }
}

}  // namespace

BlockPool::BlockPool(std::shared_ptr<SlabPool> pool, std::size_t block_bytes, std::size_t max_slabs)
    : pool_(std::move(pool)),
      block_bytes_(block_bytes),
      slab_bytes_(pool_->slab_bytes()),
      capacity_(blocks_in(slab_bytes_, block_bytes, max_slabs)),
      range_(pool_, max_slabs),
      references_(capacity_, 0),
      moving_(capacity_, 0),
      touching_(max_slabs, 0),
      mapped_(max_slabs, false),
      available_(capacity_),
      dormant_(capacity_) {
  for (std::size_t block = 0; block < capacity_; ++block) dormant_.insert(block);
}

BlockPool::~BlockPool() {
  try {
    close();
  } catch (const NativeError&) {
    // The addresses go with the range; the slabs stay taken, which the pool's own check() shows.
  }
}

std::size_t BlockPool::last_block(std::size_t position) const {
  return std::min(((position + 1) * slab_bytes_ - 1) / block_bytes_, capacity_ - 1);
}

bool BlockPool::is_mapped(std::size_t block) const {
  for (std::size_t p = first_position(block); p <= last_position(block); ++p) {
    if (!mapped_[p]) return false;
  }
  return true;
}

void BlockPool::require_open() const {
  if (closed_) throw NativeError("this block pool is closed");
}

std::size_t BlockPool::free() const {
  const std::scoped_lock lock(mutex_);
  return available_.count();
}

std::size_t BlockPool::used() const {
  const std::scoped_lock lock(mutex_);
  return used_;
}

std::vector<Slab> BlockPool::slabs() const {
  std::vector<Slab> layout = range_.layout();
  while (!layout.empty() && layout.back() == kNoSlab) layout.pop_back();
  return layout;
}

std::size_t BlockPool::slabs_for(std::size_t count) const {
  const std::scoped_lock lock(mutex_);
  require_open();
  return positions_for(count).size();
}

// Positions to map, ascending, so that `count` blocks are available. Dormant blocks are woken in the order of their
// ids: a position that one of them needs is then either mapped, or behind the last one already on the list.
std::vector<std::size_t> BlockPool::positions_for(std::size_t count) const {
  std::vector<std::size_t> positions;
  if (count <= available_.count()) return positions;
  std::size_t missing = count - available_.count();
  if (missing > dormant_.count()) {
    throw OutOfSlabs(std::to_string(count) + " blocks asked for: the range has " + std::to_string(capacity_) + ", " +
                     std::to_string(used_) + " of them in use");
  }
  std::size_t beyond = 0;
  for (std::size_t block = dormant_.lowest(); missing > 0; block = dormant_.next(block + 1), --missing) {
    for (std::size_t p = std::max(first_position(block), beyond); p <= last_position(block); ++p) {
      if (!mapped_[p]) positions.push_back(p);
    }
    beyond = last_position(block) + 1;
  }
  return positions;
}

void BlockPool::allocate(std::span<Block> out, std::size_t grant) {
  const std::scoped_lock lock(mutex_);
  require_open();
  if (out.size() > available_.count()) {
    const auto positions = positions_for(out.size());
    if (positions.size() > grant) {
      throw OutOfSlabs("allocate: " + std::to_string(out.size()) + " blocks need " + std::to_string(positions.size()) +
                       " more slabs, granted are " + std::to_string(grant));
    }
    grow(positions);
  }
  for (Block& block : out) {
    const std::size_t lowest = available_.lowest();
    available_.erase(lowest);
    references_[lowest] = 1;
    for (std::size_t p = first_position(lowest); p <= last_position(lowest); ++p) ++touching_[p];
    block = static_cast<Block>(lowest);
  }
  used_ += out.size();
}

// Maps fresh slabs at these positions; when a system call fails everything is as it was.
void BlockPool::grow(const std::vector<std::size_t>& positions) {
  const std::vector<Slab> slabs = pool_->take(positions.size());
  std::size_t done = 0;
  try {
    for_runs(positions, [&](std::size_t begin, std::size_t count) {
      range_.map(positions[begin], std::span(slabs).subspan(begin, count));
      done = begin + count;
    });
  } catch (...) {
    for (std::size_t i = 0; i < done; ++i) range_.unmap(positions[i], 1);
    pool_->give(slabs);
    throw;
  }
  for (const std::size_t position : positions) mapped_[position] = true;
  for (const std::size_t position : positions) awaken(position);
}

void BlockPool::awaken(std::size_t position) {
  for (std::size_t block = first_block(position); block <= last_block(position); ++block) {
    if (!dormant_.contains(block) || !is_mapped(block)) continue;
    dormant_.erase(block);
    available_.insert(block);
  }
}

void BlockPool::require_held(Block block, const char* call) const {
  const bool known = block >= 0 && static_cast<std::size_t>(block) < capacity_;
  if (known && references_[static_cast<std::size_t>(block)] > moving_[static_cast<std::size_t>(block)]) return;
  throw NativeError(std::string(call) + ": block " + std::to_string(block) +
                    (known ? " is not held (free, or all its references are on the move list)"
                           : " is outside 0.." + std::to_string(capacity_ - 1)));
}

void BlockPool::retain(std::span<const Block> blocks) {
  const std::scoped_lock lock(mutex_);
  require_open();
  for (const Block block : blocks) require_held(block, "retain");
  for (const Block block : blocks) ++references_[static_cast<std::size_t>(block)];
}

std::size_t BlockPool::release(std::span<const Block> blocks) {
  const std::scoped_lock lock(mutex_);
  require_open();
  return drop(blocks);
}

// All or nothing: references dropped before a block that is not held are taken up again.
std::size_t BlockPool::drop(std::span<const Block> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    try {
      require_held(blocks[i], "release");
    } catch (...) {
      for (const Block block : blocks.first(i)) ++references_[static_cast<std::size_t>(block)];
      throw;
    }
    --references_[static_cast<std::size_t>(blocks[i])];
  }
  for (const Block block : blocks) {
    const auto index = static_cast<std::size_t>(block);
    if (references_[index] == 0 && !available_.contains(index)) free_block(index);
  }
  return emptied_.empty() ? 0 : shrink();
}

void BlockPool::free_block(std::size_t block) {
  available_.insert(block);
  --used_;
  for (std::size_t p = first_position(block); p <= last_position(block); ++p) {
    if (--touching_[p] == 0) emptied_.push_back(p);
  }
}

// Gives back the slabs that nothing touches any more; the free blocks over them go dormant.
std::size_t BlockPool::shrink() {
  std::vector<std::size_t> positions = std::exchange(emptied_, {});
  std::sort(positions.begin(), positions.end());
  for (const std::size_t position : positions) {
    mapped_[position] = false;
    for (std::size_t block = first_block(position); block <= last_block(position); ++block) {
      available_.erase(block);
      dormant_.insert(block);
    }
  }
  for_runs(positions,
           [&](std::size_t begin, std::size_t count) { pool_->give(range_.unmap(positions[begin], count)); });
  return positions.size();
}

void BlockPool::defer(std::span<const Block> blocks, EventPtr event) {
  const std::scoped_lock lock(mutex_);
  require_open();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    try {
      require_held(blocks[i], "defer");
    } catch (...) {
      for (const Block block : blocks.first(i)) --moving_[static_cast<std::size_t>(block)];
      throw;
    }
    ++moving_[static_cast<std::size_t>(blocks[i])];
  }
  moves_.push_back({{blocks.begin(), blocks.end()}, std::move(event)});
}

std::size_t BlockPool::reclaim() {
  const std::scoped_lock lock(mutex_);
  require_open();
  std::size_t waiting = 0;
  for (auto move = moves_.begin(); move != moves_.end();) {
    if (!move->event->done()) {
      waiting += move->blocks.size();
      ++move;
      continue;
    }
    const std::vector<Block> blocks = std::move(move->blocks);
    move = moves_.erase(move);
    for (const Block block : blocks) --moving_[static_cast<std::size_t>(block)];
    drop(blocks);
  }
  return waiting;
}

void BlockPool::check() const {
  const std::scoped_lock lock(mutex_);
  check_counts();
  check_positions();
}

void BlockPool::check_counts() const {
  std::size_t used = 0;
  std::size_t moving = 0;
  for (std::size_t block = 0; block < capacity_; ++block) {
    const bool held = references_[block] > 0;
    used += held;
    moving += moving_[block];
    const bool available = available_.contains(block);
    const bool dormant = dormant_.contains(block);
    const bool placed = closed_ || (held ? !available && !dormant : available != dormant);
    if (!placed || moving_[block] > references_[block] || (!closed_ && available && !is_mapped(block))) {
      throw NativeError("check: block " + std::to_string(block) + " with " + std::to_string(references_[block]) +
                        " references is kept in the wrong place");
    }
  }
  for (const Moving& move : moves_) moving -= move.blocks.size();
  if (used == used_ && moving == 0 && available_.recount() == available_.count()) return;
  throw NativeError("check: " + std::to_string(used) + " blocks are used, " + std::to_string(used_) + " counted");
}

void BlockPool::check_positions() const {
  std::vector<std::uint32_t> touching(touching_.size(), 0);
  for (std::size_t block = 0; block < capacity_; ++block) {
    if (references_[block] == 0) continue;
    for (std::size_t p = first_position(block); p <= last_position(block); ++p) ++touching[p];
  }
  const std::vector<Slab> layout = range_.layout();
  for (std::size_t p = 0; p < touching.size(); ++p) {
    const bool mapped = layout[p] != kNoSlab;
    if (touching[p] == touching_[p] && mapped == mapped_[p] && mapped == (touching[p] > 0)) continue;
    throw NativeError("check: position " + std::to_string(p) + " is touched by " + std::to_string(touching[p]) +
                      " blocks, counted are " + std::to_string(touching_[p]) + (mapped ? ", mapped" : ", not mapped"));
  }
}

void BlockPool::close() {
  const std::scoped_lock lock(mutex_);
  if (closed_) return;
  closed_ = true;
  moves_.clear();
  std::vector<Slab> held = range_.layout();
  range_.close();
  std::erase(held, kNoSlab);
  pool_->give(held);
  std::fill(references_.begin(), references_.end(), 0);
  std::fill(moving_.begin(), moving_.end(), 0);
  std::fill(touching_.begin(), touching_.end(), 0);
  std::fill(mapped_.begin(), mapped_.end(), false);
  available_ = Bitmap(capacity_);
  dormant_ = Bitmap(capacity_);
  used_ = 0;
}

}  // namespace aegaeon
