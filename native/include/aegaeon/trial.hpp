// Which of several ways to do the same work is the quickest on this machine, found out by the work itself: the first
// runs take turns, the quickest run of each way counts (others on the machine only add to a time).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace aegaeon {

class Trial {
 public:
  // Each of `ways` is tried `rounds` times.
  Trial(std::size_t ways, std::size_t rounds);

  // Empty while it is not known.
  std::optional<std::size_t> winner() const;
  // The way of the next run, while there is no winner.
  std::size_t turn() const;
  // What a run took: seconds a byte, for example. Any thread.
  void note(std::size_t way, double cost);

 private:
  static constexpr std::size_t kUnknown = SIZE_MAX;

  const std::size_t rounds_;
  std::atomic<std::size_t> winner_{kUnknown};
  mutable std::mutex mutex_;
  std::vector<double> best_;
  std::vector<std::size_t> runs_;
};

}  // namespace aegaeon
