#pragma once
#include <cstdint>

#include "kernels/multiply/many_rows.h"

/// How many rows of x the instructions of an item take.

namespace twofour::cuda {

/// How a block is cut. Up to 128 rows: two warpgroups multiply, which leaves each thread registers for as
/// many sums. Up to 48: four do, as decoding is most of the work then. Up to 32: they have fewer rows to
/// copy.
struct WideRows {
  static constexpr int kMost = kMostRows, kWarpgroups = 2;
  static constexpr int kCopyRegisters = 56, kMultiplyRegisters = 200;
};
struct MiddleRows {
  static constexpr int kMost = kMiddleRows, kWarpgroups = 4;
  static constexpr int kCopyRegisters = 48, kMultiplyRegisters = 96;
};
struct NarrowRows {
  static constexpr int kMost = kNarrowRows, kWarpgroups = 4;
  static constexpr int kCopyRegisters = 48, kMultiplyRegisters = 96;
};

/// Groups of 16 k of a step that a warp decodes before it multiplies them: as many as registers allow, since
/// warps of a warpgroup wait for each other at each multiplication.
template <int kMost>
inline constexpr int k16Together = kMost > kMiddleRows ? 4 : 2;

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
template <int kMost, int kRows = kMost <= kMiddleRows ? 8 : 16, class F>
__device__ __forceinline__ void for_width(int rows, const F& f) {
  constexpr int kNext = kRows + (kRows < 32 ? 8 : kRows < 64 ? 16 : 32);
  if constexpr (kNext <= kMost) {
    if (rows > kRows) return for_width<kMost, kNext>(rows, f);
  }
  f.template operator()<kRows>();
}

}  // namespace twofour::cuda
