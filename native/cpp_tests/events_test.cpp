#include "aegaeon/events.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "aegaeon/errors.hpp"

using namespace aegaeon;
using namespace std::chrono_literals;

TEST(Event, WakesAWaiterThroughAnotherMapping) {
  const std::string path = "/dev/shm/aegaeon-cpp-events-" + std::to_string(::getpid());
  const auto table = EventTable::create(path, 4);
  const auto other = EventTable::attach(path);
  const auto event = table->event();
  const auto seen = other->open(event->slot(), event->generation());
  EXPECT_FALSE(seen->wait_for(1ms));
  std::thread waiter([&seen] { EXPECT_TRUE(seen->wait_for(10s)); });
  event->set();
  waiter.join();
  EXPECT_TRUE(seen->done());
}

TEST(Event, CountsAsHappenedOnceItsSlotIsReused) {
  const auto table = EventTable::create_private(1);
  auto event = table->event();
  const auto seen = table->open(event->slot(), event->generation());
  EXPECT_THROW(table->event(), NativeError);
  std::thread waiter([&seen] { EXPECT_TRUE(seen->wait_for(10s)); });
  event.reset();
  waiter.join();
  const auto next = table->event();
  EXPECT_TRUE(seen->done());
  EXPECT_FALSE(next->done());
  seen->set();  // stale: must not touch the slot's next event
  EXPECT_FALSE(next->done());
  EXPECT_EQ(table->in_use(), 1u);
}

TEST(Event, OrdersMemoryBetweenThreads) {
  const auto table = EventTable::create_private(2);
  for (int round = 0; round < 200; ++round) {
    const auto there = table->event();
    const auto back = table->event();
    int value = 0;
    std::thread other([&] {
      ASSERT_TRUE(there->wait_for(10s));
      value += 1;
      back->set();
    });
    value = round;
    there->set();
    ASSERT_TRUE(back->wait_for(10s));
    EXPECT_EQ(value, round + 1);
    other.join();
  }
  EXPECT_EQ(table->in_use(), 0u);
}

TEST(EventTable, HandsOutEachSlotOnceUnderThreads) {
  const auto table = EventTable::create_private(8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&table] {
      for (int i = 0; i < 500; ++i) {
        const auto first = table->event();
        const auto second = table->event();
        ASSERT_NE(first->slot(), second->slot());
        first->set();
        ASSERT_FALSE(second->done());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(table->in_use(), 0u);
}

TEST(EventTable, RemovesItsFileAtCloseWhileItsEventsLiveOn) {
  const std::string path = "/dev/shm/aegaeon-cpp-closed-" + std::to_string(::getpid());
  const auto table = EventTable::create(path, 2);
  const auto event = table->event();
  table->close();
  table->close();
  EXPECT_FALSE(std::filesystem::exists(path));
  event->set();
  EXPECT_TRUE(event->done());
  EXPECT_THROW(table->event(), NativeError);
}
