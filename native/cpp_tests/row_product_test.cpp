#include "aegaeon/row_product.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "aegaeon/errors.hpp"

using aegaeon::CpuLevel;
using aegaeon::kPiece;
using aegaeon::row_product;

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
float sum(const float* x, const float* weights, std::size_t inner) {
  float whole = 0.0F;
  for (std::size_t begin = 0; begin < inner; begin += kPiece) {
    float part = 0.0F;
    for (std::size_t at = begin; at < std::min(inner, begin + kPiece); ++at) part = std::fma(weights[at], x[at], part);
    whole = begin == 0 ? part : whole + part;
  }
  return whole;
}

constexpr std::size_t kMostRows = 40;

// outer, inner: no multiples of a vector or a panel, one piece, several with a rest; with each kind of vectors.
using Size = std::tuple<std::size_t, std::size_t>;
class RowProduct : public testing::TestWithParam<std::tuple<CpuLevel, Size>> {};

INSTANTIATE_TEST_SUITE_P(Sizes, RowProduct,
                         testing::Combine(testing::Values(CpuLevel::kAvx2, CpuLevel::kAvx512),
                                          testing::Values(Size{1, 1}, Size{16, 32}, Size{37, 50}, Size{64, 512},
                                                          Size{50, 700}, Size{15, 1100})));

TEST(RowProductOfNoVectors, IsRefused) {
  EXPECT_FALSE(aegaeon::row_product_supported(CpuLevel::kBaseline));
  EXPECT_THROW(row_product({nullptr, nullptr, nullptr, 0, 1, 1}, CpuLevel::kBaseline), aegaeon::NativeError);
}

TEST_P(RowProduct, EachSumIsBitByBitTheOneInOrderWhateverTheNumberOfRows) {
  const auto [level, size] = GetParam();
  const auto [outer, inner] = size;
  if (level > aegaeon::cpu_level()) GTEST_SKIP() << "this processor has no " << cpu_level_name(level);
  const auto x = numbers(kMostRows * inner), weights = numbers(outer * inner);
  std::vector<float> wanted(kMostRows * outer);
  for (std::size_t row = 0; row < kMostRows; ++row)
    for (std::size_t i = 0; i < outer; ++i) wanted[row * outer + i] = sum(&x[row * inner], &weights[i * inner], inner);
  for (std::size_t rows = 0; rows <= kMostRows; ++rows) {
    std::vector<float> out(rows * outer + 1, -7.0F);
    row_product({x.data(), weights.data(), out.data(), rows, outer, inner}, level);
    ASSERT_EQ(out.back(), -7.0F);
    out.pop_back();
    ASSERT_TRUE(std::equal(out.begin(), out.end(), wanted.begin())) << rows;
  }
}

}  // namespace
