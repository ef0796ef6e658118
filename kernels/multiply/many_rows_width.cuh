#pragma once
#include <cstdint>

#include "kernels/multiply/many_rows.h"

/// How many rows of x the instructions of an item take.

namespace twofour::cuda {

/// Of two m-tiles and kMostRows rows.
using Sums = float[2][kMostRows / 2];

/// Those of the first kRows rows.
template <int kRows>
__device__ __forceinline__ float (&first_sums(float (&sums)[kMostRows / 2]))[kRows / 2] {
  return reinterpret_cast<float(&)[kRows / 2]>(sums);
}

/// Calls `f.template operator()<kRows>()` with the smallest width that takes `rows` rows.
template <class F>
__device__ __forceinline__ void for_width(int rows, const F& f) {
  if (rows <= 16) return f.template operator()<16>();
  if (rows <= 24) return f.template operator()<24>();
  if (rows <= 32) return f.template operator()<32>();
  if (rows <= 48) return f.template operator()<48>();
  if (rows <= 64) return f.template operator()<64>();
  if (rows <= 96) return f.template operator()<96>();
  return f.template operator()<128>();
}

}  // namespace twofour::cuda
