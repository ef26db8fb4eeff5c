#include "aegaeon/trial.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

using aegaeon::Trial;

TEST(Trial, WaysTakeTurnsUntilEachHadItsRounds) {
  Trial trial(3, 2);
  for (const std::size_t way : {0, 1, 2, 0, 1, 2}) {
    ASSERT_FALSE(trial.winner());
    ASSERT_EQ(trial.turn(), way);
    trial.note(way, 1.0);
  }
  ASSERT_EQ(trial.winner(), 0);
}

TEST(Trial, TheQuickestRunOfAWayCounts) {
  Trial trial(2, 2);
  trial.note(0, 3.0);
  trial.note(1, 90.0);
  trial.note(0, 4.0);
  trial.note(1, 2.0);
  ASSERT_EQ(trial.winner(), 1);
}

TEST(Trial, ThreadsMayTryAtOnce) {
  Trial trial(2, 100);
  const auto run = [&trial] {
    while (!trial.winner()) {
      const std::size_t way = trial.turn();
      trial.note(way, way == 1 ? 1.0 : 2.0);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(run);
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(trial.winner(), 1);
}
