// The CUDA tier over the fake driver: its books, its order of calls and what it does when one fails.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "aegaeon/errors.hpp"
#include "cuda_rig.hpp"

using namespace cuda_rig;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kManyBlocks = 1 << 20;
constexpr int kOutOfMemory = 2, kInvalid = 1;

std::byte* bytes_of(const BlockPool& pool) { return reinterpret_cast<std::byte*>(pool.address()); }

std::vector<Block> taken(BlockPool& pool, std::size_t count) {
  std::vector<Block> blocks(count);
  pool.allocate(blocks, 64);
  return blocks;
}

std::byte stamp(std::size_t block, std::size_t byte) { return static_cast<std::byte>(block * 31 + byte * 7 + 1); }

}  // namespace

TEST_F(Cuda, IsRefusedInASentenceWhereThereIsNoDriver) {
  try {
    cuda::Device(0, "libno-such-driver.so.1");
    FAIL();
  } catch (const NativeError& error) {
    EXPECT_NE(std::string(error.what()).find("driver cannot be loaded"), std::string::npos);
  }
  EXPECT_THROW(open(2), NativeError);
}

TEST_F(Cuda, ARangeKeepsItsAddressesAndASlabItsBytes) {
  const auto pool = device_pool(open(), 4);
  Range range(pool, 3);
  auto* bytes = reinterpret_cast<char*>(range.address());
  range.map(0, std::vector<Slab>{2, 0});
  bytes[0] = 'a';
  bytes[kSlab] = 'b';
  EXPECT_EQ(range.unmap(0, 2), (std::vector<Slab>{2, 0}));
  range.map(1, std::vector<Slab>{2, 0});
  EXPECT_EQ(bytes[kSlab], 'a');
  EXPECT_EQ(bytes[2 * kSlab], 'b');
  EXPECT_EQ(range.device(), 0);
}

TEST_F(Cuda, SeveralRangesMayMapTheSameSlab) {
  const auto pool = device_pool(open(), 2);
  Range one(pool, 2);
  Range other(pool, 1);
  one.map(0, std::vector<Slab>{1});
  other.map(0, std::vector<Slab>{1});
  *reinterpret_cast<char*>(one.address()) = 'x';
  EXPECT_EQ(*reinterpret_cast<char*>(other.address()), 'x');
}

TEST_F(Cuda, ASlabSizeBesideTheUnitOfTheGpuIsRefused) {
  EXPECT_THROW(cuda::DeviceStore(open(), 65536, 1), NativeError);
}

TEST_F(Cuda, APoolThatDoesNotFitLeavesNothingBehind) {
  const auto device = open();
  fake_fail("cuMemCreate", kOutOfMemory, 2);
  try {
    device_pool(device, 4);
    FAIL();
  } catch (const NativeError& error) {
    EXPECT_NE(std::string(error.what()).find("room for 2 of 4 slabs"), std::string::npos);
  }
  EXPECT_EQ(fake_live().handles, 0);
}

TEST_F(Cuda, AFailedMapIsUndoneWhicheverCallFails) {
  const auto pool = device_pool(open(), 4);
  Range range(pool, 4);
  for (const char* call : {"cuMemMap", "cuMemSetAccess"}) {
    for (int skip = 0; skip < 2; ++skip) {
      fake_fail(call, kOutOfMemory, skip);
      EXPECT_THROW(range.map(0, std::vector<Slab>{0, 1, 3}), NativeError) << call;
      EXPECT_EQ(range.mapped(), 0u);
      EXPECT_EQ(fake_live().mappings, 0);
    }
  }
  range.map(0, std::vector<Slab>{0, 1, 3});
}

