#pragma once
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/multiply/sparse_warp.cuh"
#include "kernels/numbers/swiglu.cuh"

/// What becomes of sums.

namespace twofour::cuda {

__device__ __forceinline__ float square_of_positive(float x) {
  const float relu = x < 0 ? 0.0f : x;  // NaN stays NaN
  return relu * relu;
}

__device__ __forceinline__ float4 sum4(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/// Stores the first `present` of four neighbours.
__device__ __forceinline__ void store_four(const SparseArgs& a, int64_t at, int present, const float4& v) {
  if (present >= 4 && a.n % 4 == 0 && a.wide_out) {
    if (a.out_type == Float::f32) {
      *reinterpret_cast<float4*>(static_cast<float*>(a.out) + at) = v;
    } else {
      const bool bf16 = a.out_type == Float::bf16;
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(a.out) + at) = {
          bf16 ? bfloat2_of(v.x, v.y) : half2_of(v.x, v.y), bf16 ? bfloat2_of(v.z, v.w) : half2_of(v.z, v.w)};
    }
    return;
  }
  if (present > 0) store_float(a.out, a.out_type, at, v.x);
  if (present > 1) store_float(a.out, a.out_type, at + 1, v.y);
  if (present > 2) store_float(a.out, a.out_type, at + 2, v.z);
  if (present > 3) store_float(a.out, a.out_type, at + 3, v.w);
}

/// Makes 128 neighbours, of which each lane has four, into two steps of the next multiplication. Of those of
/// the lane, `present` exist.
__device__ __forceinline__ void prepare_columns(const SparseArgs& a, int64_t row, int column, int present,
                                                int lane, float4 v) {
  if (present < 1) v.x = 0;
  if (present < 2) v.y = 0;
  if (present < 3) v.z = 0;
  if (present < 4) v.w = 0;
  const int steps = ((a.gated ? a.n / 2 : a.n) - 1) / kStepK, step = column / kStepK;  // the last, and this
  uint32_t largest = __float_as_uint(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
#pragma unroll
  for (int d = 8; d > 0; d /= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, d));
  if (step > steps) return;
  const int64_t at = row * (steps + 1) + step;
  const auto [scale, factor] = half_scale(largest);
  auto* halves = reinterpret_cast<uint32_t*>(a.prepared.halves + at * 8);
  const int pair = lane % 16 * 2;  // of 32
  halves[pair / 16 * 16 + pair % 4 * 4 + pair % 16 / 4] = half2_of(v.x * scale, v.y * scale);
  halves[pair / 16 * 16 + (pair + 1) % 4 * 4 + pair % 16 / 4] = half2_of(v.z * scale, v.w * scale);
  if (lane % 16 == 0) a.prepared.factors[at] = factor;
}

}  // namespace twofour::cuda
