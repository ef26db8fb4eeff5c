// How BlockPool's blocks lie over positions: which lot a block is in, and when a position is mapped and unmapped.
#include <algorithm>
#include <utility>

#include "aegaeon/blocks.hpp"
#include "aegaeon/errors.hpp"

namespace aegaeon {

namespace {

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

std::size_t BlockPool::last_block(std::size_t position) const {
  return std::min(((position + 1) * slab_bytes_ - 1) / block_bytes_, capacity_ - 1);
}

BlockPool::Lot BlockPool::lot_of(std::size_t block) const {
  if (references_[block] > 0) return kHeld;
  bool ready = true;
  bool mapped = true;
  for (std::size_t p = first_position(block); p <= last_position(block); ++p) {
    ready = ready && touching_[p] > 0;
    mapped = mapped && mapped_[p];
  }
  if (kept_[block]) return ready ? kCachedReady : kCachedIdle;
  if (ready) return kReady;
  return mapped ? kIdle : kDormant;
}

void BlockPool::place(std::size_t block) {
  const Lot lot = lot_of(block);
  if (placed_[block] == lot) return;
  lots_[placed_[block]].erase(block);
  lots_[lot].insert(block);
  placed_[block] = lot;
}

// Counts a block in or out at the positions that it touches.
void BlockPool::turn(std::size_t block, std::vector<std::uint32_t>& counts, int by) {
  for (std::size_t p = first_position(block); p <= last_position(block); ++p) {
    const bool was = counts[p] > 0;
    counts[p] += static_cast<std::uint32_t>(by);
    if (was == (counts[p] > 0)) continue;
    turned_.push_back(p);
    if (&counts != &touching_) continue;
    held_positions_ += was ? std::size_t(-1) : 1;
  }
}

// Unmaps the positions that nothing touches any more, gives their slabs back, and puts every block over a position that
// turned into its lot. Returns how many slabs went back.
std::size_t BlockPool::return_empty_slabs() {
  if (turned_.empty()) return 0;
  std::vector<std::size_t> positions = std::exchange(turned_, {});
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  std::vector<std::size_t> empty;
  for (const std::size_t p : positions) {
    if (mapped_[p] && touching_[p] == 0 && caching_[p] == 0) empty.push_back(p);
  }
  for (const std::size_t p : empty) mapped_[p] = false;
  for (const std::size_t p : positions) {
    for (std::size_t block = first_block(p); block <= last_block(p); ++block) place(block);
  }
  for_runs(empty, [&](std::size_t begin, std::size_t count) { pool_->give(range_.unmap(empty[begin], count)); });
  return empty.size();
}

// The positions, ascending, that these blocks touch and no held block does: what holding them takes from a grant.
std::vector<std::size_t> BlockPool::cold(std::span<const std::size_t> blocks) const {
  std::vector<std::size_t> positions;
  for (const std::size_t block : blocks) {
    for (std::size_t p = first_position(block); p <= last_position(block); ++p) {
      if (touching_[p] == 0 && (positions.empty() || positions.back() != p)) positions.push_back(p);
    }
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

// Maps fresh slabs where these positions have none; when a system call fails everything is as it was.
void BlockPool::map(const std::vector<std::size_t>& positions) {
  std::vector<std::size_t> bare;
  for (const std::size_t p : positions) {
    if (!mapped_[p]) bare.push_back(p);
  }
  const std::vector<Slab> slabs = pool_->take(bare.size());
  std::size_t done = 0;
  try {
    for_runs(bare, [&](std::size_t begin, std::size_t count) {
      range_.map(bare[begin], std::span(slabs).subspan(begin, count));
      done = begin + count;
    });
  } catch (...) {
    for (std::size_t i = 0; i < done; ++i) range_.unmap(bare[i], 1);
    pool_->give(slabs);
    throw;
  }
  for (const std::size_t p : bare) mapped_[p] = true;
}

void BlockPool::check() const {
  const std::scoped_lock lock(mutex_);
  if (closed_) return;
  check_blocks();
  check_positions();
}

void BlockPool::check_blocks() const {
  std::size_t references = 0;
  std::size_t kept = 0;
  std::size_t counted = 0;
  for (std::size_t block = 0; block < capacity_; ++block) {
    references += references_[block];
    kept += kept_[block];
    std::size_t places = 0;
    for (const Bitmap& each : lots_) places += each.contains(block);
    if (places == 1 && placed_[block] == lot_of(block) && lot(lot_of(block)).contains(block)) continue;
    throw NativeError("check: block " + std::to_string(block) + " with " + std::to_string(references_[block]) +
                      " references is kept in the wrong place");
  }
  for (const Bitmap& each : lots_) counted += each.recount() == each.count() ? each.count() : capacity_ + 1;
  if (references == references_sum_ && kept == kept_sum_ && counted == capacity_ && turned_.empty()) return;
  throw NativeError("check: " + std::to_string(references) + " references and " + std::to_string(kept) +
                    " kept blocks, counted are " + std::to_string(references_sum_) + " and " +
                    std::to_string(kept_sum_));
}

void BlockPool::check_positions() const {
  std::vector<std::uint32_t> touching(touching_.size(), 0);
  std::vector<std::uint32_t> caching(caching_.size(), 0);
  for (std::size_t block = 0; block < capacity_; ++block) {
    auto& counts = references_[block] > 0 ? touching : caching;
    if (references_[block] == 0 && !kept_[block]) continue;
    for (std::size_t p = first_position(block); p <= last_position(block); ++p) ++counts[p];
  }
  const std::vector<Slab> layout = range_.layout();
  std::size_t held = 0;
  for (std::size_t p = 0; p < touching.size(); ++p) {
    const bool mapped = layout[p] != kNoSlab;
    held += touching[p] > 0;
    if (touching[p] == touching_[p] && caching[p] == caching_[p] && mapped == mapped_[p] &&
        mapped == (touching[p] + caching[p] > 0)) {
      continue;
    }
    throw NativeError("check: position " + std::to_string(p) + " is touched by " + std::to_string(touching[p]) +
                      " held and " + std::to_string(caching[p]) + " cached blocks, counted are " +
                      std::to_string(touching_[p]) + " and " + std::to_string(caching_[p]) +
                      (mapped ? ", mapped" : ", not mapped"));
  }
  if (held != held_positions_) throw NativeError("check: " + std::to_string(held) + " positions are held");
}

}  // namespace aegaeon
