#pragma once
#include <cstdint>

#include "kernels/device/isa.h"

namespace twofour::cpu {

/// out = x w' for `m` rows: `x` [m, k], `w` [n, k], `out` rows `stride` floats apart, on all threads, in
/// tiles of a fixed size.
void multiply(const float* x, int64_t m, const float* w, int64_t n, int64_t k, float* out, int64_t stride,
              Isa isa = best_isa());

/// sums += x' x for `m` rows `x` [m, k], only in the upper triangle of `sums` [k, k]. Several hundred rows at
/// a time, in tiles of a fixed size, on all threads.
void add_products(const float* x, int64_t m, int64_t k, float* sums, Isa isa = best_isa());

/// sums += a' b for `m` rows: `a` [m, n], `b` [m, k], `sums` [n, k], in the same way.
void add_cross_products(const float* a, int64_t n, const float* b, int64_t k, int64_t m, float* sums,
                        Isa isa = best_isa());

}  // namespace twofour::cpu
