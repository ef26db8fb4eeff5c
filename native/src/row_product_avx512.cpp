// Row products with AVX-512: vectors of sixteen, of which there are thirty-two.
#include <array>
#include <cstddef>

#include "row_product_kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace aegaeon {

namespace {

#define AEGAEON_VECTOR __attribute__((target("avx512f,avx512dq")))
#define AEGAEON_INLINE AEGAEON_VECTOR __attribute__((always_inline)) inline

constexpr std::size_t kLanes = 16;    // outputs at a time, one in each lane
constexpr std::size_t kItems = 16;    // of each output in a square
constexpr std::size_t kFewRows = 12;  // measured: packing takes longer up to here, and is quicker from 16 on
constexpr std::size_t kWide = 2;      // vectors of outputs in a panel of packed weights
constexpr std::size_t kTallest = 12;  // rows at a time then: their sums fill the registers

// Vectors of outputs at a time for so many streamed rows.
constexpr std::size_t parts_of(std::size_t /*rows*/) { return 1; }

using Vector = __m512;
using Mask = __mmask16;
using Square = std::array<Vector, kItems>;
using Rows = std::array<const float*, kLanes>;

AEGAEON_INLINE Vector zero() { return _mm512_setzero_ps(); }
AEGAEON_INLINE Vector everywhere(float item) { return _mm512_set1_ps(item); }
AEGAEON_INLINE Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
AEGAEON_INLINE Vector multiply_add(Vector a, Vector b, Vector sum) { return _mm512_fmadd_ps(a, b, sum); }
AEGAEON_INLINE Vector load(const float* from) { return _mm512_load_ps(from); }
AEGAEON_INLINE void store(float* to, Vector items) { _mm512_store_ps(to, items); }
AEGAEON_INLINE Vector load_masked(const float* from, Mask mask) { return _mm512_maskz_loadu_ps(mask, from); }
AEGAEON_INLINE void store_masked(float* to, Mask mask, Vector items) { _mm512_mask_storeu_ps(to, mask, items); }

// The first `lanes`.
AEGAEON_INLINE Mask mask_of(std::size_t lanes) { return static_cast<Mask>((1U << lanes) - 1U); }

AEGAEON_INLINE Vector low_pairs(Vector a, Vector b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

AEGAEON_INLINE Vector high_pairs(Vector a, Vector b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

constexpr int kEven = 0x88;  // quarters 0 and 2 of both
constexpr int kOdd = 0xdd;   // quarters 1 and 3

// Item j of row i becomes item i of row j: within quarters of four lanes first, then the quarters.
AEGAEON_INLINE void transpose(Square& rows) {
  Square turned;
  for (std::size_t i = 0; i < kLanes; i += 2) {
    turned[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    turned[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (std::size_t i = 0; i < kLanes; i += 4) {
    rows[i] = low_pairs(turned[i], turned[i + 2]);
    rows[i + 1] = high_pairs(turned[i], turned[i + 2]);
    rows[i + 2] = low_pairs(turned[i + 1], turned[i + 3]);
    rows[i + 3] = high_pairs(turned[i + 1], turned[i + 3]);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    turned[i] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], kEven);
    turned[i + 4] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], kOdd);
    turned[i + 8] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], kEven);
    turned[i + 12] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], kOdd);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_f32x4(turned[i], turned[i + 8], kEven);
    rows[i + 8] = _mm512_shuffle_f32x4(turned[i], turned[i + 8], kOdd);
    rows[i + 4] = _mm512_shuffle_f32x4(turned[i + 4], turned[i + 12], kEven);
    rows[i + 12] = _mm512_shuffle_f32x4(turned[i + 4], turned[i + 12], kOdd);
  }
}

// 16 items of 16 rows of weights from `at` on, in the order of items.
AEGAEON_INLINE Square turned_square(const Rows& weights, std::size_t at) {
  Square square;
  for (std::size_t i = 0; i < kItems; ++i) square[i] = _mm512_loadu_ps(weights[i] + at);
  transpose(square);
  return square;
}

}  // namespace

}  // namespace aegaeon

#include "row_product_loops.hpp"

namespace aegaeon {

void row_product_avx512(const RowProduct& product, Outputs outputs) { multiply(product, outputs); }

}  // namespace aegaeon

#endif
