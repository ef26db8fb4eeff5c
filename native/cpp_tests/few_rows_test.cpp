#include "aegaeon/few_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

using aegaeon::few_rows;

namespace {

std::vector<float> numbers(std::size_t count) {
  std::vector<float> items(count);
  std::uint32_t state = 1;
  for (float& item : items) {
    state = state * 1664525U + 1013904223U;
    item = static_cast<float>(state >> 8) / static_cast<float>(1U << 23) - 1.0F;
  }
  return items;
}

// The same sum, one item after the other.
float sum(const float* x, const float* weights, std::size_t inner, std::size_t piece) {
  float whole = 0.0F;
  for (std::size_t begin = 0; begin < inner; begin += piece) {
    float part = 0.0F;
    for (std::size_t at = begin; at < std::min(inner, begin + piece); ++at) part = std::fma(weights[at], x[at], part);
    whole = begin == 0 ? part : whole + part;
  }
  return whole;
}

// outer, inner, piece: no multiples of a vector, one piece, several with a rest.
class FewRows : public testing::TestWithParam<std::tuple<std::size_t, std::size_t, std::size_t>> {};

INSTANTIATE_TEST_SUITE_P(Sizes, FewRows,
                         testing::Values(std::tuple{1, 1, 1}, std::tuple{16, 32, 32}, std::tuple{37, 50, 512},
                                         std::tuple{50, 70, 32}, std::tuple{17, 100, 7}));

TEST_P(FewRows, EachSumIsBitByBitTheOneInOrder) {
  if (!aegaeon::few_rows_supported()) GTEST_SKIP() << "this processor has no AVX-512";
  const auto [outer, inner, piece] = GetParam();
  const auto x = numbers(aegaeon::kFewRows * inner), weights = numbers(outer * inner);
  for (std::size_t rows = 1; rows <= aegaeon::kFewRows; ++rows) {
    std::vector<float> out(rows * outer + 1, -7.0F);
    few_rows({x.data(), weights.data(), out.data(), rows, outer, inner, piece});
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t i = 0; i < outer; ++i)
        ASSERT_EQ(out[row * outer + i], sum(&x[row * inner], &weights[i * inner], inner, piece)) << row << " " << i;
    ASSERT_EQ(out.back(), -7.0F);
  }
}

}  // namespace
