#include "aegaeon/stream_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace {

void copies_exactly(std::size_t size, std::size_t offset) {
  const std::size_t room = size + 300;
  std::vector<std::byte> source(room);
  for (std::size_t i = 0; i < room; ++i) source[i] = static_cast<std::byte>(i % 251 + i / 4096);
  std::vector<std::byte> target(room);
  std::vector<std::byte> expected(room);
  std::copy_n(source.begin() + 3, size, expected.begin() + static_cast<std::ptrdiff_t>(offset));
  aegaeon::stream_copy(target.data() + offset, source.data() + 3, size);
  ASSERT_EQ(target, expected) << offset << " " << size;
}

}  // namespace

TEST(StreamCopy, CopiesEverySizeAtEveryAlignmentAndNothingElse) {
  for (std::size_t offset = 0; offset < 34; ++offset) {
    for (std::size_t size = 0; size < 300; ++size) copies_exactly(size, offset);
  }
}

TEST(StreamCopy, CopiesPagesSideBySideAndWhatIsLeftOfThem) {
  for (const std::size_t pages : {3, 4, 5, 8, 11, 16}) {
    for (const std::size_t more : {0, 1, 63, 64, 100}) {
      for (const std::size_t offset : {0, 1, 31}) copies_exactly(pages * 4096 + more, offset);
    }
  }
}

TEST(StreamCopy, CopiesExactlyWhileItFindsOutWhichWayIsTheQuickest) {
  for (int copy = 0; copy < 30; ++copy) copies_exactly((std::size_t{1} << 19) + 64 + 17, 5);
}
