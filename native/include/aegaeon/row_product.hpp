// Products with weights as they lie: out [rows, outer] = x [rows, inner] times weights [outer, inner] transposed, all
// float32. Of few rows the weights are read once, at the speed of memory; of many, parts of them are packed on the way.
//
// Each sum runs over `inner` in order, in pieces of kPiece items whose sums are added in order. So the bits of a row
// are the same whatever the number of rows, at whichever place it stands, on a processor of whichever level, and with
// however many helpers (helpers.hpp), which take outputs.
#pragma once

#include <cstddef>

#include "aegaeon/cpu_level.hpp"

namespace aegaeon {

inline constexpr std::size_t kPiece = 512;  // its part of the weights for 32 outputs has a fraction of the second cache

// Whether a processor of this level can: it needs AVX2 and FMA, or AVX-512.
bool row_product_supported(CpuLevel level = cpu_level());

struct RowProduct {
  const float* x;
  const float* weights;
  float* out;
  std::size_t rows;
  std::size_t outer;
  std::size_t inner;  // at least 1
};

// With the instructions of this level, which the processor has. Raises NativeError where it is not supported.
void row_product(const RowProduct& product, CpuLevel level = cpu_level());

}  // namespace aegaeon
