// A row product's loops for one kind of vectors. What includes this file has defined before, in its own unnamed
// namespace: AEGAEON_VECTOR and AEGAEON_INLINE, the attributes of functions that use these vectors; Vector, Mask and
// what is computed with them; kLanes, kItems and the sizes of blocks that were the quickest with them.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "aegaeon/row_product.hpp"
#include "row_product_kernels.hpp"

namespace aegaeon {

namespace {

constexpr std::size_t kLine = 16;          // items of a row in a line of the caches
constexpr std::size_t kAhead = 4 * kLine;  // items of each row; measured: 256 is slower
constexpr std::size_t kPanel = kWide * kLanes;
static_assert(kOutputs % kPanel == 0);

// Items [begin, end) of each sum. At most kPiece.
struct Piece {
  std::size_t begin;
  std::size_t end;
};

using Masks = std::array<Mask, kWide>;

// The next lines of these rows are on their way while this one is used.
AEGAEON_INLINE void fetch_ahead(const Rows& weights, std::size_t at) {
  for (const float* row : weights) _mm_prefetch(reinterpret_cast<const char*>(row + at + kAhead), _MM_HINT_T0);
}

AEGAEON_INLINE Vector column_of(const Rows& weights, std::size_t at) {
  alignas(sizeof(Vector)) std::array<float, kLanes> column;
  for (std::size_t i = 0; i < kLanes; ++i) column[i] = weights[i][at];
  return load(column.data());
}

// Weights of the kLanes outputs from `first` on; behind the last output there is that one again.
Rows weights_of(const RowProduct& of, std::size_t first) {
  Rows weights;
  for (std::size_t i = 0; i < kLanes; ++i) weights[i] = of.weights + std::min(first + i, of.outer - 1) * of.inner;
  return weights;
}

// Which of the kLanes outputs from `first` on there are.
AEGAEON_VECTOR Mask mask_of(const RowProduct& of, std::size_t first) {
  return mask_of(std::min(kLanes, of.outer - std::min(first, of.outer)));
}

template <std::size_t kRows, std::size_t kParts>
using Sums = std::array<std::array<Vector, kParts>, kRows>;

template <std::size_t kRows, std::size_t kParts>
AEGAEON_INLINE Sums<kRows, kParts> sum_piece(const RowProduct& of, const std::array<Rows, kParts>& weights,
                                             Piece piece) {
  Sums<kRows, kParts> sums;
  for (auto& row : sums) row.fill(zero());
  std::size_t at = piece.begin;
  for (; at + kLine <= piece.end; at += kLine) {
    for (const Rows& part : weights) fetch_ahead(part, at);
    for (std::size_t from = at; from < at + kLine; from += kItems) {
      for (std::size_t part = 0; part < kParts; ++part) {
        const Square square = turned_square(weights[part], from);
        for (std::size_t i = 0; i < kItems; ++i)
          for (std::size_t row = 0; row < kRows; ++row)
            sums[row][part] = multiply_add(square[i], everywhere(of.x[row * of.inner + from + i]), sums[row][part]);
      }
    }
  }
  for (; at < piece.end; ++at) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const Vector column = column_of(weights[part], at);
      for (std::size_t row = 0; row < kRows; ++row)
        sums[row][part] = multiply_add(column, everywhere(of.x[row * of.inner + at]), sums[row][part]);
    }
  }
  return sums;
}

// Few rows: weights go from memory into registers.
template <std::size_t kRows>
AEGAEON_VECTOR void stream(const RowProduct& of, Outputs outputs) {
  constexpr std::size_t kParts = parts_of(kRows);
  for (std::size_t first = outputs.begin; first < outputs.end; first += kParts * kLanes) {
    std::array<Rows, kParts> weights;
    for (std::size_t part = 0; part < kParts; ++part) weights[part] = weights_of(of, first + part * kLanes);
    auto sums = sum_piece<kRows, kParts>(of, weights, {0, std::min(kPiece, of.inner)});
    for (std::size_t begin = kPiece; begin < of.inner; begin += kPiece) {
      const auto more = sum_piece<kRows, kParts>(of, weights, {begin, std::min(begin + kPiece, of.inner)});
      for (std::size_t row = 0; row < kRows; ++row)
        for (std::size_t part = 0; part < kParts; ++part) sums[row][part] = add(sums[row][part], more[row][part]);
    }
    for (std::size_t part = 0; part < kParts; ++part) {
      const Mask mask = mask_of(of, first + part * kLanes);
      for (std::size_t row = 0; row < kRows; ++row)
        store_masked(of.out + row * of.outer + first + part * kLanes, mask, sums[row][part]);
    }
  }
}

