#include "aegaeon/likeliest.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

using aegaeon::kNoToken;
using aegaeon::likeliest;

namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Shorter than a vector, as long as one, with a rest behind the last one, and long.
class Likeliest : public testing::TestWithParam<std::size_t> {
 protected:
  std::vector<float> row = std::vector<float>(GetParam(), -3.0F);
};

INSTANTIATE_TEST_SUITE_P(Lengths, Likeliest, testing::Values(1, 7, 8, 32, 33, 100, 8192));

TEST_P(Likeliest, ItIsFoundWhereverItIs) {
  for (std::size_t at = 0; at < row.size(); ++at) {
    row[at] = 2.0F;
    ASSERT_EQ(likeliest(row), static_cast<std::int32_t>(at));
    row[at] = -3.0F;
  }
}

TEST_P(Likeliest, OfEqualOnesItIsTheFirst) {
  ASSERT_EQ(likeliest(row), 0);
  row.back() = 0.0F;
  row.front() = -0.0F;
  ASSERT_EQ(likeliest(row), 0);
  row.front() = -4.0F;
  row.back() = 5.0F;
  row[row.size() / 2] = 5.0F;
  ASSERT_EQ(likeliest(row), static_cast<std::int32_t>(row.size() / 2));
}

TEST_P(Likeliest, ARowWithANanAnywhereHasNone) {
  for (std::size_t at = 0; at < row.size(); at += 1 + row.size() / 50) {
    for (const float nan : {kNan, -kNan}) {
      row[at] = nan;
      ASSERT_EQ(likeliest(row), kNoToken);
    }
    row[at] = -3.0F;
  }
}

TEST_P(Likeliest, OneThatIsInfiniteIsNone) {
  row.back() = kInfinite;
  ASSERT_EQ(likeliest(row), kNoToken);
  row.assign(row.size(), -kInfinite);
  ASSERT_EQ(likeliest(row), kNoToken);
  row.back() = std::numeric_limits<float>::lowest();
  ASSERT_EQ(likeliest(row), static_cast<std::int32_t>(row.size() - 1));
}

TEST(LikeliestOfNothing, ThereIsNone) { ASSERT_EQ(likeliest({}), kNoToken); }

}  // namespace
