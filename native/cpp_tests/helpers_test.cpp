#include "aegaeon/helpers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using aegaeon::Helpers;

namespace {

constexpr std::size_t kParts = 100;

struct Counts {
  std::vector<std::atomic<int>> taken = std::vector<std::atomic<int>>(kParts);
};

void count(const void* counts, std::size_t part) noexcept {
  ++const_cast<Counts*>(static_cast<const Counts*>(counts))->taken[part];
}

void expect_each_once(Helpers& helpers) {
  Counts counts;
  helpers.compute(kParts, count, &counts);
  EXPECT_TRUE(std::ranges::all_of(counts.taken, [](const auto& taken) { return taken == 1; }));
}

}  // namespace

TEST(Helpers, TakeEachPartOnceAgainAndAgain) {
  Helpers helpers;
  expect_each_once(helpers);
  for (const std::size_t number : {1U, 3U, 0U, 2U}) {
    helpers.set_count(number);
    for (int i = 0; i < 2000; ++i) expect_each_once(helpers);
  }
}

TEST(Helpers, SeveralCallersAtOnceHaveAllTheirParts) {
  Helpers helpers;
  helpers.set_count(2);
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&helpers] {
      for (int i = 0; i < 500; ++i) expect_each_once(helpers);
    });
}

TEST(Helpers, TakePartWhereTheyCan) {
  Helpers helpers;
  helpers.set_count(1);
  struct Seen {
    std::thread::id caller = std::this_thread::get_id();
    std::atomic<bool> helped = false;
  } seen;
  const auto wait = [](const void* context, std::size_t) noexcept {  // until another thread has a part as well
    auto& at = *const_cast<Seen*>(static_cast<const Seen*>(context));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    if (std::this_thread::get_id() != at.caller) at.helped = true;
    while (!at.helped && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  };
  helpers.compute(2, wait, &seen);
  EXPECT_TRUE(seen.helped);
}