TEST_F(Cuda, BlocksTakeNoSlabWhenMappingFails) {
  const auto pool = device_pool(open(), 4);
  BlockPool blocks(pool, 100'000, 4);
  fake_fail("cuMemMap", kOutOfMemory, 1);
  EXPECT_THROW(taken(blocks, 30), NativeError);
  EXPECT_EQ(pool->free(), 4u);
  blocks.check();
  EXPECT_EQ(blocks.release(taken(blocks, 30)), 2u);
  pool->check();
}

TEST_F(Cuda, AClosedPoolMapsNothingAndGivesItsMemoryBack) {
  const auto device = open();
  const auto pool = device_pool(device, 2);
  Range range(pool, 2);
  range.map(0, std::vector<Slab>{0});
  pool->close();
  EXPECT_EQ(fake_live().handles, 0);
  EXPECT_THROW(range.map(1, std::vector<Slab>{1}), NativeError);
  *reinterpret_cast<char*>(range.address()) = 1;  // what is mapped stays until it is unmapped
}

TEST_F(Cuda, ALaneCopiesThereAndBackAndRecordsWhenTheBytesAreThere) {
  const auto device = open();
  const auto pool = device_pool(device, 1);
  const auto events = EventTable::create_private(2);
  Range range(pool, 1);
  range.map(0, std::vector<Slab>{0});
  constexpr std::size_t kBytes = 1'000'003;
  Locked source(device, kBytes), target(device, kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) source.bytes[i] = stamp(0, i);
  auto lane = lane_of(device);
  fake_hold(true);
  const auto event = events->event();
  lane.copy(range.at(0, kBytes), source.bytes.data(), kBytes);
  lane.copy(target.bytes.data(), range.at(0, kBytes), kBytes);
  lane.record(event);
  EXPECT_FALSE(event->wait_for(20ms));
  EXPECT_FALSE(lane.synchronize(1ms));
  fake_hold(false);
  ASSERT_TRUE(event->wait_for(10s));
  EXPECT_EQ(target.bytes, source.bytes);
}

TEST_F(Cuda, ACancelledCopyStopsWithinTheChunksInFlight) {
  const auto device = open();
  constexpr std::size_t kBytes = 64 * kChunk;
  Locked source(device, kBytes, std::byte{1}), target(device, kBytes);
  auto lane = lane_of(device);
  fake_hold(true);
  lane.copy(target.bytes.data(), source.bytes.data(), kBytes, 7);
  while (lane.bytes_copied() < 4 * kChunk) std::this_thread::yield();
  lane.cancel(7);
  fake_hold(false);
  ASSERT_TRUE(lane.synchronize(10s));
  EXPECT_TRUE(lane.cancelled(7));
  EXPECT_LE(lane.bytes_copied(), 6 * kChunk);
  const auto begin = target.bytes.begin();
  const auto end = begin + static_cast<std::ptrdiff_t>(lane.bytes_copied());
  EXPECT_TRUE(std::all_of(begin, end, [](std::byte b) { return b == std::byte{1}; }));
  EXPECT_TRUE(std::all_of(end, target.bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(Cuda, ALongCopyLetsOtherStreamsInAfterEachBurst) {
  fake_late(true);
  const auto device = open();
  constexpr std::size_t kBytes = 64 * kChunk, kBurst = 8 * kChunk;
  Locked source(device, kBytes, std::byte{1}), target(device, kBytes);
  auto lane = lane_of(device, kChunk, kBurst);
  lane.copy(target.bytes.data(), source.bytes.data(), kBytes);
  ASSERT_TRUE(lane.synchronize(10s));
  EXPECT_EQ(target.bytes, source.bytes);
  EXPECT_EQ(fake_longest_burst(), kBurst);
}

// Blocks of 3 MiB / 32 cross the borders of slabs; the host's pages are locked where the pool is mapped linearly.
class CudaBlocks : public Cuda, public testing::WithParamInterface<std::tuple<std::size_t, bool>> {};

TEST_P(CudaBlocks, MoveBetweenDeviceAndLockedHostWholeAndToTheirPlaces) {
  const auto [block_bytes, late] = GetParam();
  fake_late(late);
  const auto device = open();
  const auto on_device = device_pool(device, 4);
  const auto on_host = host_pool(device, 4);
  BlockPool here(on_device, block_bytes, 4);
  BlockPool there(on_host, block_bytes, 4);
  const auto decoys = taken(there, 3);  // the ids of the two sides differ
  const auto from = taken(here, 40);
  const auto to = taken(there, 40);
  const auto again = taken(here, 40);
  for (const Block block : from) {
    for (std::size_t i = 0; i < block_bytes; ++i) {
      bytes_of(here)[static_cast<std::size_t>(block) * block_bytes + i] = stamp(static_cast<std::size_t>(block), i);
    }
  }
  std::vector<Block> shuffled = to;
  std::shuffle(shuffled.begin(), shuffled.end(), std::minstd_rand(1));
  auto lane = lane_of(device, kManyBlocks);
  lane.copy_blocks(bytes_of(there), bytes_of(here), block_bytes, shuffled, from);
  lane.copy_blocks(bytes_of(here), bytes_of(there), block_bytes, again, shuffled);
  ASSERT_TRUE(lane.synchronize(10s));
  EXPECT_EQ(fake_pageable(), 0u);
  const bool same = std::equal(from.begin(), from.end(), again.begin(), [&](Block a, Block b) {
    const auto* first = bytes_of(here) + static_cast<std::size_t>(a) * block_bytes;
    const auto* second = bytes_of(here) + static_cast<std::size_t>(b) * block_bytes;
    return std::memcmp(first, second, block_bytes) == 0 && *first == stamp(static_cast<std::size_t>(a), 0);
  });
  EXPECT_TRUE(same);
  there.release(decoys);
}

INSTANTIATE_TEST_SUITE_P(BySizeAndOrder, CudaBlocks,
                         testing::Combine(testing::Values(98304, 65536, 40001), testing::Bool()));

TEST_F(Cuda, AFailedCopyIsToldByTheNextCallAndNothingRunsBehindIt) {
  const auto device = open();
  Locked source(device, 200'000, std::byte{1}), target(device, 200'000);
  auto lane = lane_of(device);
  fake_fail("cuMemcpyAsync", kInvalid, 1);
  lane.copy(target.bytes.data(), source.bytes.data(), source.bytes.size());
  EXPECT_THROW(while (!lane.synchronize(1ms)){}, NativeError);
  EXPECT_EQ(target.bytes[0], std::byte{1});  // the chunk before it had ended when the failure was reported
  EXPECT_EQ(target.bytes[150'000], std::byte{0});
}

TEST_F(Cuda, PagesAreUnlockedOnceAndRangesForgotten) {
  const auto device = open();
  const auto pool = host_pool(device, 2);
  {
    Range range(pool, 2);
    range.map(0, std::vector<Slab>{1, 0});
    const auto* base = reinterpret_cast<std::byte*>(pool->address());
    const auto reach = device->book().find(range.at(0, 1) + 100, kSlab);
    EXPECT_EQ(reach.target, base + kSlab + 100);
    EXPECT_EQ(reach.bytes, kSlab - 100);
    EXPECT_EQ(device->book().size(), 3u);
  }
  EXPECT_EQ(device->book().size(), 1u);
  pool->close();
  pool->close();
  EXPECT_EQ(fake_live().locked, 0);
}

TEST_F(Cuda, LanesMapsAndUnmapsRunSideBySide) {
  const auto device = open();
  const auto pool = device_pool(device, 12);
  const auto host = host_pool(device, 12);
  const auto work = [&](std::size_t seed) {
    BlockPool here(pool, 98304, 4);
    BlockPool there(host, 98304, 4);
    auto lane = lane_of(device, kManyBlocks);
    std::minstd_rand random(static_cast<unsigned>(seed));
    for (int round = 0; round < 20; ++round) {
      const std::size_t count = 1 + random() % 60;
      const auto from = taken(here, count);
      const auto to = taken(there, count);
      std::memset(bytes_of(here) + static_cast<std::size_t>(from.back()) * 98304, static_cast<int>(seed), 98304);
      lane.copy_blocks(bytes_of(there), bytes_of(here), 98304, to, from);
      ASSERT_TRUE(lane.synchronize(10s));
      EXPECT_EQ(bytes_of(there)[static_cast<std::size_t>(to.back()) * 98304 + 98303], static_cast<std::byte>(seed));
      here.release(from);
      there.release(to);
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t seed = 1; seed <= 3; ++seed) threads.emplace_back(work, seed);
  threads.clear();
  pool->check();
  host->check();
  EXPECT_EQ(fake_live().mappings, 0);
}
