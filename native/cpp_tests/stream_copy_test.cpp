#include "aegaeon/stream_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

TEST(StreamCopy, CopiesEverySizeAtEveryAlignmentAndNothingElse) {
  constexpr std::size_t kRoom = 600;
  std::vector<std::byte> source(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) source[i] = static_cast<std::byte>(i * 11 + 1);
  for (std::size_t offset = 0; offset < 34; ++offset) {
    for (std::size_t size = 0; size < 300; ++size) {
      std::vector<std::byte> target(kRoom);
      std::vector<std::byte> expected(kRoom);
      std::copy_n(source.begin() + 3, size, expected.begin() + static_cast<std::ptrdiff_t>(offset));
      aegaeon::stream_copy(target.data() + offset, source.data() + 3, size);
      ASSERT_EQ(target, expected) << offset << " " << size;
    }
  }
}
