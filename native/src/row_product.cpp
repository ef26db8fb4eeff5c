#include "aegaeon/row_product.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "aegaeon/cpu_level.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aegaeon {

#if defined(__x86_64__)

namespace {

#define AEGAEON_VECTOR __attribute__((target("avx512f,avx512dq")))
#define AEGAEON_INLINE AEGAEON_VECTOR __attribute__((always_inline)) inline

constexpr std::size_t kLanes = 16;    // outputs at a time, one in each lane
constexpr std::size_t kAhead = 64;    // items of each row; measured: 256 is slower
constexpr std::size_t kFewRows = 8;   // as many sums as hide an instruction's latency: packing would take longer
constexpr std::size_t kWide = 2;      // vectors of outputs in a panel of packed weights
constexpr std::size_t kTallest = 12;  // rows at a time then: their sums fill the registers
constexpr std::size_t kPanel = kWide * kLanes;

using Square = std::array<__m512, kLanes>;
using Rows = std::array<const float*, kLanes>;
using Masks = std::array<__mmask16, kWide>;

// Items [begin, end) of each sum. At most kPiece.
struct Piece {
  std::size_t begin;
  std::size_t end;
};

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

// 16 items of 16 rows of weights from `at` on, in the order of items.
AEGAEON_INLINE Square turned_square(const Rows& weights, std::size_t at) {
  Square square;
  for (std::size_t i = 0; i < kLanes; ++i) {
    square[i] = _mm512_loadu_ps(weights[i] + at);
    _mm_prefetch(reinterpret_cast<const char*>(weights[i] + at + kAhead), _MM_HINT_T0);
  }
  transpose(square);
  return square;
}

AEGAEON_INLINE __m512 column_of(const Rows& weights, std::size_t at) {
  alignas(sizeof(__m512)) std::array<float, kLanes> column;
  for (std::size_t i = 0; i < kLanes; ++i) column[i] = weights[i][at];
  return _mm512_load_ps(column.data());
}

// Weights of the 16 outputs from `first` on; behind the last output there is that one again.
Rows weights_of(const RowProduct& of, std::size_t first) {
  Rows weights;
  for (std::size_t i = 0; i < kLanes; ++i) weights[i] = of.weights + std::min(first + i, of.outer - 1) * of.inner;
  return weights;
}

// Which of the 16 outputs from `first` on there are.
__mmask16 mask_of(const RowProduct& of, std::size_t first) {
  const std::size_t lanes = std::min(kLanes, of.outer - std::min(first, of.outer));
  return static_cast<__mmask16>((1U << lanes) - 1U);
}

template <std::size_t kRows>
using Sums = std::array<__m512, kRows>;

template <std::size_t kRows>
AEGAEON_INLINE Sums<kRows> sum_piece(const RowProduct& of, const Rows& weights, Piece piece) {
  Sums<kRows> sums;
  sums.fill(_mm512_setzero_ps());
  std::size_t at = piece.begin;
  for (; at + kLanes <= piece.end; at += kLanes) {
    const Square square = turned_square(weights, at);
    for (std::size_t i = 0; i < kLanes; ++i)
      for (std::size_t row = 0; row < kRows; ++row)
        sums[row] = _mm512_fmadd_ps(square[i], _mm512_set1_ps(of.x[row * of.inner + at + i]), sums[row]);
  }
  for (; at < piece.end; ++at) {
    const __m512 column = column_of(weights, at);
    for (std::size_t row = 0; row < kRows; ++row)
      sums[row] = _mm512_fmadd_ps(column, _mm512_set1_ps(of.x[row * of.inner + at]), sums[row]);
  }
  return sums;
}

// Few rows: weights go from memory into registers.
template <std::size_t kRows>
AEGAEON_VECTOR void stream(const RowProduct& of) {
  for (std::size_t first = 0; first < of.outer; first += kLanes) {
    const Rows weights = weights_of(of, first);
    Sums<kRows> sums = sum_piece<kRows>(of, weights, {0, std::min(kPiece, of.inner)});
    for (std::size_t begin = kPiece; begin < of.inner; begin += kPiece) {
      const Sums<kRows> more = sum_piece<kRows>(of, weights, {begin, std::min(begin + kPiece, of.inner)});
      for (std::size_t row = 0; row < kRows; ++row) sums[row] = _mm512_add_ps(sums[row], more[row]);
    }
    for (std::size_t row = 0; row < kRows; ++row)
      _mm512_mask_storeu_ps(of.out + row * of.outer + first, mask_of(of, first), sums[row]);
  }
}

// A piece of the weights of kPanel outputs: item by item, those of all outputs side by side.
struct Panel {
  alignas(sizeof(__m512)) std::array<float, kPiece * kPanel> items;
};

AEGAEON_VECTOR void pack(const RowProduct& of, std::size_t first, Piece piece, Panel& panel) {
  for (std::size_t part = 0; part < kWide; ++part) {
    const Rows weights = weights_of(of, first + part * kLanes);
    float* to = panel.items.data() + part * kLanes;
    std::size_t at = piece.begin;
    for (; at + kLanes <= piece.end; at += kLanes) {
      const Square square = turned_square(weights, at);
      for (std::size_t i = 0; i < kLanes; ++i, to += kPanel) _mm512_store_ps(to, square[i]);
    }
    for (; at < piece.end; ++at, to += kPanel) _mm512_store_ps(to, column_of(weights, at));
  }
}

// The sums of this piece for kRows rows of `x` and the panel's outputs: written to `out`, or added to what is there.
template <std::size_t kRows>
AEGAEON_VECTOR void block(const RowProduct& of, const Panel& panel, const float* x, float* out, Piece piece,
                          const Masks& masks) {
  __m512 sums[kRows][kWide];
#pragma GCC unroll 16
  for (std::size_t row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (std::size_t part = 0; part < kWide; ++part) sums[row][part] = _mm512_setzero_ps();
  const float* packed = panel.items.data();
  for (std::size_t at = piece.begin; at < piece.end; ++at, packed += kPanel) {
    __m512 weights[kWide];
#pragma GCC unroll 4
    for (std::size_t part = 0; part < kWide; ++part) weights[part] = _mm512_load_ps(packed + part * kLanes);
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kRows; ++row) {
      const __m512 item = _mm512_set1_ps(x[row * of.inner + at]);
#pragma GCC unroll 4
      for (std::size_t part = 0; part < kWide; ++part)
        sums[row][part] = _mm512_fmadd_ps(weights[part], item, sums[row][part]);
    }
  }
#pragma GCC unroll 16
  for (std::size_t row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (std::size_t part = 0; part < kWide; ++part) {
      float* to = out + row * of.outer + part * kLanes;
      __m512 sum = sums[row][part];
      if (piece.begin != 0) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(masks[part], to), sum);
      _mm512_mask_storeu_ps(to, masks[part], sum);
    }
}

using Block = void (*)(const RowProduct&, const Panel&, const float*, float*, Piece, const Masks&);

template <std::size_t... kRows>
constexpr std::array<Block, kTallest> blocks(std::index_sequence<kRows...>) {
  return {block<kRows + 1>...};
}

// Many rows: each panel is packed, and read from the cache by blocks of rows of about the same height.
void pack_and_sum(const RowProduct& of) {
  static constexpr auto kBlocks = blocks(std::make_index_sequence<kTallest>{});
  thread_local Panel panel;
  const std::size_t count = (of.rows + kTallest - 1) / kTallest;
  for (std::size_t begin = 0; begin < of.inner; begin += kPiece) {
    const Piece piece{begin, std::min(begin + kPiece, of.inner)};
    for (std::size_t first = 0; first < of.outer; first += kPanel) {
      const Masks masks{mask_of(of, first), mask_of(of, first + kLanes)};
      pack(of, first, piece, panel);
      for (std::size_t number = 0; number < count; ++number) {
        const std::size_t row = of.rows * number / count, rows = of.rows * (number + 1) / count - row;
        kBlocks[rows - 1](of, panel, of.x + row * of.inner, of.out + row * of.outer + first, piece, masks);
      }
    }
  }
}

template <std::size_t... kRows>
void dispatch(const RowProduct& of, std::index_sequence<kRows...>) {
  static constexpr std::array kStreams{stream<kRows + 1>...};
  kStreams[of.rows - 1](of);
}

}  // namespace

bool row_product_supported() { return cpu_level() >= CpuLevel::kAvx512; }

void row_product(const RowProduct& product) {
  if (product.rows > kFewRows) return pack_and_sum(product);
  if (product.rows > 0) dispatch(product, std::make_index_sequence<kFewRows>{});
}

#else

bool row_product_supported() { return false; }

void row_product(const RowProduct&) {}

#endif

}  // namespace aegaeon
