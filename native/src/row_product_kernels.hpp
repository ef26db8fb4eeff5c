// Row products for each kind of vectors; row_product.cpp chooses.
#pragma once

#include "aegaeon/row_product.hpp"

namespace aegaeon {

// Some of a product's outputs. All bounds but the last one are multiples of kOutputs.
struct Outputs {
  std::size_t begin;
  std::size_t end;
};

inline constexpr std::size_t kOutputs = 64;  // those of a panel, whichever the vectors, and more

void row_product_avx2(const RowProduct& product, Outputs outputs);
void row_product_avx512(const RowProduct& product, Outputs outputs);

}  // namespace aegaeon
