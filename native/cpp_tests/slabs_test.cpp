#include "aegaeon/slabs.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "aegaeon/errors.hpp"
#include "aegaeon/files.hpp"
#include "aegaeon/range.hpp"

using namespace aegaeon;

namespace {

constexpr std::size_t kSlab = 65536;

std::string shared_path(const char* name) { return "/dev/shm/aegaeon-cpp-" + std::to_string(::getpid()) + "-" + name; }

}  // namespace

TEST(SlabPool, HandsOutTheLowestSlabsAndTakesThemBack) {
  const auto pool = SlabPool::create_private("test", kSlab, 8);
  EXPECT_EQ(pool->take(3), (std::vector<Slab>{0, 1, 2}));
  pool->give(std::vector<Slab>{1});
  EXPECT_EQ(pool->take(2), (std::vector<Slab>{1, 3}));
  EXPECT_EQ(pool->free(), 4u);
  pool->check();
}

TEST(SlabPool, KeptSlabsAreTakenLastAndReclaimedUnlessTaken) {
  const auto pool = SlabPool::create_private("test", kSlab, 8);
  const auto first = pool->take(3);
  const auto second = pool->take(2);
  const std::uint64_t older = pool->keep(first);
  const std::uint64_t newer = pool->keep(second);
  EXPECT_EQ(pool->free(), 8u);
  EXPECT_EQ(pool->kept(), 5u);
  EXPECT_EQ(pool->take(3), (std::vector<Slab>{5, 6, 7}));
  EXPECT_EQ(pool->take(1), (std::vector<Slab>{2}));
  pool->check();
  EXPECT_EQ(pool->reclaim(older), (std::vector<Slab>{0, 1}));
  EXPECT_EQ(pool->reclaim(older), std::vector<Slab>{});
  EXPECT_EQ(pool->reclaim(newer), second);
  EXPECT_EQ(pool->free(), 0u);
  EXPECT_THROW(pool->take(1), OutOfSlabs);
  pool->check();
}

TEST(SlabPool, ATicketIsWorthNothingWhenAllItsSlabsAreTaken) {
  const auto pool = SlabPool::create_private("test", kSlab, 4);
  const std::uint64_t ticket = pool->keep(pool->take(2));
  pool->give(pool->take(4));
  EXPECT_EQ(pool->reclaim(ticket), std::vector<Slab>{});
  EXPECT_EQ(pool->keep({}), 0u);
  EXPECT_EQ(pool->reclaim(0), std::vector<Slab>{});
  pool->check();
}

TEST(SlabPool, KeptSlabsCannotBeGivenOrKeptAgain) {
  const auto pool = SlabPool::create_private("test", kSlab, 4);
  const auto slabs = pool->take(2);
  pool->keep(slabs);
  EXPECT_THROW(pool->give(slabs), NativeError);
  EXPECT_THROW(pool->keep(slabs), NativeError);
  EXPECT_EQ(pool->free(), 4u);
  pool->check();
}

TEST(SlabPool, TakesNothingWhenThereAreTooFew) {
  const auto pool = SlabPool::create_private("test", kSlab, 4);
  EXPECT_THROW(pool->take(5), OutOfSlabs);
  EXPECT_EQ(pool->free(), 4u);
}

TEST(SlabPool, GivesNothingWhenOneIsFreeAlreadyOrForeign) {
  const auto pool = SlabPool::create_private("test", kSlab, 4);
  pool->take(3);
  for (const std::vector<Slab>& wrong : {std::vector<Slab>{0, 3}, {1, 1}, {2, -1}, {0, 4}}) {
    EXPECT_THROW(pool->give(wrong), NativeError);
    EXPECT_EQ(pool->free(), 1u);
    pool->check();
  }
}

TEST(SlabPool, ConservesSlabsUnderThreads) {
  const auto pool = SlabPool::create_private("test", kSlab, 64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool] {
      for (std::size_t i = 0; i < 2000; ++i) pool->give(pool->take(1 + i % 16));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool->free(), 64u);
  pool->check();
}

TEST(SlabPool, RefusesSizesThatCannotBeMapped) {
  EXPECT_THROW(SlabPool::create_private("test", 1000, 4), NativeError);
  EXPECT_THROW(SlabPool::create_private("test", kSlab, 0), NativeError);
  EXPECT_THROW(SlabPool::create_private("test", kSlab, std::size_t{1} << 60), NativeError);
}

TEST(SlabPool, SaysAtCreationThatTheFileSystemIsTooSmall) {
  const std::string path = shared_path("small");
  EXPECT_THROW(SlabPool::create_shared(path, std::size_t{1} << 30, 4096), NativeError);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SlabPool, IsReadThroughAnotherMappingAndRemovesItsFile) {
  const std::string path = shared_path("pool");
  const auto pool = SlabPool::create_shared(path, kSlab, 4);
  const auto other = SlabPool::attach(path);
  EXPECT_EQ(other->total(), 4u);
  EXPECT_EQ(other->slab_bytes(), kSlab);
  reinterpret_cast<char*>(pool->address())[3 * kSlab] = 'x';
  EXPECT_EQ(reinterpret_cast<const char*>(other->address())[3 * kSlab], 'x');
  EXPECT_THROW(other->take(1), NativeError);
  EXPECT_THROW(SlabPool::create_shared(path, kSlab, 4), NativeError);  // a living process holds it
  other->close();
  EXPECT_TRUE(std::filesystem::exists(path));
  pool->close();
  pool->close();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THROW(pool->take(1), NativeError);
}

TEST(SlabPool, ReplacesTheFileOfADeadCreatorAndRefusesToAttachToIt) {
  const std::string path = shared_path("stale");
  const Fd stale(::open(path.c_str(), O_CREAT | O_RDWR, 0600));
  ASSERT_EQ(::ftruncate(stale.get(), 8192), 0);
  EXPECT_THROW(SlabPool::attach(path), NativeError);
  SlabPool::create_shared(path, kSlab, 2)->close();
  EXPECT_FALSE(std::filesystem::exists(path));
}
