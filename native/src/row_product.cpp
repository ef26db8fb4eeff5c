#include "aegaeon/row_product.hpp"

#include "aegaeon/errors.hpp"
#include "row_product_kernels.hpp"

namespace aegaeon {

#if defined(__x86_64__)

bool row_product_supported(CpuLevel level) { return level >= CpuLevel::kAvx2; }

void row_product(const RowProduct& product, CpuLevel level) {
  if (!row_product_supported(level)) throw NativeError("row_product: this processor has no AVX2 and FMA");
  level == CpuLevel::kAvx2 ? row_product_avx2(product) : row_product_avx512(product);
}

#else

bool row_product_supported(CpuLevel) { return false; }

void row_product(const RowProduct&, CpuLevel) { throw NativeError("row_product: this processor has no AVX2 and FMA"); }

#endif

}  // namespace aegaeon
