// The number formats that weights come in, turned into each other on their way to the device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aegaeon {

enum class Float : std::uint8_t { kF32, kF16, kBF16 };

constexpr std::size_t item_bytes(Float format) { return format == Float::kF32 ? 4 : 2; }

// `count` items, rounded to nearest even; neither address need be aligned.
void convert(std::byte* dst, Float to, const std::byte* src, Float of, std::size_t count);

}  // namespace aegaeon
