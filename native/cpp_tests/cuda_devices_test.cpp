// Two GPUs, one after another lost, slow, or lacking what others have: what the CUDA tier makes of each.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <cstring>

#include "aegaeon/errors.hpp"
#include "cuda_rig.hpp"

using namespace cuda_rig;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr int kReadOnlyLocks = 113;

std::string said(CopyLane& lane) {
  try {
    while (!lane.synchronize(1s)) {
    }
  } catch (const NativeError& error) {
    return error.what();
  }
  return "";
}

bool illegal(const std::string& text) { return text.find("CUDA error 700") != std::string::npos; }

// Addresses without pages: the double looks at them, and locks none.
class Huge {
 public:
  explicit Huge(std::size_t size)
      : bytes(size),
        base_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Huge() { ::munmap(base_, bytes); }
  Huge(const Huge&) = delete;
  Huge& operator=(const Huge&) = delete;
  std::byte* base() const { return static_cast<std::byte*>(base_); }

  const std::size_t bytes;

 private:
  void* const base_;
};

class CudaDevices : public Cuda {};
class CudaPageLocks : public Cuda {};

}  // namespace

// Without the context of its device on the lane's thread (Active), or with access for the first GPU alone, it throws.
TEST_F(CudaDevices, AnEngineOfTheSecondGpuHasItsMemoryAndItsStreamsThere) {
  const auto first = open(0);
  const auto second = open(1);
  const auto pool = device_pool(second, 4);
  const auto host = host_pool(second, 4);
  EXPECT_EQ(first->free_bytes(), first->total_bytes());
  EXPECT_EQ(second->free_bytes(), second->total_bytes() - 4 * kSlab);
  Range range(pool, 4);
  EXPECT_EQ(range.device(), 1);
  range.map(0, std::vector<Slab>{3, 1, 0, 2});
  auto* source = reinterpret_cast<std::byte*>(host->address());
  std::memset(source, 7, 4 * kSlab);
  auto lane = lane_of(second);
  lane.copy(range.at(0, 4 * kSlab), source, 4 * kSlab);
  ASSERT_TRUE(lane.synchronize(10s));
  EXPECT_EQ(*range.at(4 * kSlab - 1, 1), std::byte{7});
  EXPECT_EQ(fake_pageable(), 0u);
}

TEST_F(CudaDevices, ALaneOfAnotherGpuIsLostByWhatItCannotReachAndTheOthersGoOn) {
  const auto first = open(0);
  const auto second = open(1);
  const auto pool = device_pool(second, 1);
  const auto host = host_pool(second, 1);
  Range range(pool, 1);
  range.map(0, std::vector<Slab>{0});
  const auto* source = reinterpret_cast<const std::byte*>(host->address());
  auto wrong = lane_of(first);
  auto right = lane_of(second);
  wrong.copy(range.at(0, kSlab), source, kSlab);
  EXPECT_TRUE(illegal(said(wrong)));
  EXPECT_THROW(lane_of(first), NativeError) << "a lost context does nothing more";
  right.copy(range.at(0, kSlab), source, kSlab);
  EXPECT_EQ(said(right), "");
}

// The double's own: what makes it find copies that no thread waits for, in tests of whatever calls lanes.
TEST_F(CudaDevices, ALateStreamCopiesNothingBeforeSomebodyWaitsAndThenFromWhatIsThere) {
  const auto device = open();
  const auto pool = device_pool(device, 1);
  const auto host = host_pool(device, 1);
  const auto events = EventTable::create_private(2);
  Range range(pool, 1);
  range.map(0, std::vector<Slab>{0});
  auto* source = reinterpret_cast<std::byte*>(host->address());
  cuda::StreamMover mover(device);
  fake_late(true);
  mover.copy(range.at(0, kChunk), source, kChunk, kChunk);
  EXPECT_EQ(*range.at(0, 1), std::byte{0});
  source[0] = std::byte{9};
  mover.finish();
  EXPECT_EQ(*range.at(0, 1), std::byte{9});
  mover.copy(range.at(0, kChunk), source, kChunk, kChunk);
  range.unmap(0, 1);
  EXPECT_THROW(mover.finish(), NativeError) << "it was unmapped under the copy";
}

TEST_F(CudaDevices, AnotherUnitOfMemoryIsKeptToAndMemoryOfOthersIsNotOurs) {
  fake_granularity(1, 2 * kSlab);
  EXPECT_THROW(device_pool(open(1), 1), NativeError);
  const auto device = open(0);
  fake_take(0, device->total_bytes() - 3 * kSlab);
  EXPECT_EQ(device->free_bytes(), 3 * kSlab);
  EXPECT_THROW(device_pool(device, 4), NativeError);
  device_pool(device, 3);
}

