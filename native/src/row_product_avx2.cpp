// Row products with AVX2 and FMA: vectors of eight, of which there are sixteen.
#include <array>
#include <cstddef>
#include <cstdint>

#include "row_product_kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace aegaeon {

namespace {

#define AEGAEON_VECTOR __attribute__((target("avx2,fma")))
#define AEGAEON_INLINE AEGAEON_VECTOR __attribute__((always_inline)) inline

constexpr std::size_t kLanes = 8;     // outputs at a time, one in each lane
constexpr std::size_t kItems = 4;     // of each output in a square: with the sums they fill the registers
constexpr std::size_t kFewRows = 12;  // measured: packing takes longer up to here, and is quicker from 16 on
constexpr std::size_t kWide = 2;      // vectors of outputs in a panel of packed weights
constexpr std::size_t kTallest = 6;   // rows at a time then: their sums fill the registers

// Vectors of outputs at a time for so many streamed rows: sums enough to hide an instruction's latency.
constexpr std::size_t parts_of(std::size_t rows) { return rows <= 3 ? 2 : 1; }

using Vector = __m256;
using Mask = __m256i;
using Square = std::array<Vector, kItems>;
using Rows = std::array<const float*, kLanes>;

AEGAEON_INLINE Vector zero() { return _mm256_setzero_ps(); }
AEGAEON_INLINE Vector everywhere(float item) { return _mm256_set1_ps(item); }
AEGAEON_INLINE Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
AEGAEON_INLINE Vector multiply_add(Vector a, Vector b, Vector sum) { return _mm256_fmadd_ps(a, b, sum); }
AEGAEON_INLINE Vector load(const float* from) { return _mm256_load_ps(from); }
AEGAEON_INLINE void store(float* to, Vector items) { _mm256_store_ps(to, items); }
AEGAEON_INLINE Vector load_masked(const float* from, Mask mask) { return _mm256_maskload_ps(from, mask); }
AEGAEON_INLINE void store_masked(float* to, Mask mask, Vector items) { _mm256_maskstore_ps(to, mask, items); }

// The first `lanes`.
AEGAEON_INLINE Mask mask_of(std::size_t lanes) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(lanes)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

AEGAEON_INLINE Vector low_pairs(Vector a, Vector b) {
  return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}

AEGAEON_INLINE Vector high_pairs(Vector a, Vector b) {
  return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}

// Four items of eight rows of weights from `at` on, in the order of items: half of the rows in each half of a vector,
// so that no item has to change its half.
AEGAEON_INLINE Square turned_square(const Rows& weights, std::size_t at) {
  Square rows;
  for (std::size_t i = 0; i < kItems; ++i)
    rows[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(weights[i] + at)),
                                   _mm_loadu_ps(weights[i + kItems] + at), 1);
  const Vector even = _mm256_unpacklo_ps(rows[0], rows[1]), odd = _mm256_unpackhi_ps(rows[0], rows[1]);
  const Vector even2 = _mm256_unpacklo_ps(rows[2], rows[3]), odd2 = _mm256_unpackhi_ps(rows[2], rows[3]);
  return {low_pairs(even, even2), high_pairs(even, even2), low_pairs(odd, odd2), high_pairs(odd, odd2)};
}

}  // namespace

}  // namespace aegaeon

#include "row_product_loops.hpp"

namespace aegaeon {

void row_product_avx2(const RowProduct& product, Outputs outputs) { multiply(product, outputs); }

}  // namespace aegaeon

#endif
