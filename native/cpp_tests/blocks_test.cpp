#include "aegaeon/blocks.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "aegaeon/errors.hpp"

using namespace aegaeon;

namespace {

constexpr std::size_t kSlab = 65536;

std::vector<Block> allocate(BlockPool& pool, std::size_t count, std::size_t grant) {
  std::vector<Block> blocks(count);
  pool.allocate(blocks, grant);
  return blocks;
}

}  // namespace

TEST(BlockPool, MapsOnlyWithinItsGrantAndChangesNothingOtherwise) {
  const auto slabs = SlabPool::create_private("test", kSlab, 4);
  BlockPool pool(slabs, kSlab / 2, 4);
  EXPECT_EQ(pool.slabs_for(3), 2u);
  EXPECT_THROW(allocate(pool, 3, 1), OutOfSlabs);
  EXPECT_EQ(slabs->free(), 4u);
  EXPECT_EQ(allocate(pool, 3, 2), (std::vector<Block>{0, 1, 2}));
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_THROW(allocate(pool, 6, 9), OutOfSlabs);
  EXPECT_EQ(pool.used(), 3u);
  pool.check();
}

TEST(BlockPool, GivesEmptySlabsBackAtOnceAlsoFromTheMiddle) {
  const auto slabs = SlabPool::create_private("test", kSlab, 4);
  BlockPool pool(slabs, kSlab / 2, 4);
  allocate(pool, 6, 3);
  EXPECT_EQ(pool.release(std::vector<Block>{2, 3}), 1u);
  EXPECT_EQ(pool.slabs(), (std::vector<Slab>{0, kNoSlab, 2}));
  EXPECT_EQ(allocate(pool, 1, 1), (std::vector<Block>{2}));
  pool.check();
}

TEST(BlockPool, KeepsBothSlabsOfABlockThatCrossesTheirBorder) {
  const auto slabs = SlabPool::create_private("test", kSlab, 4);
  BlockPool pool(slabs, kSlab * 2 / 3, 4);
  const auto blocks = allocate(pool, 2, 2);
  EXPECT_EQ(pool.mapped_slabs(), 2u);
  EXPECT_EQ(pool.release(std::vector<Block>{0}), 0u);
  std::memset(reinterpret_cast<char*>(pool.address()) + pool.block_bytes(), 1, pool.block_bytes());
  EXPECT_EQ(pool.release(std::vector<Block>{1}), 2u);
  pool.check();
}

TEST(BlockPool, CountsReferencesAndRefusesUnheldBlocks) {
  const auto slabs = SlabPool::create_private("test", kSlab, 2);
  BlockPool pool(slabs, 4096, 2);
  const auto blocks = allocate(pool, 2, 1);
  pool.retain(blocks, 0);
  EXPECT_EQ(pool.release(blocks), 0u);
  EXPECT_THROW(pool.release(std::vector<Block>{0, 1, 0}), NativeError);
  EXPECT_THROW(pool.release(std::vector<Block>{7}), NativeError);
  EXPECT_THROW(pool.release(std::vector<Block>{-1}), NativeError);
  EXPECT_EQ(pool.used(), 2u);
  pool.check();
  pool.retain(std::vector<Block>{0}, 0);
  EXPECT_EQ(pool.release(std::vector<Block>{0, 0, 1}), 1u);
  pool.check();
}

