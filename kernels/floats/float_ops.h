#pragma once
#include <cstdint>

// Included by files that are compiled for one instruction set.

namespace twofour {

enum class Isa;

/// A matrix of floats, its rows `stride` floats apart.
struct FloatRows {
  const float* data;
  int64_t stride;
};

/// Dense algebra in float32 on one thread, by Eigen with cache sizes that are constants: the same floats on
/// any processor that has the instruction set, whatever its caches. Instruction sets differ in the last bits,
/// as they add in different orders and fuse products.
struct FloatOps {
  /// out[i, j] = sum over k of a[i, k] * b[j, k]: `a` [m, k], `b` [n, k], `out` [m, n].
  void (*multiply_rows)(int64_t m, int64_t n, int64_t k, FloatRows a, FloatRows b, float* out,
                        int64_t stride);
  /// out[i, j] = sum over k of a[i, k] * b[k, j]: `a` [m, k], `b` [k, n], `out` [m, n].
  void (*multiply_columns)(int64_t m, int64_t n, int64_t k, FloatRows a, FloatRows b, float* out,
                           int64_t stride);
  /// The softmax of x and one further logit, whose share is not stored; -infinity: none.
  void (*softmax)(float* x, int64_t count, float sink);
  /// log of the sum of exp(x).
  double (*log_sum_exp)(const float* x, int64_t count);
  /// gate = gate * sigmoid(slope * gate) * (up + offset), in place: SwiGLU with slope 1 and offset 0.
  void (*gate_units)(float* gate, const float* up, int64_t count, float slope, float offset);
};

extern const FloatOps kFloatOpsPortable, kFloatOpsAvx2, kFloatOpsAvx512;
/// The functions of an instruction set.
const FloatOps& float_ops(Isa isa);

}  // namespace twofour
