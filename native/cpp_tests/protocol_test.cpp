// The hand-off between sidecars, all of them in this process: each has its own mapping of the segment and of the
// leases, its own locks (they belong to an open file, not to a process) and threads of its own. ThreadSanitizer watches
// each side; what crosses over is checked by its content.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
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
#include "aegaeon/files.hpp"
#include "aegaeon/slabs.hpp"

using namespace aegaeon;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kSlab = 65536;
constexpr std::size_t kBlock = 40960;  // crosses slab borders
constexpr std::size_t kSlabs = 8;
constexpr int kRounds = 300;
constexpr int kAdopters = 2;

// How the source's recall of a lease meets the adopter.
enum class Recall { kBefore, kWhileRead, kAnyTime };

// What goes over the wire: names alone, no pointers.
struct Handle {
  int round;
  Recall recall;
  std::vector<Block> blocks;
  std::vector<Slab> slabs;
  std::uint32_t slot;  // of the lease, and
  std::uint32_t generation;
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

// Locks on single bytes of the leases' file, as aegaeon_native/leases.py has them: they belong to the open file.
class ByteLocks {
 public:
  explicit ByteLocks(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {}
  void share(std::uint32_t at) const { set(F_OFD_SETLKW, F_RDLCK, at); }
  void release(std::uint32_t at) const { set(F_OFD_SETLK, F_UNLCK, at); }
  bool is_shared(std::uint32_t at) const { return set(F_OFD_GETLK, F_WRLCK, at) != F_UNLCK; }

 private:
  short set(int command, short kind, std::uint32_t at) const {
    struct flock lock = {};
    lock.l_type = kind;
    lock.l_whence = SEEK_SET;
    lock.l_start = at;
    lock.l_len = 1;
    EXPECT_EQ(::fcntl(file_.get(), command, &lock), 0);
    return lock.l_type;
  }

  const Fd file_;
};

// The source's side, as memory/leases.py has it: first the event is set, then the byte is looked at.
class Lending {
 public:
  Lending(BlockPool& pool, const std::string& path) : pool_(pool), locks_(path) {}
  void recall(std::vector<Block> blocks, EventPtr lease) {
    lease->set();
    recalled_.push_back({std::move(blocks), std::move(lease)});
    reclaim();
  }
  std::size_t reclaim() {
    std::erase_if(recalled_, [this](const Loan& loan) {
      if (locks_.is_shared(loan.lease->slot())) return false;
      pool_.release(loan.blocks);
      return true;
    });
    return recalled_.size();
  }

 private:
  struct Loan {
    std::vector<Block> blocks;
    EventPtr lease;
  };
  BlockPool& pool_;
  const ByteLocks locks_;
  std::vector<Loan> recalled_;
};

std::byte* bytes_at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

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

// An adopter's wire, and what it has seen; `reading`: the last round whose blocks it held.
struct Adopter {
  Wire wire;
  std::atomic<int> whole{0};
  std::atomic<int> stale{0};
  std::atomic<int> reading{-1};
};

// Every byte must be what the handle promised, whatever the source does meanwhile.
void read_whole(CopyLane& lane, const SlabPool& segment, const Handle& handle) {
  std::vector<std::byte> device(handle.blocks.size() * kBlock);
  for (std::size_t i = 0; i < handle.blocks.size(); ++i) {
    copy_block(lane, segment, handle, handle.blocks[i], device.data() + i * kBlock);
  }
  ASSERT_TRUE(lane.synchronize(10s));
  for (std::size_t i = 0; i < device.size(); ++i) {
    ASSERT_EQ(device[i], content(handle.round, i / kBlock)) << "round " << handle.round << ", byte " << i;
  }
}

// A decode sidecar, adopting until stopped: first it locks the byte, then it looks at the event.
void adopt(const std::string& segment_path, const std::string& leases_path, Adopter& self) {
  const auto segment = SlabPool::attach(segment_path);
  const auto leases = EventTable::attach(leases_path);
  const ByteLocks locks(leases_path);
  CopyLane lane("adopt", 4096);
  while (const auto handle = self.wire.receive()) {
    locks.share(handle->slot);
    if (leases->open(handle->slot, handle->generation)->done()) {
      EXPECT_NE(handle->recall, Recall::kWhileRead);
      ++self.stale;
    } else {
      EXPECT_NE(handle->recall, Recall::kBefore);
      self.reading = handle->round;
      self.reading.notify_all();
      read_whole(lane, *segment, *handle);
      ++self.whole;
    }
    locks.release(handle->slot);
  }
  lane.close();
}

}  // namespace

TEST(Protocol, BlocksHandedOffAreReadWholeAndNeverUsedAgainTooEarly) {
  const std::string prefix = "/dev/shm/aegaeon-cpp-protocol-" + std::to_string(::getpid());
  const auto segment = SlabPool::create_shared(prefix + ".kv", kSlab, kSlabs);
  const auto leases = EventTable::create(prefix + ".leases", 64);
  BlockPool blocks(segment, kBlock, kSlabs);
  Lending lending(blocks, prefix + ".leases");
  CopyLane out("swap-out", 4096);
  std::vector<Adopter> adopters(kAdopters);
  std::vector<std::thread> threads;
  for (auto& adopter : adopters) {
    threads.emplace_back([&] { adopt(prefix + ".kv", prefix + ".leases", adopter); });
  }
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Block> mine(1 + static_cast<std::size_t>(round) % 3);
    while (blocks.capacity() - blocks.used() < mine.size()) {
      lending.reclaim();
      std::this_thread::yield();
    }
    blocks.allocate(mine, kSlabs);
    std::vector<std::byte> device(mine.size() * kBlock);
    std::vector<std::int32_t> from(mine.size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      from[i] = static_cast<std::int32_t>(i);
      std::fill_n(device.begin() + static_cast<std::ptrdiff_t>(i * kBlock), kBlock, content(round, i));
    }
    out.copy_blocks(bytes_at(blocks.address()), device.data(), kBlock, mine, from);
    ASSERT_TRUE(out.synchronize(10s));  // a handle is sent after the swap-out
    const auto recall = static_cast<Recall>(round % 3);
    auto lease = leases->event();
    Handle handle{round, recall, mine, blocks.slabs(), lease->slot(), lease->generation()};
    Adopter& adopter = adopters[static_cast<std::size_t>(round) % kAdopters];
    if (recall == Recall::kBefore) {
      lending.recall(mine, std::move(lease));
      adopter.wire.send(std::move(handle));
    } else {
      adopter.wire.send(std::move(handle));
      for (int now = adopter.reading; recall == Recall::kWhileRead && now != round; now = adopter.reading) {
        adopter.reading.wait(now);
      }
      lending.recall(mine, std::move(lease));  // Close
    }
    blocks.check();
  }
  for (auto& adopter : adopters) adopter.wire.send(std::nullopt);
  for (auto& thread : threads) thread.join();
  out.close();
  EXPECT_EQ(lending.reclaim(), 0u);
  int whole = 0;
  int stale = 0;
  for (const auto& adopter : adopters) {
    whole += adopter.whole;
    stale += adopter.stale;
  }
  EXPECT_EQ(whole + stale, kRounds);
  EXPECT_GE(whole, kRounds / 3);
  EXPECT_GE(stale, kRounds / 3);
  EXPECT_EQ(blocks.used(), 0u);
  EXPECT_EQ(segment->free(), kSlabs);
  EXPECT_EQ(leases->in_use(), 0u);
  segment->close();
  leases->close();
}

// Both sides of many events at once, each through its own mapping: no wake-up is lost, whichever side is first.
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
