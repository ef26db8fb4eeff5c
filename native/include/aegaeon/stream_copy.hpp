// Large copies that leave the caches to the compute lane, and are faster than memcpy because the target's lines are not
// read first.
#pragma once

#include <cstddef>

namespace aegaeon {

// Below this much memory the target is likely to be read soon and fits a cache: memcpy.
inline constexpr std::size_t kStreamingBytes = std::size_t{1} << 20;

// Like memcpy, by non-temporal stores where the processor has them. Complete, for other threads too, on return.
void stream_copy(std::byte* dst, const std::byte* src, std::size_t bytes);

}  // namespace aegaeon
