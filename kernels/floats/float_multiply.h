#pragma once
#include <cstdint>

#include "kernels/device/isa.h"

namespace twofour::cpu {

/// out = x w' of `m` rows: `x` [m, k], `w` [n, k], `out` rows `stride` floats apart, on all threads, in tiles
/// of a fixed size.
void multiply(const float* x, int64_t m, const float* w, int64_t n, int64_t k, float* out, int64_t stride,
              Isa isa = best_isa());

}  // namespace twofour::cpu
