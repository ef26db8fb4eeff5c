#include "aegaeon/copylane.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "aegaeon/errors.hpp"

using namespace aegaeon;
using namespace std::chrono_literals;

namespace {

using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

// Notes which threads use it, and whether two ever do so at once.
class WatchedMover final : public Mover {
 public:
  struct Seen {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    std::atomic<int> inside = 0;
    std::atomic<bool> together = false;
  };

  WatchedMover(std::shared_ptr<Seen> seen, bool any_thread) : seen_(std::move(seen)), any_thread_(any_thread) {}

  void copy(std::byte* dst, const std::byte* src, std::size_t bytes, std::size_t whole) override {
    if (seen_->inside.fetch_add(1) != 0) seen_->together = true;
    {
      const std::scoped_lock lock(seen_->mutex);
      seen_->threads.insert(std::this_thread::get_id());
    }
    memory_->copy(dst, src, bytes, whole);
    seen_->inside.fetch_sub(1);
  }
  void copy_blocks(std::byte* dst, const std::byte* src, std::size_t block_bytes, std::span<const std::int32_t> to,
                   std::span<const std::int32_t> from, std::size_t whole) override {
    memory_->copy_blocks(dst, src, block_bytes, to, from, whole);
  }
  void finish() override {}
  bool any_thread() const override { return any_thread_; }

 private:
  const std::unique_ptr<Mover> memory_ = memory_mover();
  const std::shared_ptr<Seen> seen_;
  const bool any_thread_;
};

}  // namespace

TEST(CopyLane, WaitingThreadsMakeSmallCopiesInOrderAndOneAtATime) {
  const auto seen = std::make_shared<WatchedMover::Seen>();
  const Bytes source = pattern(5000);
  CopyLane lane("test", 4096, std::make_unique<WatchedMover>(seen, true));  // one copy in two is more than a chunk
  const auto work = [&](std::size_t bytes) {
    Bytes middle(bytes);
    for (int round = 0; round < 200; ++round) {
      Bytes target(bytes);
      lane.copy(middle.data(), source.data(), bytes);
      lane.copy(target.data(), middle.data(), bytes);
      while (!lane.synchronize(1s)) {
      }
      ASSERT_TRUE(std::equal(target.begin(), target.end(), source.begin()));
    }
  };
  {
    std::vector<std::jthread> threads;
    for (const std::size_t bytes : {100, 5000, 700}) threads.emplace_back(work, bytes);
  }
  EXPECT_FALSE(seen->together);
  EXPECT_EQ(lane.bytes_copied(), 2 * 200 * (100 + 5000 + 700));
}

TEST(CopyLane, CopiesOfAThreadBoundMoverRunOnTheLaneThread) {
  const auto seen = std::make_shared<WatchedMover::Seen>();
  const Bytes source = pattern(64);
  Bytes target(64);
  CopyLane lane("test", 4096, std::make_unique<WatchedMover>(seen, false));
  for (int round = 0; round < 50; ++round) {
    lane.copy(target.data(), source.data(), 64);
    ASSERT_TRUE(lane.synchronize(10s));
  }
  EXPECT_EQ(target, source);
  EXPECT_EQ(seen->threads.size(), 1);
  EXPECT_FALSE(seen->threads.contains(std::this_thread::get_id()));
}

TEST(CopyLane, CopiesInOrderAndRecordsEvents) {
  const auto table = EventTable::create_private(2);
  const Bytes source = pattern(100'000);
  Bytes middle(source.size());
  Bytes target(source.size());
  CopyLane lane("test", 4096);
  const auto event = table->event();
  lane.copy(middle.data(), source.data(), source.size());
  lane.copy(target.data(), middle.data(), source.size());
  lane.record(event);
  ASSERT_TRUE(event->wait_for(10s));
  EXPECT_EQ(target, source);
  EXPECT_EQ(lane.bytes_copied(), 2 * source.size());
}

TEST(CopyLane, MovesBlocksByTheirIds) {
  const Bytes source = pattern(8 * 512);
  Bytes target(source.size());
  CopyLane lane("test", 1000);
  lane.copy_blocks(target.data(), source.data(), 512, {7, 0}, {1, 2});
  ASSERT_TRUE(lane.synchronize(10s));
  EXPECT_TRUE(std::equal(target.begin() + 7 * 512, target.end(), source.begin() + 512));
  EXPECT_TRUE(std::equal(target.begin(), target.begin() + 512, source.begin() + 2 * 512));
  EXPECT_EQ(target[512], std::byte{0});
}

TEST(CopyLane, WaitsForAnotherLanesEvent) {
  const auto table = EventTable::create_private(4);
  const Bytes source = pattern(50'000);
  Bytes middle(source.size());
  Bytes target(source.size());
  CopyLane out("out", 4096);
  CopyLane in("in", 4096);
  for (int round = 0; round < 20; ++round) {
    const auto event = table->event();
    in.wait(event);
    in.copy(target.data(), middle.data(), source.size());
    out.copy(middle.data(), source.data(), source.size());
    out.record(event);
    ASSERT_TRUE(in.synchronize(10s));
    ASSERT_EQ(target, source);
  }
}

TEST(CopyLane, CancelsByTagAndReportsTruncatedCopies) {
  const auto table = EventTable::create_private(2);
  const Bytes source = pattern(64);
  Bytes first(64);
  Bytes second(64);
  CopyLane lane("test");
  const auto gate = table->event();
  const auto done = table->event();
  lane.wait(gate);
  lane.copy(first.data(), source.data(), 64, 1);
  lane.copy(second.data(), source.data(), 64, 2);
  lane.record(done);
  lane.cancel(1);
  gate->set();
  ASSERT_TRUE(done->wait_for(10s));
  EXPECT_EQ(first, Bytes(64));
  EXPECT_EQ(second, source);
  ASSERT_TRUE(lane.synchronize(10s));
  EXPECT_TRUE(lane.cancelled(1));
  EXPECT_FALSE(lane.cancelled(1));  // forgotten: the tag is free again
  EXPECT_FALSE(lane.cancelled(2));
  lane.cancel(2);
  EXPECT_FALSE(lane.cancelled(2));  // too late to matter
}

TEST(CopyLane, FinishesWhatIsQueuedOnClose) {
  const Bytes source = pattern(1 << 20);
  Bytes target(source.size());
  CopyLane lane("test", 4096);
  lane.copy(target.data(), source.data(), source.size());
  lane.close();
  lane.close();
  EXPECT_EQ(target, source);
  EXPECT_THROW(lane.copy(target.data(), source.data(), 1), NativeError);
}

TEST(CopyLane, DropsWhatIsQueuedWhenDestroyed) {
  const auto table = EventTable::create_private(1);
  const auto never = table->event();
  Bytes bytes(64);
  {
    CopyLane lane("test");
    lane.wait(never);
    lane.copy(bytes.data(), bytes.data(), 0);
  }
  EXPECT_FALSE(never->done());
}

TEST(CopyLane, RefusesCopiesThatMakeNoSense) {
  Bytes bytes(64);
  CopyLane lane("test");
  EXPECT_THROW(lane.copy(nullptr, bytes.data(), 1), NativeError);
  EXPECT_THROW(lane.copy_blocks(bytes.data(), bytes.data(), 8, {1}, {1, 2}), NativeError);
  EXPECT_THROW(lane.copy_blocks(bytes.data(), bytes.data(), 8, {-1}, {1}), NativeError);
  EXPECT_THROW(lane.cancel(0), NativeError);
  EXPECT_EQ(lane.pending(), 0u);
}
