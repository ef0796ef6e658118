#pragma once
#include <cstdint>

// Files that are compiled for one instruction set include this file.

namespace twofour {

enum class Isa;

/// A matrix of floats. Its rows are `stride` floats apart.
struct FloatRows {
  const float* data;
  int64_t stride;
};

/// Dense algebra in float32 on one thread, by Eigen with constant cache sizes. Results are the same floats on
/// all processors with the instruction set, whatever their caches. Instruction sets differ in the last bits,
/// because they add in different orders and fuse products.
struct FloatOps {
  /// Computes out[i, j] = sum over k of a[i, k] * b[j, k]. `a` is [m, k], `b` is [n, k] and `out` is [m, n].
  void (*multiply_rows)(int64_t m, int64_t n, int64_t k, FloatRows a, FloatRows b, float* out,
                        int64_t stride);
  /// Computes out[i, j] = sum over k of a[i, k] * b[k, j]. `a` is [m, k], `b` is [k, n] and `out` is [m, n].
  void (*multiply_columns)(int64_t m, int64_t n, int64_t k, FloatRows a, FloatRows b, float* out,
                           int64_t stride);
  /// Computes the softmax of x and one further logit, `sink`, in place. The share of the sink is not stored.
  /// Without a sink, it is -infinity.
  void (*softmax)(float* x, int64_t count, float sink);
  /// Returns the logarithm of the sum of exp(x).
  double (*log_sum_exp)(const float* x, int64_t count);
  /// Computes gate = gate * sigmoid(slope * gate) * (up + offset) in place. With slope 1 and offset 0 this is
  /// SwiGLU.
  void (*gate_units)(float* gate, const float* up, int64_t count, float slope, float offset);
};

extern const FloatOps kFloatOpsPortable, kFloatOpsAvx2, kFloatOpsAvx512;
/// The functions for an instruction set.
const FloatOps& float_ops(Isa isa);

}  // namespace twofour
