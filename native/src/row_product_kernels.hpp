// Row products for each kind of vectors; row_product.cpp chooses.
#pragma once

#include "aegaeon/row_product.hpp"

namespace aegaeon {

void row_product_avx2(const RowProduct& product);
void row_product_avx512(const RowProduct& product);

}  // namespace aegaeon