// Locked in one call, the longest lock is all of it.
TEST_F(CudaPageLocks, NoCallLocksMoreThanAPiece) {
  const auto device = open();
  const Huge huge(600 * kMiB);
  device->lock_pages(huge.base(), huge.bytes, false);
  EXPECT_EQ(fake_live().locked, 3);
  EXPECT_EQ(fake_longest_lock(), 256 * kMiB);
  EXPECT_THROW(device->lock_pages(huge.base(), huge.bytes, false), NativeError);
  device->unlock_pages(huge.base());
  device->unlock_pages(huge.base());
  EXPECT_EQ(fake_live().locked, 0);
}

TEST_F(CudaPageLocks, AFailedPieceUndoesThoseBeforeIt) {
  const auto device = open();
  const Huge huge(600 * kMiB);
  fake_fail("cuMemHostRegister_v2", 2, 2);
  EXPECT_THROW(device->lock_pages(huge.base(), huge.bytes, false), NativeError);
  EXPECT_EQ(fake_live().locked, 0);
  device->lock_pages(huge.base(), huge.bytes, false);
  device->unlock_pages(huge.base());
}

// By the lanes of both GPUs, the first of which has locked it; joined or not, no copy lies in two pieces.
TEST_F(CudaPageLocks, CopiesAreCutWhereAPieceEnds) {
  const auto first = open(0);
  const auto second = open(1);
  const Huge huge(300 * kMiB);
  first->lock_pages(huge.base(), huge.bytes, false);
  const auto pool = device_pool(second, 2);
  Range range(pool, 2);
  range.map(0, std::vector<Slab>{1, 0});
  std::byte* source = huge.base() + 256 * kMiB - kSlab;
  for (std::size_t i = 0; i < 2 * kSlab; i += 4096) source[i] = static_cast<std::byte>(i / 4096);
  auto lane = lane_of(second, 2 * kSlab);
  lane.copy(range.at(0, 2 * kSlab), source, 2 * kSlab);
  EXPECT_EQ(said(lane), "");
  EXPECT_EQ(std::memcmp(range.at(0, 2 * kSlab), source, 2 * kSlab), 0);
  lane.copy_blocks(range.at(0, 2 * kSlab), source, kSlab, {0, 1}, {0, 1});
  EXPECT_EQ(said(lane), "");
  EXPECT_EQ(fake_pageable(), 0u);
  first->unlock_pages(huge.base());
}

// Attached for reading where the GPU has no such locks, the pages are not locked, and every copy is a pageable one.
class CudaAttached : public Cuda, public testing::WithParamInterface<bool> {};

TEST_P(CudaAttached, AnothersSegmentIsLockedWhateverLocksTheGpuHas) {
  fake_attribute(0, kReadOnlyLocks, GetParam());
  const auto device = open();
  EXPECT_EQ(device->locks_read_only(), GetParam());
  const std::string path = fresh_path();
  const auto theirs = SlabPool::create_shared(path, kSlab, 2);
  const auto ours = SlabPool::attach(path, cuda::locking(device), !device->locks_read_only());
  EXPECT_EQ(fake_live().locked, 1);
  const auto pool = device_pool(device, 1);
  Range range(pool, 1);
  range.map(0, std::vector<Slab>{0});
  reinterpret_cast<std::byte*>(theirs->address())[kSlab] = std::byte{5};
  auto lane = lane_of(device);
  lane.copy(range.at(0, kSlab), reinterpret_cast<const std::byte*>(ours->address()) + kSlab, kSlab);
  EXPECT_EQ(said(lane), "");
  EXPECT_EQ(*range.at(0, 1), std::byte{5});
  EXPECT_EQ(fake_pageable(), 0u);
}

INSTANTIATE_TEST_SUITE_P(ByAttribute, CudaAttached, testing::Bool());

TEST_F(CudaPageLocks, PagesThatTheKernelPinsForNobodyAreRefused) {
  const auto device = open();
  const std::string path = fresh_path();
  const auto theirs = SlabPool::create_shared(path, kSlab, 1);
  EXPECT_THROW(SlabPool::attach(path, cuda::locking(device)), NativeError) << "it is mapped for reading";
  struct statfs system{};
  ASSERT_EQ(::statfs(testing::TempDir().c_str(), &system), 0);
  if (system.f_type == 0x01021994) GTEST_SKIP() << "the folder of temporary files is a tmpfs";
  const std::string on_disk = fresh_path(testing::TempDir());
  EXPECT_THROW(SlabPool::create_shared(on_disk, kSlab, 1, cuda::locking(device)), NativeError);
}
