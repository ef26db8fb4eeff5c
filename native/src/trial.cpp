#include "aegaeon/trial.hpp"

#include <algorithm>
#include <limits>

namespace aegaeon {

Trial::Trial(std::size_t ways, std::size_t rounds)
    : rounds_(rounds), best_(ways, std::numeric_limits<double>::infinity()), runs_(ways, 0) {}

std::optional<std::size_t> Trial::winner() const {
  const std::size_t winner = winner_.load(std::memory_order_relaxed);
  if (winner == kUnknown) return std::nullopt;
  return winner;
}

std::size_t Trial::turn() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<std::size_t>(std::ranges::min_element(runs_) - runs_.begin());
}

void Trial::note(std::size_t way, double cost) {
  const std::scoped_lock lock(mutex_);
  best_[way] = std::min(best_[way], cost);
  ++runs_[way];
  if (*std::ranges::min_element(runs_) < rounds_) return;
  winner_.store(static_cast<std::size_t>(std::ranges::min_element(best_) - best_.begin()), std::memory_order_relaxed);
}

}  // namespace aegaeon
