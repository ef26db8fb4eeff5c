#include "aegaeon/range.hpp"

#include <gtest/gtest.h>

#include "aegaeon/errors.hpp"

using namespace aegaeon;

namespace {
constexpr std::size_t kSlab = 65536;
}

TEST(Range, KeepsItsAddressesWhileSlabsComeAndGo) {
  const auto pool = SlabPool::create_private("test", kSlab, 4);
  Range range(pool, 3);
  auto* bytes = reinterpret_cast<char*>(range.address());
  range.map(0, std::vector<Slab>{2, 0});
  bytes[0] = 'a';
  bytes[kSlab] = 'b';
  EXPECT_EQ(range.unmap(0, 2), (std::vector<Slab>{2, 0}));
  EXPECT_EQ(range.mapped(), 0u);
  range.map(1, std::vector<Slab>{2});
  EXPECT_EQ(bytes[kSlab], 'a');
}

TEST(Range, LeavesHolesAloneAndReportsItsLayout) {
  const auto pool = SlabPool::create_private("test", kSlab, 4);
  Range range(pool, 3);
  range.map(0, std::vector<Slab>{1, kNoSlab, 3});
  EXPECT_EQ(range.layout(), (std::vector<Slab>{1, kNoSlab, 3}));
  EXPECT_EQ(range.mapped(), 2u);
  range.map(1, std::vector<Slab>{0});
  EXPECT_EQ(range.mapped(), 3u);
}

TEST(Range, RefusesWhatWouldOverwriteOrOverrunAndChangesNothing) {
  const auto pool = SlabPool::create_private("test", kSlab, 4);
  Range range(pool, 3);
  range.map(1, std::vector<Slab>{0});
  EXPECT_THROW(range.map(0, std::vector<Slab>{1, 2}), NativeError);
  EXPECT_THROW(range.map(2, std::vector<Slab>{1, 2}), NativeError);
  EXPECT_THROW(range.map(0, std::vector<Slab>{4}), NativeError);
  EXPECT_THROW(range.map(0, std::vector<Slab>{-7}), NativeError);
  EXPECT_THROW(range.unmap(0, 2), NativeError);
  EXPECT_THROW(range.unmap(2, 2), NativeError);
  EXPECT_THROW(range.at(2 * kSlab, kSlab + 1), NativeError);
  EXPECT_EQ(range.mapped(), 1u);
}

TEST(Range, UndoesWhatItMappedWhenALaterSlabFails) {
  const auto pool = SlabPool::create_private("test", kSlab, 4);
  Range range(pool, 3);
  EXPECT_THROW(range.map(0, std::vector<Slab>{1, 9}), NativeError);
  EXPECT_EQ(range.layout(), (std::vector<Slab>{kNoSlab, kNoSlab, kNoSlab}));
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(range.address()) = 1, "");
}

TEST(Range, FaultsAfterCloseInsteadOfReadingOthersMemory) {
  const auto pool = SlabPool::create_private("test", kSlab, 4);
  Range range(pool, 1);
  range.map(0, std::vector<Slab>{0});
  range.close();
  range.close();
  EXPECT_THROW(range.map(0, std::vector<Slab>{0}), NativeError);
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(range.address()) = 1, "");
}

TEST(Range, OfAGangIsMappedAlikeOnEveryRankOrOnNone) {
  const auto first = SlabPool::create_private("first", kSlab, 4);
  const auto second = SlabPool::create_private("second", kSlab, 4);
  Range range(SlabPool::gang({first, second}), 2);
  range.map(0, std::vector<Slab>{3, 1});
  *reinterpret_cast<char*>(range.address(0)) = 'a';
  *reinterpret_cast<char*>(range.address(1)) = 'b';
  range.unmap(0, 2);
  range.map(1, std::vector<Slab>{3});
  EXPECT_EQ(reinterpret_cast<char*>(range.address(0))[kSlab], 'a');
  EXPECT_EQ(reinterpret_cast<char*>(range.address(1))[kSlab], 'b');
  second->close();
  EXPECT_THROW(range.map(0, std::vector<Slab>{1}), NativeError);
  EXPECT_EQ(range.mapped(), 1u);
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(range.address(0)) = 1, "");
}
