#pragma once
#include <cstdint>

#include "kernels/multiply/many_rows.h"

/// The instructions of an item, which depend on the number of rows of x.

namespace twofour::cuda {

/// The division of a block. For up to 256 rows, two warpgroups multiply 64 columns each, one m-tile, so that
/// each thread has registers for all sums. Two blocks, a cluster, have adjacent columns, and each copies half
/// of the rows of x to both. For up to 128 rows, two warpgroups multiply two m-tiles each. For up to 48 rows,
/// four warpgroups multiply two m-tiles each, since decoding is then most of the work. For up to 32 rows,
/// they have fewer rows to copy. All widths are loops of one kernel. Work that is pending from one step to
/// the next would make the compiler serialize wgmma (C7512). Tried without gain: widths 40, 56 and 80, and
/// four warpgroups of one m-tile for up to 96 rows.
struct PairedRows {
  static constexpr int kMost = kMostRows, kWarpgroups = 2, kTiles = 1, kBlocks = 2;
  static constexpr int kCopyWarps = 2, kConvertWarps = 2, kConvertTogether = 2;
  static constexpr int kCopyRegisters = 72, kMultiplyRegisters = 216;
};
struct WideRows {
  static constexpr int kMost = kWideRows, kWarpgroups = 2, kTiles = 2, kBlocks = 1;
  static constexpr int kCopyWarps = 4, kConvertWarps = 4, kConvertTogether = 1;
  static constexpr int kCopyRegisters = 56, kMultiplyRegisters = 200;
};
struct MiddleRows {
  static constexpr int kMost = kMiddleRows, kWarpgroups = 4, kTiles = 2, kBlocks = 1;
  static constexpr int kCopyWarps = 4, kConvertWarps = 4, kConvertTogether = 1;
  static constexpr int kCopyRegisters = 48, kMultiplyRegisters = 96;
};
struct NarrowRows {
  static constexpr int kMost = kNarrowRows, kWarpgroups = 4, kTiles = 2, kBlocks = 1;
  static constexpr int kCopyWarps = 4, kConvertWarps = 4, kConvertTogether = 1;
  static constexpr int kCopyRegisters = 48, kMultiplyRegisters = 96;
};

/// The numbers of copying and of converting threads.
template <class Width>
inline constexpr int kCopyThreads = Width::kCopyWarps * 32;
template <class Width>
inline constexpr int kConvertThreads = Width::kConvertWarps * 32;

/// The number of columns of an item, in units of 128. If gated, a unit is 64 gates with their ups.
template <class Width>
inline constexpr int kItemColumns = (Width::kBlocks * Width::kWarpgroups * Width::kTiles) / 2;

/// The number of groups of 16 k in a step that a warp decodes before it multiplies them. It is as large as
/// registers allow, because the warps of a warpgroup wait for each other at each multiplication.
template <int kMost>
inline constexpr int k16Together = kMost > kMiddleRows ? 4 : 2;

/// The sums of a warpgroup, for each m-tile and row.
template <class Width>
using Sums = float[Width::kTiles][Width::kMost / 2];

/// The sums of the first kRows rows.
template <int kRows, int kCount>
__device__ __forceinline__ float (&first_sums(float (&sums)[kCount]))[kRows / 2] {
  return reinterpret_cast<float(&)[kRows / 2]>(sums);
}

/// Sets the sums of the first kRows rows to zero.
template <int kRows, int kTiles, int kCount>
__device__ __forceinline__ void clear(float (&sums)[kTiles][kCount]) {
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) sums[tile][i] = 0;
  }
}

/// Calls `f.template operator()<kRows>()` with the smallest width for `rows` rows. The width is at most
/// kMost.
template <int kMost,
          int kRows = kMost <= kMiddleRows ? 8
                      : kMost <= kWideRows ? 16
                                           : 64,
          class F>
__device__ __forceinline__ void for_width(int rows, const F& f) {
  constexpr int kNext = kRows + (kMost > kWideRows ? 32 : kRows < 32 ? 8 : kRows < 64 ? 16 : 32);
  if constexpr (kNext <= kMost) {
    if (rows > kRows) return for_width<kMost, kNext>(rows, f);
  }
  f.template operator()<kRows>();
}

}  // namespace twofour::cuda
