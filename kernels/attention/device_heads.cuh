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

/// One head, by a warp: its norm, its clip and its rotation at a position, into shared memory.
__device__ inline void prepare_head(const HeadRows& h, const float* x, int64_t position, float* own) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kMost = kMostHeadSize / 32;
  float values[kMost], norms[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int at = lane + 32 * i;
    values[i] = at < h.head_size ? x[at] : 0.0f;
    if (h.norm != nullptr) norms[i] = at < h.head_size ? h.norm[at] : 0.0f;
  }
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  if (h.norm != nullptr) {
    sum = sum_of_warp(sum);
    const auto factor = 1.0f / sqrtf(static_cast<float>(sum) / static_cast<float>(h.head_size) +
                                     static_cast<float>(h.epsilon));
#pragma unroll
    for (int i = 0; i < kMost; ++i) values[i] = values[i] * factor * norms[i];
  }
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (h.clip > 0) values[i] = fminf(fmaxf(values[i], -h.clip), h.clip);
    if (lane + 32 * i < h.head_size) own[lane + 32 * i] = values[i];
  }
  __syncwarp();
  const int64_t step = h.interleaved ? 2 : 1, apart = h.interleaved ? 1 : h.pairs;
  for (int64_t j = lane; j < h.pairs; j += 32) {
    const float angle = static_cast<float>(position) * h.frequencies[j];
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    sine *= h.amplitude;
    cosine *= h.amplitude;
    float &a = own[h.rotated_from + j * step], &b = own[h.rotated_from + j * step + apart];
    const float x0 = a, x1 = b;
    a = x0 * cosine - x1 * sine;
    b = x1 * cosine + x0 * sine;
  }
  __syncwarp();
}

}  // namespace twofour::cuda
