// The kernel's parameters: by value, so that no buffer has to outlive a launch. Read by the C++ compiler and by nvcc.
#pragma once

#include <cstdint>

namespace aegaeon::cuda {

inline constexpr const char* kCopyPieces = "aegaeon_copy_pieces";
inline constexpr unsigned kPiecesPerLaunch = 200;  // 4096 bytes of parameters is the limit
inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kUnitBytes = 16;  // addresses and sizes are multiples of it

struct Pieces {
  std::uint64_t to[kPiecesPerLaunch];
  std::uint64_t from[kPiecesPerLaunch];
  std::uint32_t bytes[kPiecesPerLaunch];
  std::uint32_t count;
};
static_assert(sizeof(Pieces) <= 4096);

}  // namespace aegaeon::cuda
