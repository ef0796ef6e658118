#pragma once
#include <algorithm>

#include "kernels/attention/device_attention.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"

namespace twofour::cuda {

/// Throws Error on heads that the kernels do not take.
inline void check_heads(const DeviceAttention& in) {
  expect(in.heads > 0 && in.kv_heads > 0 && in.heads % in.kv_heads == 0 && in.heads < 65536, "attention",
         "heads in groups", std::to_string(in.heads) + " of " + std::to_string(in.kv_heads));
  expect(in.head_size > 0 && in.head_size <= kMostHeadSize && in.value_size > 0 &&
             in.value_size <= kMostHeadSize,
         "attention", "heads of at most " + std::to_string(kMostHeadSize) + " numbers for CUDA",
         std::to_string(std::max(in.head_size, in.value_size)));
}

__device__ __forceinline__ double sum_of_warp(double x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}

/// What a warp needs for a head of at most 32 * kEach numbers beside the head: it can be there before it.
template <int kEach>
struct HeadAhead {
  float norms[kEach];
  float2 turns[(kEach + 1) / 2];  ///< cosines and sines of the pairs, 32 apart

  __device__ __forceinline__ HeadAhead(const HeadRows& h, int64_t position) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      norms[i] = h.norm != nullptr && lane + 32 * i < h.head_size ? h.norm[lane + 32 * i] : 0.0f;
#pragma unroll
    for (int i = 0; i < (kEach + 1) / 2; ++i) {
      turns[i] = {1, 0};
      if (lane + 32 * i >= h.pairs) continue;
      sincosf(static_cast<float>(position) * h.frequencies[lane + 32 * i], &turns[i].y, &turns[i].x);
      turns[i].x *= h.amplitude, turns[i].y *= h.amplitude;
    }
  }
};

/// One head, by a warp: its norm, its clip and its rotation, into shared memory.
template <int kEach>
__device__ __forceinline__ void prepare_head(const HeadRows& h, const HeadAhead<kEach>& ahead, const float* x,
                                             float* own) {
  const int lane = static_cast<int>(threadIdx.x) % 32, size = static_cast<int>(h.head_size);
  float values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) values[i] = lane + 32 * i < size ? x[lane + 32 * i] : 0.0f;
  if (h.norm != nullptr) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    sum = sum_of_warp(sum);
    const auto factor = 1.0f / sqrtf(static_cast<float>(sum) / static_cast<float>(h.head_size) +
                                     static_cast<float>(h.epsilon));
#pragma unroll
    for (int i = 0; i < kEach; ++i) values[i] = values[i] * factor * ahead.norms[i];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (h.clip > 0) values[i] = fminf(fmaxf(values[i], -h.clip), h.clip);
    if (lane + 32 * i < size) own[lane + 32 * i] = values[i];
  }
  __syncwarp();
  const int pairs = static_cast<int>(h.pairs), step = h.interleaved ? 2 : 1,
            apart = h.interleaved ? 1 : pairs;
#pragma unroll
  for (int i = 0; i < (kEach + 1) / 2; ++i) {
    const int j = lane + 32 * i;
    if (j >= pairs) continue;
    float& a = own[static_cast<int>(h.rotated_from) + j * step];
    float& b = *(&a + apart);
    const float x0 = a, x1 = b;
    a = x0 * ahead.turns[i].x - x1 * ahead.turns[i].y;
    b = x1 * ahead.turns[i].x + x0 * ahead.turns[i].y;
  }
  __syncwarp();
}

}  // namespace twofour::cuda
