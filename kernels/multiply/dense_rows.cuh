#pragma once
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "kernels/device/ptx.cuh"
#include "kernels/multiply/dense_multiply.h"
#include "kernels/multiply/expert_rows.cuh"

/// Activations as the dense kernel reads them.

namespace twofour::cuda {

inline constexpr int kDenseThreads = 256, kDenseStepK = 256;

struct DensePrepareArgs {
  const void* x;
  Float type;
  Nvfp4Rows nvfp4;
  int32_t k, steps;
  uint4* halves;
  float* factors;
  RowIds rows;  ///< without an expert they are left out; without ids (x of several rows) none is
};

/// The place of the 8 k of unit `u` (k / 8) among the units of a row: [step][half][word][t].
__device__ __forceinline__ int unit_place(int u) {
  return u / 32 * 32 + (u % 32 / 16 * 4 + u % 4) * 4 + u % 16 / 4;
}

/// A block prepares a row.
static __global__ void __launch_bounds__(kDenseThreads)
    prepare_dense_kernel(const __grid_constant__ DensePrepareArgs a) {
  release_successor();
  const int64_t row = blockIdx.x;
  // Such a row is never read, and its input may never have been written.
  if (a.rows.ids && local_expert(a.rows, static_cast<int>(row)) < 0) return;
  const int thread = static_cast<int>(threadIdx.x), units = a.steps * (kDenseStepK / 8);
  uint4* to = a.halves + row * units;
  if (a.nvfp4.codes) {
    for (int u = thread; u < units; u += kDenseThreads) {
      uint32_t words[4] = {};
      if (u * 8 < a.k) {
        const float scale = e4m3_to_float(a.nvfp4.scales[row * (a.k / kGroup) + u / 2]);
        const uint8_t* codes = a.nvfp4.codes + row * (a.k / 2) + u * 4;
        const auto value = [&](int i) { return e2m1_to_float(codes[i / 2] >> 4 * (i % 2) & 15u) * scale; };
        for (int i = 0; i < 4; ++i) words[i] = half2_of(value(i), value(i + 4));
      }
      to[unit_place(u)] = {words[0], words[1], words[2], words[3]};
    }
    if (thread == 0) a.factors[row] = *a.nvfp4.global_scale * 0x1p14f;
    return;
  }
  const int64_t first = row * a.k;
  uint32_t largest = 0;
  for (int i = thread * 2; i < a.k; i += kDenseThreads * 2) {
    const float2 x = load_pair(a.x, a.type, first + i);
    largest = max(largest, max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))));
  }
  const auto [scale, factor] = half_scale(block_largest<kDenseThreads>(largest));
  for (int u = thread; u < units; u += kDenseThreads) {
    float x[8] = {};
    for (int i = 0; i < 8 && u * 8 < a.k; i += 2) {
      const float2 pair = load_pair(a.x, a.type, first + u * 8 + i);
      x[i] = pair.x * scale, x[i + 1] = pair.y * scale;
    }
    to[unit_place(u)] = {half2_of(x[0], x[4]), half2_of(x[1], x[5]), half2_of(x[2], x[6]),
                         half2_of(x[3], x[7])};
  }
  if (thread == 0) a.factors[row] = factor;
}

}  // namespace twofour::cuda
