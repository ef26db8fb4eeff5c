// The likeliest token of each row of logits, as numpy's argmax finds it, in one call: after a forward pass no code is
// in the caches, and every further operation costs more than its work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace aegaeon {

inline constexpr std::int32_t kNoToken = -1;

// The first of the largest of a row; kNoToken where that is not finite, as it is where the row has a NaN.
std::int32_t likeliest(std::span<const float> row);

}  // namespace aegaeon
