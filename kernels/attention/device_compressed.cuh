#pragma once
#include "kernels/attention/device_compressed.h"
#include "kernels/attention/device_heads.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"

namespace twofour::cuda {

__device__ __forceinline__ int64_t begin_of(const TokenSpan& t) {
  return t.position != nullptr ? *t.position : t.begin;
}

/// The row of the token at position `at`, for a call whose first token is at `begin`.
__device__ __forceinline__ const float* row_at(const KeptRows& r, int64_t begin, int64_t at) {
  if (at >= begin) return r.rows + (at - begin) * r.stride;
  return r.kept + static_cast<unsigned>(at) % static_cast<unsigned>(r.count) * r.size;
}

/// Rotates the last numbers of a row in shared memory by `position`, backward if `sign` is -1. The threads of
/// a block share the work, and synchronize before and after.
__device__ __forceinline__ void rotate_row(float* row, int64_t size, const float* frequencies, int64_t pairs,
                                           int64_t position, float sign) {
  for (int64_t j = threadIdx.x; j < pairs; j += blockDim.x) {
    const float2 turn = cosine_and_sine(static_cast<float>(position) * frequencies[j]);
    float *a = row + size - 2 * (pairs - j), *b = a + 1;
    const float x = *a, y = *b, sine = sign * turn.y;
    *a = x * turn.x - y * sine;
    *b = y * turn.x + x * sine;
  }
}

/// Throws Error on sizes that the kernels do not support.
inline void check_row_size(int64_t size, int64_t pairs) {
  expect(size > 0 && size <= kMostRowSize && 2 * pairs <= size, "compressed attention",
         "rows of at most " + std::to_string(kMostRowSize) + " numbers for CUDA", std::to_string(size));
}

}  // namespace twofour::cuda
