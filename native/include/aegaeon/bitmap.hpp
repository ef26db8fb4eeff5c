// A set of small integers that finds its lowest member in a few instructions: each level says which words of the
// level below have a bit set, so a million members are four words deep.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aegaeon {

class Bitmap {
 public:
  static constexpr std::size_t kNone = SIZE_MAX;

  explicit Bitmap(std::size_t size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size, 0);
    } while (size > 1);
  }

  std::size_t count() const { return count_; }
  bool contains(std::size_t i) const { return (levels_[0][i / 64] >> (i % 64)) & 1; }

  void insert(std::size_t i) {
    if (contains(i)) return;
    ++count_;
    for (auto& level : levels_) {
      const bool was_empty = level[i / 64] == 0;
      level[i / 64] |= std::uint64_t{1} << (i % 64);
      if (!was_empty) return;
      i /= 64;
    }
  }

  void erase(std::size_t i) {
    if (!contains(i)) return;
    --count_;
    for (auto& level : levels_) {
      level[i / 64] &= ~(std::uint64_t{1} << (i % 64));
      if (level[i / 64] != 0) return;
      i /= 64;
    }
  }

  std::size_t lowest() const { return levels_.back()[0] == 0 ? kNone : descend(levels_.size(), 0); }

  // The lowest member that is at least `from`, or kNone.
  std::size_t next(std::size_t from) const {
    for (std::size_t depth = 0; depth < levels_.size(); ++depth) {
      const std::size_t word = from / 64;
      if (word >= levels_[depth].size()) return kNone;
      const std::uint64_t rest = levels_[depth][word] & (~std::uint64_t{0} << (from % 64));
      if (rest != 0) return descend(depth, word * 64 + static_cast<std::size_t>(std::countr_zero(rest)));
      from = word + 1;
    }
    return kNone;
  }

  std::size_t recount() const {
    std::size_t bits = 0;
    for (const std::uint64_t word : levels_[0]) bits += static_cast<std::size_t>(std::popcount(word));
    return bits;
  }

 private:
  // From bit `i` of level `depth` (or the root, word 0 above the top) down to the lowest member below it.
  std::size_t descend(std::size_t depth, std::size_t i) const {
    while (depth-- > 0) i = i * 64 + static_cast<std::size_t>(std::countr_zero(levels_[depth][i]));
    return i;
  }

  std::vector<std::vector<std::uint64_t>> levels_;
  std::size_t count_ = 0;
};

}  // namespace aegaeon
