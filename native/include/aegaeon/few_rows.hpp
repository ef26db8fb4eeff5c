// Products of few rows with weights as they lie: out [rows, outer] = x [rows, inner] times weights [outer, inner]
// transposed, all float32. The weights are read once, at the speed of memory.
//
// Each sum runs over `inner` in order, in pieces of `piece` items whose sums are added: that is the order of oneDNN's
// kernels, so a row has the same bits here and in a product of many rows there. `piece` is what differs between sizes.
#pragma once

#include <cstddef>

namespace aegaeon {

inline constexpr std::size_t kFewRows = 8;

// Whether this processor can: it needs AVX-512.
bool few_rows_supported();

struct FewRows {
  const float* x;
  const float* weights;
  float* out;
  std::size_t rows;  // 1 to kFewRows
  std::size_t outer;
  std::size_t inner;
  std::size_t piece;  // at least 1
};

void few_rows(const FewRows& product);

}  // namespace aegaeon
