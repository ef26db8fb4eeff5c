// Products with weights as they lie: out [rows, outer] = x [rows, inner] times weights [outer, inner] transposed, all
// float32. Of few rows the weights are read once, at the speed of memory; of many, parts of them are packed on the way.
//
// Each sum runs over `inner` in order, in pieces of kPiece items whose sums are added in order. So the bits of a row
// are the same whatever the number of rows, and at whichever place it stands.
#pragma once

#include <cstddef>

namespace aegaeon {

inline constexpr std::size_t kPiece = 512;  // its part of the weights for 32 outputs has a fraction of the second cache

// Whether this processor can: it needs AVX-512.
bool row_product_supported();

struct RowProduct {
  const float* x;
  const float* weights;
  float* out;
  std::size_t rows;
  std::size_t outer;
  std::size_t inner;  // at least 1
};

void row_product(const RowProduct& product);

}  // namespace aegaeon
