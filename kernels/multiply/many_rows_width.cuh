#pragma once
#include <cstdint>

#include "kernels/multiply/many_rows.h"

/// How many rows of x the instructions of an item take.

namespace twofour::cuda {

/// How a block is cut. Up to 128 rows: two warpgroups multiply, which leaves each thread registers for as
/// many sums. Up to 32: four do, as decoding is most of the work then.
struct WideRows {
  static constexpr int kMost = kMostRows, kWarpgroups = 2;
  static constexpr int kCopyRegisters = 56, kMultiplyRegisters = 200;
};
struct NarrowRows {
  static constexpr int kMost = kNarrowRows, kWarpgroups = 4;
  static constexpr int kCopyRegisters = 48, kMultiplyRegisters = 96;
};

/// Of two m-tiles and kMost rows.
template <int kMost>
using Sums = float[2][kMost / 2];

/// Those of the first kRows rows.
template <int kRows, int kCount>
__device__ __forceinline__ float (&first_sums(float (&sums)[kCount]))[kRows / 2] {
  return reinterpret_cast<float(&)[kRows / 2]>(sums);
}

/// Sets those of the first kRows rows to zero.
template <int kRows, int kCount>
__device__ __forceinline__ void clear(float (&sums)[2][kCount]) {
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) sums[0][i] = sums[1][i] = 0;
}

/// Calls `f.template operator()<kRows>()` with the smallest width that takes `rows` rows, of kMost at most.
template <int kMost, class F>
__device__ __forceinline__ void for_width(int rows, const F& f) {
  if (kMost <= kNarrowRows && rows <= 8) return f.template operator()<8>();
  if (rows <= 16) return f.template operator()<16>();
  if (rows <= 24) return f.template operator()<24>();
  if (kMost <= kNarrowRows || rows <= 32) return f.template operator()<32>();
  if constexpr (kMost > kNarrowRows) {
    if (rows <= 48) return f.template operator()<48>();
    if (rows <= 64) return f.template operator()<64>();
    if (rows <= 96) return f.template operator()<96>();
    return f.template operator()<128>();
  }
}

}  // namespace twofour::cuda
