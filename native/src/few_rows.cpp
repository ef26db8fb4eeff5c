#include "aegaeon/few_rows.hpp"

#include <algorithm>
#include <array>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aegaeon {

#if defined(__x86_64__)

namespace {

#define AEGAEON_VECTOR __attribute__((target("avx512f,avx512dq")))
#define AEGAEON_INLINE AEGAEON_VECTOR __attribute__((always_inline)) inline

constexpr std::size_t kLanes = 16;  // outputs at a time, one in each lane
constexpr std::size_t kAhead = 64;  // items of each row; measured: 256 is slower

using Square = std::array<__m512, kLanes>;
using Rows = std::array<const float*, kLanes>;

AEGAEON_INLINE __m512 low_pairs(__m512 a, __m512 b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

AEGAEON_INLINE __m512 high_pairs(__m512 a, __m512 b) {
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

template <std::size_t kRows>
using Sums = std::array<__m512, kRows>;

// Items [begin, end) of up to 16 rows of weights.
template <std::size_t kRows>
AEGAEON_INLINE Sums<kRows> sum_piece(const FewRows& of, const Rows& weights, std::size_t begin, std::size_t end) {
  Sums<kRows> sums;
  sums.fill(_mm512_setzero_ps());
  std::size_t at = begin;
  for (; at + kLanes <= end; at += kLanes) {
    Square square;
    for (std::size_t i = 0; i < kLanes; ++i) {
      square[i] = _mm512_loadu_ps(weights[i] + at);
      _mm_prefetch(reinterpret_cast<const char*>(weights[i] + at + kAhead), _MM_HINT_T0);
    }
    transpose(square);
    for (std::size_t i = 0; i < kLanes; ++i)
      for (std::size_t row = 0; row < kRows; ++row)
        sums[row] = _mm512_fmadd_ps(square[i], _mm512_set1_ps(of.x[row * of.inner + at + i]), sums[row]);
  }
  for (; at < end; ++at) {
    alignas(sizeof(__m512)) std::array<float, kLanes> column;
    for (std::size_t i = 0; i < kLanes; ++i) column[i] = weights[i][at];
    for (std::size_t row = 0; row < kRows; ++row)
      sums[row] = _mm512_fmadd_ps(_mm512_load_ps(column.data()), _mm512_set1_ps(of.x[row * of.inner + at]), sums[row]);
  }
  return sums;
}

template <std::size_t kRows>
AEGAEON_VECTOR void product(const FewRows& of) {
  for (std::size_t first = 0; first < of.outer; first += kLanes) {
    const std::size_t lanes = std::min(kLanes, of.outer - first);
    Rows weights;
    for (std::size_t i = 0; i < kLanes; ++i) weights[i] = of.weights + (first + std::min(i, lanes - 1)) * of.inner;
    Sums<kRows> sums = sum_piece<kRows>(of, weights, 0, std::min(of.piece, of.inner));
    for (std::size_t begin = of.piece; begin < of.inner; begin += of.piece) {
      const Sums<kRows> more = sum_piece<kRows>(of, weights, begin, std::min(begin + of.piece, of.inner));
      for (std::size_t row = 0; row < kRows; ++row) sums[row] = _mm512_add_ps(sums[row], more[row]);
    }
    const auto mask = static_cast<__mmask16>((1U << lanes) - 1U);
    for (std::size_t row = 0; row < kRows; ++row)
      _mm512_mask_storeu_ps(of.out + row * of.outer + first, mask, sums[row]);
  }
}

template <std::size_t... kRows>
void dispatch(const FewRows& of, std::index_sequence<kRows...>) {
  static constexpr std::array kProducts{product<kRows + 1>...};
  kProducts[of.rows - 1](of);
}

}  // namespace

bool few_rows_supported() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"); }

void few_rows(const FewRows& product) { dispatch(product, std::make_index_sequence<kFewRows>{}); }

#else

bool few_rows_supported() { return false; }

void few_rows(const FewRows&) {}

#endif

}  // namespace aegaeon
