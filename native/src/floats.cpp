#include "aegaeon/floats.hpp"

#include <bit>
#include <cstring>

namespace aegaeon {

namespace {

constexpr std::uint32_t kSign = 0x80000000;
constexpr std::uint32_t kInfinity = 0x7f800000;
constexpr std::uint32_t kHalfInfinity = 0x7c00;
constexpr std::uint32_t kQuiet = 0x00400000;
constexpr int kHalfShift = 13;                // mantissas: 23 bits against 10
constexpr std::uint32_t kRebias = 112 << 23;  // exponents: 127 against 15

// Each format: its item, and its bits as those of a float32 and back.
struct F32 {
  using Item = std::uint32_t;
  static std::uint32_t widen(Item item) { return item; }
  static Item narrow(std::uint32_t bits) { return bits; }
};

struct BF16 {
  using Item = std::uint16_t;
  static std::uint32_t widen(Item item) { return std::uint32_t{item} << 16; }
  static Item narrow(std::uint32_t bits) {
    const bool nan = (bits & ~kSign) > kInfinity;
    const std::uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    return static_cast<Item>((nan ? bits | kQuiet : rounded) >> 16);
  }
};

struct F16 {
  using Item = std::uint16_t;

  static std::uint32_t widen(Item item) {
    const std::uint32_t magnitude = item & 0x7fffU;
    std::uint32_t bits = (magnitude << kHalfShift) + kRebias;
    if (magnitude >= kHalfInfinity) bits += kRebias;
    // Below the smallest normal: as a normal number with one exponent more, less the one that this adds.
    constexpr std::uint32_t kSmallest = kRebias + (1U << 23);
    const float tiny = std::bit_cast<float>((magnitude << kHalfShift) + kSmallest) - std::bit_cast<float>(kSmallest);
    if (magnitude < 0x400) bits = std::bit_cast<std::uint32_t>(tiny);
    return bits | (item & 0x8000U) << 16;
  }

  static Item narrow(std::uint32_t bits) {
    const std::uint32_t magnitude = bits & ~kSign;
    std::uint32_t half = (magnitude - kRebias + 0xfff + (magnitude >> kHalfShift & 1)) >> kHalfShift;
    // Too small for a normal: the sum with 0.5 rounds where a half's last bit is.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    if (magnitude < kRebias + (1U << 23))
      half = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F);
    if (magnitude >= 0x477ff000) half = kHalfInfinity;  // 65520 and more round past the largest
    if (magnitude > kInfinity) half = 0x7e00;
    return static_cast<Item>(half | (bits & kSign) >> 16);
  }
};

template <typename To, typename Of>
void convert_items(std::byte* dst, const std::byte* src, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    typename Of::Item item;
    std::memcpy(&item, src + i * sizeof item, sizeof item);
    const typename To::Item converted = To::narrow(Of::widen(item));
    std::memcpy(dst + i * sizeof converted, &converted, sizeof converted);
  }
}

template <typename To>
void convert_to(std::byte* dst, const std::byte* src, Float of, std::size_t count) {
  switch (of) {
    case Float::kF32:
      return convert_items<To, F32>(dst, src, count);
    case Float::kF16:
      return convert_items<To, F16>(dst, src, count);
    case Float::kBF16:
      return convert_items<To, BF16>(dst, src, count);
  }
}

}  // namespace

void convert(std::byte* dst, Float to, const std::byte* src, Float of, std::size_t count) {
  switch (to) {
    case Float::kF32:
      return convert_to<F32>(dst, src, of, count);
    case Float::kF16:
      return convert_to<F16>(dst, src, of, count);
    case Float::kBF16:
      return convert_to<BF16>(dst, src, of, count);
  }
}

}  // namespace aegaeon
