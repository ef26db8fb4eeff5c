#include "aegaeon/stream_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aegaeon {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kVector = sizeof(__m256i);

// `dst` is aligned to a vector, `bytes` a multiple of two. The fence orders these stores before a later release.
__attribute__((target("avx2"))) void stream_vectors(std::byte* dst, const std::byte* src, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 2 * kVector) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i + kVector));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + i + kVector), high);
  }
  _mm_sfence();
}

}  // namespace

void stream_copy(std::byte* dst, const std::byte* src, std::size_t bytes) {
  static const bool has_vectors = __builtin_cpu_supports("avx2") != 0;
  const std::size_t past = reinterpret_cast<std::uintptr_t>(dst) % kVector;
  const std::size_t head = std::min(bytes, (kVector - past) % kVector);
  const std::size_t body = has_vectors ? (bytes - head) / (2 * kVector) * (2 * kVector) : 0;
  std::memcpy(dst, src, head);
  if (body != 0) stream_vectors(dst + head, src + head, body);
  std::memcpy(dst + head + body, src + head + body, bytes - head - body);
}

#else

void stream_copy(std::byte* dst, const std::byte* src, std::size_t bytes) { std::memcpy(dst, src, bytes); }

#endif

}  // namespace aegaeon