TEST(BlockPool, CachedBlocksKeepTheirSlabsAndCountAsFree) {
  const auto slabs = SlabPool::create_private("test", kSlab, 4);
  BlockPool pool(slabs, kSlab / 2, 4);
  const auto blocks = allocate(pool, 5, 3);
  pool.keep(std::vector<Block>{1, 2, 3});
  EXPECT_EQ(pool.release(std::vector<Block>{0, 1, 2, 3}), 0u);  // 0 is free, but 1 is cached in the same slab
  EXPECT_EQ(pool.cached(false), (std::vector<Block>{1, 2, 3}));
  EXPECT_TRUE(pool.cached(true).empty());  // no held block touches the slab of 3
  EXPECT_EQ(pool.cached_positions(), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(pool.held_slabs(), 1u);
  EXPECT_EQ(pool.free(), 1u);
  pool.check();
  EXPECT_THROW(pool.retain(std::vector<Block>{2}, 0), OutOfSlabs);
  pool.retain(std::vector<Block>{2}, 1);
  EXPECT_EQ(pool.free(), 2u);
  EXPECT_EQ(pool.forget(std::vector<Block>{1}), 1u);
  EXPECT_EQ(pool.forget(std::vector<Block>{2, 3}), 0u);
  EXPECT_EQ(pool.release(std::vector<Block>{2}), 1u);
  EXPECT_THROW(pool.retain(std::vector<Block>{2}, 9), NativeError);
  pool.check();
}

TEST(BlockPool, CachedBlocksAreNotGivenOut) {
  const auto slabs = SlabPool::create_private("test", kSlab, 2);
  BlockPool pool(slabs, kSlab / 2, 2);
  const auto blocks = allocate(pool, 3, 2);
  pool.keep(blocks);
  pool.release(blocks);
  EXPECT_THROW(allocate(pool, 2, 2), OutOfSlabs);
  EXPECT_EQ(allocate(pool, 1, 2), (std::vector<Block>{3}));
  EXPECT_THROW(pool.keep(std::vector<Block>{0}), NativeError);
  pool.check();
}

TEST(BlockPool, CloseGivesEverythingBack) {
  const auto slabs = SlabPool::create_private("test", kSlab, 2);
  BlockPool pool(slabs, 4096, 2);
  allocate(pool, 20, 2);
  pool.close();
  pool.close();
  EXPECT_EQ(slabs->free(), 2u);
  EXPECT_THROW(allocate(pool, 1, 1), NativeError);
  pool.check();
  slabs->check();
}

TEST(BlockPool, ShapesOfAnySizeShareOnePoolUnderRandomUse) {
  const auto slabs = SlabPool::create_private("test", kSlab, 24);
  std::vector<std::unique_ptr<BlockPool>> pools;
  for (const std::size_t bytes : {3000, 4096, 40000, 65536, 100000, 150000}) {
    pools.push_back(std::make_unique<BlockPool>(slabs, bytes, 24));
  }
  std::vector<std::pair<BlockPool*, std::vector<Block>>> held;
  std::mt19937 random(1);
  for (int step = 0; step < 1500; ++step) {
    auto& pool = *pools[random() % pools.size()];
    const std::size_t count = 1 + random() % 9;
    if (held.empty() || random() % 2 == 0) {
      try {
        const std::size_t need = pool.slabs_for(count);
        const std::size_t before = pool.held_slabs();
        held.emplace_back(&pool, allocate(pool, count, need));
        ASSERT_EQ(pool.held_slabs(), before + need);
      } catch (const OutOfSlabs&) {
        pool.forget(pool.cached(false));
      }
    } else {
      if (random() % 2 == 0) held.back().first->keep(held.back().second);
      std::swap(held[random() % held.size()], held.back());
      held.back().first->release(held.back().second);
      held.pop_back();
    }
    pool.check();
    slabs->check();
  }
}

TEST(BlockPool, IsThreadSafe) {
  const auto slabs = SlabPool::create_private("test", kSlab, 16);
  BlockPool pool(slabs, 5000, 16);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool] {
      for (std::size_t i = 0; i < 500; ++i) {
        const auto blocks = allocate(pool, 1 + i % 40, 16);
        for (const Block block : blocks) {
          reinterpret_cast<char*>(pool.address())[static_cast<std::size_t>(block) * pool.block_bytes()] = 1;
        }
        pool.release(blocks);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  pool.check();
  EXPECT_EQ(slabs->free(), 16u);
}
