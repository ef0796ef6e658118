#pragma once
#include <cstdint>

#include "kernels/multiply/many_rows.h"

/// How many rows of x the instructions of an item take.

namespace twofour::cuda {

/// Codes in the low nibbles of bytes 0 and 2, as BF16 times 2^-126: a product puts a nibble to where its sign
/// goes and to where the rest goes at once.
__device__ __forceinline__ uint32_t low_codes(uint32_t w) {
  return (w & 0x000F000Fu) * 0x1040u & 0x81C081C0u;
}
/// The same of the high nibbles.
__device__ __forceinline__ uint32_t high_codes(uint32_t w) {
  return (w & 0x00F000F0u) * 0x0104u & 0x81C081C0u;
}

/// Of two m-tiles and kMostRows rows.
using Sums = float[2][kMostRows / 2];

/// Those of the first kRows rows.
template <int kRows>
__device__ __forceinline__ float (&first_sums(float (&sums)[kMostRows / 2]))[kRows / 2] {
  return reinterpret_cast<float(&)[kRows / 2]>(sums);
}

/// Sets those of the first kRows rows to zero.
template <int kRows>
__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) sums[0][i] = sums[1][i] = 0;
}

/// What becomes of a row of an item: a row of the result, a factor.
struct StoredRow {
  int32_t id;
  float factor;
};

/// The rows of an item that a lane has of each eight, 2t and 2t + 1, loaded ahead of their use. Calls
/// `use(b, row 8b + 2t, that, the next)`.
template <class Use>
__device__ __forceinline__ void for_stored_rows(const StoredRow* rows, int count, int t, const Use& use) {
  const auto load = [&](int b) { return *reinterpret_cast<const int4*>(rows + 8 * b + 2 * t); };
  int4 next = load(0);
#pragma unroll
  for (int b = 0; b < kMostRows / 8; ++b) {
    const int4 two = next;
    if (8 * b >= count) break;
    if (b + 1 < kMostRows / 8) next = load(b + 1);
    use(b, 8 * b + 2 * t, StoredRow{two.x, __int_as_float(two.y)}, StoredRow{two.z, __int_as_float(two.w)});
  }
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
