// The hand-off between two sidecars, both of them in this process: each has its own mapping of the segment and of the
// events, and threads of its own. ThreadSanitizer watches either side; what crosses over is checked by its content.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aegaeon/blocks.hpp"
#include "aegaeon/copylane.hpp"
#include "aegaeon/events.hpp"
#include "aegaeon/slabs.hpp"

using namespace aegaeon;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kSlab = 65536;
constexpr std::size_t kBlock = 40960;  // crosses slab borders
constexpr std::size_t kSlabs = 8;
constexpr int kRounds = 200;
constexpr int kAdopters = 2;

struct Name {
  std::uint32_t slot;
  std::uint32_t generation;
};

// What goes over the wire: names alone, no pointers.
struct Handle {
  int round;
  std::vector<Block> blocks;
  std::vector<Slab> slabs;
  Name ready;  // of the source: the swap-out is over
  Name read;   // of the source: the adopter sets it
};

class Wire {
 public:
  void send(std::optional<Handle> handle) {
    const std::scoped_lock lock(mutex_);
    queue_.push_back(std::move(handle));
    news_.notify_one();
  }
  std::optional<Handle> receive() {
    std::unique_lock lock(mutex_);
    news_.wait(lock, [this] { return !queue_.empty(); });
    auto handle = std::move(queue_.front());
    queue_.pop_front();
    return handle;
  }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::optional<Handle>> queue_;
};

// Blocks that were closed and may still be read: free when their event has happened, and not before.
class MoveList {
 public:
  explicit MoveList(BlockPool& pool) : pool_(pool) {}
  void defer(std::vector<Block> blocks, EventPtr event) { moving_.push_back({std::move(blocks), std::move(event)}); }
  std::size_t reclaim() {
    std::erase_if(moving_, [this](const Moving& moving) {
      if (!moving.event->done()) return false;
      pool_.release(moving.blocks);
      return true;
    });
    return moving_.size();
  }

 private:
  struct Moving {
    std::vector<Block> blocks;
    EventPtr event;
  };
  BlockPool& pool_;
  std::vector<Moving> moving_;
};

std::byte* bytes_at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

Name name_of(const Event& event) { return {event.slot(), event.generation()}; }

std::byte content(int round, std::size_t block) { return static_cast<std::byte>(1 + (round * 7 + block) % 251); }

// One block of the handle, out of the segment as the adopter has it mapped; a block may cross slab borders.
void copy_block(CopyLane& lane, const SlabPool& segment, const Handle& handle, Block block, std::byte* to) {
  std::size_t at = static_cast<std::size_t>(block) * kBlock;
  for (std::size_t done = 0; done < kBlock;) {
    const std::size_t within = (at + done) % kSlab;
    const std::size_t bytes = std::min(kBlock - done, kSlab - within);
    const auto slab = static_cast<std::size_t>(handle.slabs[(at + done) / kSlab]);
    lane.copy(to + done, bytes_at(segment.address()) + slab * kSlab + within, bytes);
    done += bytes;
  }
}

// A decode sidecar: adopts until told to end; every byte must be what the handle promised.
void adopt(const std::string& segment_path, const std::string& events_path, Wire& wire) {
  const auto segment = SlabPool::attach(segment_path);
  const auto events = EventTable::attach(events_path);
  CopyLane lane("adopt", 4096);
  while (const auto handle = wire.receive()) {
    std::vector<std::byte> device(handle->blocks.size() * kBlock);
    lane.wait(events->open(handle->ready.slot, handle->ready.generation));
    for (std::size_t i = 0; i < handle->blocks.size(); ++i) {
      copy_block(lane, *segment, *handle, handle->blocks[i], device.data() + i * kBlock);
    }
    lane.record(events->open(handle->read.slot, handle->read.generation));
    ASSERT_TRUE(lane.synchronize(10s));
    for (std::size_t i = 0; i < device.size(); ++i) {
      ASSERT_EQ(device[i], content(handle->round, i / kBlock)) << "round " << handle->round << ", byte " << i;
    }
  }
  lane.close();
}

}  // namespace

TEST(Protocol, BlocksHandedOffAreReadWholeAndNeverUsedAgainTooEarly) {
  const std::string prefix = "/dev/shm/aegaeon-cpp-protocol-" + std::to_string(::getpid());
  const auto segment = SlabPool::create_shared(prefix + ".kv", kSlab, kSlabs);
  const auto events = EventTable::create(prefix + ".events", 64);
  BlockPool blocks(segment, kBlock, kSlabs);
  MoveList moves(blocks);
  CopyLane out("swap-out", 4096);
  std::vector<Wire> wires(kAdopters);
  std::vector<std::thread> adopters;
  for (auto& wire : wires) {
    adopters.emplace_back([&] { adopt(prefix + ".kv", prefix + ".events", wire); });
  }
  std::deque<std::vector<std::byte>> device;  // what the source copies from; kept until its lane is done
  for (int round = 0; round < kRounds; ++round) {
    const std::size_t count = 1 + static_cast<std::size_t>(round) % 3;
    std::vector<Block> mine(count);
    while (blocks.capacity() - blocks.used() < count) {
      moves.reclaim();
      std::this_thread::yield();
    }
    blocks.allocate(mine, kSlabs);
    auto& source = device.emplace_back(count * kBlock);
    std::vector<std::int32_t> from(count);
    for (std::size_t i = 0; i < count; ++i) {
      from[i] = static_cast<std::int32_t>(i);
      std::fill_n(source.begin() + static_cast<std::ptrdiff_t>(i * kBlock), kBlock, content(round, i));
    }
    out.copy_blocks(bytes_at(blocks.address()), source.data(), kBlock, mine, from);
    const auto ready = events->event();
    const auto read = events->event();
    out.record(ready);
    wires[static_cast<std::size_t>(round) % kAdopters].send(
        Handle{round, mine, blocks.slabs(), name_of(*ready), name_of(*read)});
    moves.defer(mine, read);  // Close: free when the reader has left, and not before
    moves.reclaim();
    blocks.check();
  }
  for (auto& wire : wires) wire.send(std::nullopt);
  for (auto& thread : adopters) thread.join();
  EXPECT_TRUE(out.synchronize(10s));
  out.close();
  EXPECT_EQ(moves.reclaim(), 0u);
  EXPECT_EQ(blocks.used(), 0u);
  EXPECT_EQ(segment->free(), kSlabs);
  EXPECT_EQ(events->in_use(), 0u);
  segment->close();
  events->close();
}

// Both sides of many events at once, each through its own mapping: no wake-up is lost, whoever comes first.
TEST(Protocol, NoWakeUpIsLostBetweenTwoMappings) {
  const std::string path = "/dev/shm/aegaeon-cpp-wakes-" + std::to_string(::getpid());
  const auto here = EventTable::create(path, 8);
  const auto there = EventTable::attach(path);
  for (int round = 0; round < 200; ++round) {
    auto event = here->event();
    const auto seen = there->open(event->slot(), event->generation());
    std::vector<std::thread> waiters;
    for (int i = 0; i < 2; ++i) {
      waiters.emplace_back([&seen] { EXPECT_TRUE(seen->wait_for(10s)); });
    }
    if (round % 2 == 0) {
      event->set();
    } else {
      event.reset();  // its owner died: it counts as happened
    }
    for (auto& waiter : waiters) waiter.join();
  }
  EXPECT_EQ(here->in_use(), 0u);
  here->close();
}
