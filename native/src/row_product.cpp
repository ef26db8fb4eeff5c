#include "aegaeon/row_product.hpp"

#include <algorithm>

#include "aegaeon/errors.hpp"
#include "aegaeon/helpers.hpp"
#include "row_product_kernels.hpp"

namespace aegaeon {

#if defined(__x86_64__)

bool row_product_supported(CpuLevel level) { return level >= CpuLevel::kAvx2; }

namespace {

constexpr std::size_t kWorthHelp = std::size_t{1} << 17;  // multiplications that take as long as to wake a helper
constexpr std::size_t kPartsEach = 4;                     // who begins later, or has a slower processor, takes fewer

struct Parts {
  const RowProduct& product;
  CpuLevel level;
  std::size_t outputs;  // of each but the last
};

void multiply(const RowProduct& product, CpuLevel level, Outputs outputs) {
  level == CpuLevel::kAvx2 ? row_product_avx2(product, outputs) : row_product_avx512(product, outputs);
}

void take(const void* parts, std::size_t part) noexcept {
  const auto& [product, level, outputs] = *static_cast<const Parts*>(parts);
  multiply(product, level, {part * outputs, std::min((part + 1) * outputs, product.outer)});
}

}  // namespace

void row_product(const RowProduct& product, CpuLevel level) {
  if (!row_product_supported(level)) throw NativeError("row_product: this processor has no AVX2 and FMA");
  Helpers& helpers = product_helpers();
  if (helpers.count() == 0 || product.rows * product.outer * product.inner < kWorthHelp)
    return multiply(product, level, {0, product.outer});
  const std::size_t least = product.outer / ((helpers.count() + 1) * kPartsEach);
  const Parts parts{product, level, std::max<std::size_t>(least / kOutputs, 1) * kOutputs};
  helpers.compute((product.outer + parts.outputs - 1) / parts.outputs, take, &parts);
}

#else

bool row_product_supported(CpuLevel) { return false; }

void row_product(const RowProduct&, CpuLevel) { throw NativeError("row_product: this processor has no AVX2 and FMA"); }

#endif

}  // namespace aegaeon