// A piece of the weights of kPanel outputs: item by item, those of all outputs side by side.
struct Panel {
  alignas(sizeof(Vector)) std::array<float, kPiece * kPanel> items;
};

AEGAEON_VECTOR void pack(const RowProduct& of, std::size_t first, Piece piece, Panel& panel) {
  for (std::size_t part = 0; part < kWide; ++part) {
    const Rows weights = weights_of(of, first + part * kLanes);
    float* to = panel.items.data() + part * kLanes;
    std::size_t at = piece.begin;
    for (; at + kLine <= piece.end; at += kLine) {
      fetch_ahead(weights, at);
      for (std::size_t from = at; from < at + kLine; from += kItems) {
        const Square square = turned_square(weights, from);
        for (std::size_t i = 0; i < kItems; ++i, to += kPanel) store(to, square[i]);
      }
    }
    for (; at < piece.end; ++at, to += kPanel) store(to, column_of(weights, at));
  }
}

// The sums of this piece for kRows rows of `x` and the panel's outputs: written to `out`, or added to what is there.
template <std::size_t kRows>
AEGAEON_VECTOR void block(const RowProduct& of, const Panel& panel, const float* x, float* out, Piece piece,
                          const Masks& masks) {
  Vector sums[kRows][kWide];
#pragma GCC unroll 16
  for (std::size_t row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (std::size_t part = 0; part < kWide; ++part) sums[row][part] = zero();
  const float* packed = panel.items.data();
  for (std::size_t at = piece.begin; at < piece.end; ++at, packed += kPanel) {
    Vector weights[kWide];
#pragma GCC unroll 4
    for (std::size_t part = 0; part < kWide; ++part) weights[part] = load(packed + part * kLanes);
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kRows; ++row) {
      const Vector item = everywhere(x[row * of.inner + at]);
#pragma GCC unroll 4
      for (std::size_t part = 0; part < kWide; ++part)
        sums[row][part] = multiply_add(weights[part], item, sums[row][part]);
    }
  }
#pragma GCC unroll 16
  for (std::size_t row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (std::size_t part = 0; part < kWide; ++part) {
      float* to = out + row * of.outer + part * kLanes;
      Vector sum = sums[row][part];
      if (piece.begin != 0) sum = add(load_masked(to, masks[part]), sum);
      store_masked(to, masks[part], sum);
    }
}

using Block = void (*)(const RowProduct&, const Panel&, const float*, float*, Piece, const Masks&);

template <std::size_t... kRows>
constexpr std::array<Block, kTallest> blocks(std::index_sequence<kRows...>) {
  return {block<kRows + 1>...};
}

// Many rows: each panel is packed, and read from the cache by blocks of rows of about the same height.
AEGAEON_VECTOR void pack_and_sum(const RowProduct& of, Outputs outputs) {
  static constexpr auto kBlocks = blocks(std::make_index_sequence<kTallest>{});
  thread_local Panel panel;
  const std::size_t count = (of.rows + kTallest - 1) / kTallest;
  for (std::size_t begin = 0; begin < of.inner; begin += kPiece) {
    const Piece piece{begin, std::min(begin + kPiece, of.inner)};
    for (std::size_t first = outputs.begin; first < outputs.end; first += kPanel) {
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
void dispatch(const RowProduct& of, Outputs outputs, std::index_sequence<kRows...>) {
  static constexpr std::array kStreams{stream<kRows + 1>...};
  kStreams[of.rows - 1](of, outputs);
}

void multiply(const RowProduct& of, Outputs outputs) {
  if (of.rows > kFewRows) return pack_and_sum(of, outputs);
  if (of.rows > 0) dispatch(of, outputs, std::make_index_sequence<kFewRows>{});
}

}  // namespace

}  // namespace aegaeon
