#include "aegaeon/likeliest.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "aegaeon/cpu_level.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aegaeon {

namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
constexpr float kLeast = -std::numeric_limits<float>::infinity();

// The largest, or NaN where there is one.
float largest(std::span<const float> row, float so_far) {
  for (const float item : row) {
    if (std::isnan(item)) return kNone;
    so_far = std::max(so_far, item);
  }
  return so_far;
}

std::int32_t place_of(float item, std::span<const float> row, std::size_t first) {
  return static_cast<std::int32_t>(std::find(row.begin() + static_cast<std::ptrdiff_t>(first), row.end(), item) -
                                   row.begin());
}

std::int32_t one_by_one(std::span<const float> row) {
  const float peak = largest(row, kLeast);
  return std::isfinite(peak) ? place_of(peak, row, 0) : kNoToken;
}

#if defined(__x86_64__)

constexpr std::size_t kLanes = sizeof(__m256) / sizeof(float);
constexpr std::size_t kStride = 4 * kLanes;  // as many independent maxima as hide an instruction's latency

__attribute__((target("avx2"))) std::int32_t side_by_side(std::span<const float> row) {
  const std::size_t body = row.size() / kStride * kStride;
  __m256 peaks[4];
  std::fill_n(peaks, 4, _mm256_set1_ps(kLeast));
  __m256 unordered = _mm256_setzero_ps();
  for (std::size_t at = 0; at < body; at += kStride) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      const __m256 items = _mm256_loadu_ps(row.data() + at + lane * kLanes);
      unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(items, items, _CMP_UNORD_Q));
      peaks[lane] = _mm256_max_ps(peaks[lane], items);
    }
  }
  if (_mm256_movemask_ps(unordered) != 0) return kNoToken;
  float each[kStride];
  for (std::size_t lane = 0; lane < 4; ++lane) _mm256_storeu_ps(each + lane * kLanes, peaks[lane]);
  const float peak = largest(row.subspan(body), *std::max_element(each, each + kStride));
  if (!std::isfinite(peak)) return kNoToken;
  const __m256 wanted = _mm256_set1_ps(peak);
  for (std::size_t at = 0; at < body; at += kLanes) {
    const __m256 equal = _mm256_cmp_ps(_mm256_loadu_ps(row.data() + at), wanted, _CMP_EQ_OQ);
    const auto lanes = static_cast<unsigned>(_mm256_movemask_ps(equal));
    if (lanes != 0) return static_cast<std::int32_t>(at) + std::countr_zero(lanes);
  }
  return place_of(peak, row, body);
}

#endif

}  // namespace

std::int32_t likeliest(std::span<const float> row) {
#if defined(__x86_64__)
  static const bool has_vectors = cpu_level() >= CpuLevel::kAvx2;
  if (has_vectors) return side_by_side(row);
#endif
  return one_by_one(row);
}

}  // namespace aegaeon
