#pragma once
#include "kernels/device/ptx.cuh"
#include "kernels/multiply/sparse_launch.h"

namespace twofour::cuda {

/// The local expert of an id, or -1.
__device__ __forceinline__ int local_expert_of(const RowIds& a, int e) {
  bool known = static_cast<unsigned>(e) < static_cast<unsigned>(a.known);
  if (a.expert_map && known) {
    e = a.expert_map[e];
    if (e == -1) return -1;
    known = static_cast<unsigned>(e) < static_cast<unsigned>(a.e);
  }
  if (known) return e;
  if (a.error) *a.error = 1;
  return -1;
}

/// The same of a row.
__device__ __forceinline__ int local_expert(const RowIds& a, int row) {
  return local_expert_of(a, a.ids[row]);
}

/// Writes 64 k of a row, of which each lane of a warp has two neighbours.
__device__ __forceinline__ void prepare_step(const PreparedRows& to, int64_t row, int steps, int step,
                                             int lane, float2 x) {
  const int64_t at = row * steps + step;
  auto* halves = reinterpret_cast<uint32_t*>(to.halves + at * 8);
  const uint32_t largest =
      __reduce_max_sync(0xFFFFFFFFu, max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))));
  const auto [scale, factor] = half_scale(largest);
  halves[lane / 16 * 16 + lane % 4 * 4 + lane % 16 / 4] = half2_of(x.x * scale, x.y * scale);
  if (lane == 0) to.factors[at] = factor;
}

}  // namespace twofour::cuda
