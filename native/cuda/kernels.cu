// KV blocks between device memory and page-locked host memory in one launch: small blocks cost a copy engine more to
// start than to move. One row of the grid per piece; neighbours in a warp take neighbouring 16 bytes.
#include "aegaeon/cuda/pieces.hpp"

using aegaeon::cuda::kUnitBytes;
using aegaeon::cuda::Pieces;

extern "C" __global__ void __launch_bounds__(aegaeon::cuda::kThreads)
    aegaeon_copy_pieces(const __grid_constant__ Pieces pieces) {
  const unsigned piece = blockIdx.y;
  auto* to = reinterpret_cast<uint4*>(pieces.to[piece]);
  const auto* from = reinterpret_cast<const uint4*>(pieces.from[piece]);
  const unsigned units = pieces.bytes[piece] / kUnitBytes;
  const unsigned stride = gridDim.x * blockDim.x;
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < units; i += 4 * stride) {  // four loads in flight hide the link's delay
    const uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride], d = from[i + 3 * stride];
    to[i] = a, to[i + stride] = b, to[i + 2 * stride] = c, to[i + 3 * stride] = d;
  }
  for (; i < units; i += stride) to[i] = from[i];
}
