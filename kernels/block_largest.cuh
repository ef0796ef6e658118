#pragma once
#include <cstdint>

namespace twofour::cuda {

/// The largest of what the threads of a block give, in all of them. Called once in a kernel. The bits of
/// magnitudes sort as these do, so floats go through here as their bits.
template <int kThreads>
__device__ __forceinline__ uint32_t block_largest(uint32_t mine) {
  __shared__ uint32_t of_warp[kThreads / 32];
  uint32_t largest = __reduce_max_sync(0xFFFFFFFFu, mine);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (const uint32_t other : of_warp) largest = max(largest, other);
  return largest;
}

}  // namespace twofour::cuda
