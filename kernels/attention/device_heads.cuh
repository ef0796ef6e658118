#pragma once
#include <algorithm>

#include "kernels/attention/device_attention.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"

namespace twofour::cuda {

/// Head `head` of a row of x.
__device__ __forceinline__ const float* head_of(const HeadRows& h, const float* x, int64_t head) {
  return x + head * (h.head_stride > 0 ? h.head_stride : h.head_size);
}

/// Throws Error on heads that the kernels do not support.
inline void check_heads(const DeviceAttention& in) {
  expect(in.heads > 0 && in.kv_heads > 0 && in.heads % in.kv_heads == 0 && in.heads < 65536, "attention",
         "heads in groups", std::to_string(in.heads) + " of " + std::to_string(in.kv_heads));
  expect(in.head_size > 0 && in.head_size <= kMostHeadSize && in.value_size > 0 &&
             in.value_size <= kMostHeadSize,
         "attention", "heads of at most " + std::to_string(kMostHeadSize) + " numbers for CUDA",
         std::to_string(std::max(in.head_size, in.value_size)));
}

/// The cosine and sine of an angle of magnitude up to 2^20, with an error of 2^-20. Full turns are subtracted
/// first.
__device__ __forceinline__ float2 cosine_and_sine(float angle) {
  constexpr float kTurn = 6.28318530717958648f, kRest = -1.74845553e-7f;  // together 2 pi to 2^-49
  const float turns = rintf(angle * (1 / kTurn));
  const float rest = fmaf(-turns, kRest, fmaf(-turns, kTurn, angle));
  return {__cosf(rest), __sinf(rest)};
}

/// The data of a warp for a head of at most 32 * kEach numbers, without the head itself. They can be loaded
/// before the head.
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
      const float2 turn = cosine_and_sine(static_cast<float>(position) * h.frequencies[lane + 32 * i]);
      turns[i] = {turn.x * h.amplitude, turn.y * h.amplitude};
    }
  }
};

/// Prepares one head in one warp: its norm, its clip and its rotation. Writes it to shared memory.
template <int kEach>
__device__ __forceinline__ void prepare_head(const HeadRows& h, const HeadAhead<kEach>& ahead, const float* x,
                                             float* own) {
  const int lane = static_cast<int>(threadIdx.x) % 32, size = static_cast<int>(h.head_size);
  float values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) values[i] = lane + 32 * i < size ? x[lane + 32 * i] : 0.0f;
  if (h.norm != nullptr) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += values[i] * values[i];
    const float factor =
        rsqrtf(__fdividef(sum_of_warp(sum), static_cast<float>(size)) + static_cast<float>(h.epsilon));
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
