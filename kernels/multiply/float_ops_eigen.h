// The functions of a FloatOps, compiled for the instruction set of the file that includes this. That file
// first renames Eigen's namespace, so that no template of one instruction set is linked into another.
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_NO_IO
#include <Eigen/Core>
#include <cmath>

#include "kernels/multiply/float_ops.h"

namespace twofour {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<>;
using ConstRows = Eigen::Map<const Matrix, Eigen::Unaligned, Stride>;
using Rows = Eigen::Map<Matrix, Eigen::Unaligned, Stride>;
using Array = Eigen::Map<Eigen::ArrayXf>;
using ConstArray = Eigen::Map<const Eigen::ArrayXf>;

/// Blocks of products follow these; sums over K are cut at block borders.
constexpr std::ptrdiff_t kCacheBytes[] = {32 << 10, 256 << 10, 2 << 20};

void set_caches() {
  static const bool once = [] {
    Eigen::setCpuCacheSizes(kCacheBytes[0], kCacheBytes[1], kCacheBytes[2]);
    return true;
  }();
  static_cast<void>(once);
}

void multiply_rows(int64_t m, int64_t n, int64_t k, FloatRows a, FloatRows b, float* out, int64_t stride) {
  set_caches();
  Rows(out, m, n, Stride(stride)).noalias() =
      ConstRows(a.data, m, k, Stride(a.stride)) * ConstRows(b.data, n, k, Stride(b.stride)).transpose();
}

void multiply_columns(int64_t m, int64_t n, int64_t k, FloatRows a, FloatRows b, float* out, int64_t stride) {
  set_caches();
  Rows(out, m, n, Stride(stride)).noalias() =
      ConstRows(a.data, m, k, Stride(a.stride)) * ConstRows(b.data, k, n, Stride(b.stride));
}

void softmax(float* x, int64_t count, float sink) {
  Array all(x, count);
  const float largest = all.maxCoeff(), top = largest > sink ? largest : sink;
  all = (all - top).exp();
  all *= 1.0f / (all.sum() + std::exp(sink - top));
}

double log_sum_exp(const float* x, int64_t count) {
  constexpr int64_t kBlock = 512;  // summed in float, then in double
  const float top = ConstArray(x, count).maxCoeff();
  double sum = 0;
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t size = count - i < kBlock ? count - i : kBlock;
    sum += static_cast<double>((ConstArray(x + i, size) - top).exp().sum());
  }
  return static_cast<double>(top) + std::log(sum);
}

void gate_units(float* gate, const float* up, int64_t count, float slope, float offset) {
  Array g(gate, count);
  g = g / (1.0f + (g * -slope).exp()) * (ConstArray(up, count) + offset);
}

constexpr FloatOps kOps = {multiply_rows, multiply_columns, softmax, log_sum_exp, gate_units};

}  // namespace
}  // namespace twofour
