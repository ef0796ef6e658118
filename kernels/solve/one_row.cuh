#pragma once
#include <cuda_fp8.h>

#include <cstdint>
#include <cuda/std/bit>

#include "kernels/solve/solve_blocks.h"

namespace twofour::cuda {
namespace {

/// A number of one row.
struct OneRow {
  using F = float;
  using I = int32_t;
  TWOFOUR_HD static F load(const float* p) { return *p; }
  TWOFOUR_HD static I load(const int32_t* p) { return *p; }
  TWOFOUR_HD static void store(float* p, F x) { *p = x; }
  TWOFOUR_HD static void store(int32_t* p, I x) { *p = x; }
  TWOFOUR_HD static F splat(float x) { return x; }
  TWOFOUR_HD static I splat(int32_t x) { return x; }
  TWOFOUR_HD static F pick(I which, F a, F b) { return which ? a : b; }
  TWOFOUR_HD static I pick(I which, I a, I b) { return which ? a : b; }
  TWOFOUR_HD static I bits(F x) { return ::cuda::std::bit_cast<I>(x); }
  TWOFOUR_HD static F floats(I x) { return ::cuda::std::bit_cast<F>(x); }
  TWOFOUR_HD static F magnitude(F x) { return fabsf(x); }
  TWOFOUR_HD static F larger(F a, F b) { return a < b ? b : a; }
  TWOFOUR_HD static F look_up(const float* table, I at) { return table[at]; }
  TWOFOUR_HD static I nearest_scales(const SolvePlan&, F want) {
    const F bounded = want > 0x1p-9f ? want : 0x1p-9f;
    const int code = __nv_cvt_float_to_fp8(bounded, __NV_SATFINITE, __NV_E4M3);
    return code < 1 ? 1 : code > 126 ? 126 : code;
  }
};

}  // namespace
}  // namespace twofour::cuda
