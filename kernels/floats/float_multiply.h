#pragma once
#include <cstdint>

#include "kernels/device/isa.h"

namespace twofour::cpu {

/// Computes out = x w' for `m` rows. `x` is [m, k] and `w` is [n, k]. Rows of `out` are `stride` floats
/// apart. Works on all threads, in tiles of a fixed size.
void multiply(const float* x, int64_t m, const float* w, int64_t n, int64_t k, float* out, int64_t stride,
              Isa isa = best_isa());

/// Computes sums += x' x for `m` rows `x` [m, k], only in the upper triangle of `sums` [k, k]. Works on all
/// threads, on several hundred rows at a time, in tiles of a fixed size.
void add_products(const float* x, int64_t m, int64_t k, float* sums, Isa isa = best_isa());

/// Computes sums += a' b for `m` rows. `a` is [m, n], `b` is [m, k] and `sums` is [n, k]. Works like
/// add_products.
void add_cross_products(const float* a, int64_t n, const float* b, int64_t k, int64_t m, float* sums,
                        Isa isa = best_isa());

}  // namespace twofour::cpu
