// The functions of a FloatOps, compiled for the instruction set of the file that includes this file. The
// including file first renames Eigen's namespace, so that no template for one instruction set is linked into
// code for another.
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_NO_IO
#define EIGEN_GEMM_TO_COEFFBASED_THRESHOLD 1  // for small products, too, at any alignment
#include <Eigen/Core>
#include <cmath>

#include "kernels/floats/float_ops.h"

namespace twofour {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<>;
using ConstRows = Eigen::Map<const Matrix, Eigen::Unaligned, Stride>;
using Rows = Eigen::Map<Matrix, Eigen::Unaligned, Stride>;

/// The number of elements that functions of arrays compute at a time. Eigen would treat the ends of a whole
/// array separately, depending on its address.
constexpr int64_t kBlock = 64;
using Block = Eigen::Array<float, kBlock, 1>;

/// Calls f(block, i, size) for the blocks that begin at x + i. `filler` pads the last block.
template <class F>
void for_each_block(const float* x, int64_t count, float filler, F&& f) {
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t size = count - i < kBlock ? count - i : kBlock;
    Block block;
    if (size < kBlock) block.setConstant(filler);
    __builtin_memcpy(block.data(), x + i, static_cast<size_t>(size) * sizeof(float));
    f(block, i, size);
  }
}

void store(const Block& block, int64_t size, float* to) {
  __builtin_memcpy(to, block.data(), static_cast<size_t>(size) * sizeof(float));
}

float largest_of(const float* x, int64_t count) {
  float largest = x[0];
  for_each_block(x, count, x[0], [&](const Block& block, int64_t, int64_t) {
    const float found = block.maxCoeff();
    largest = found > largest ? found : largest;
  });
  return largest;
}

/// The cache sizes that Eigen is told. The sizes of its blocks depend on them, and sums over K are split at
/// the borders of blocks.
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
  const float largest = largest_of(x, count), top = largest > sink ? largest : sink;
  float sum = std::exp(sink - top);
  for_each_block(x, count, -1e30f, [&](const Block& block, int64_t i, int64_t size) {
    const Block powers = (block - top).exp();
    sum += powers.sum();
    store(powers, size, x + i);
  });
  const float factor = 1.0f / sum;
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

double log_sum_exp(const float* x, int64_t count) {
  const float top = largest_of(x, count);
  double sum = 0;
  for_each_block(x, count, -1e30f, [&](const Block& block, int64_t, int64_t) {
    sum += static_cast<double>((block - top).exp().sum());
  });
  return static_cast<double>(top) + std::log(sum);
}

void gate_units(float* gate, const float* up, int64_t count, float slope, float offset) {
  for_each_block(gate, count, 0.0f, [&](const Block& g, int64_t i, int64_t size) {
    Block u = Block::Zero();
    __builtin_memcpy(u.data(), up + i, static_cast<size_t>(size) * sizeof(float));
    const Block out = g / (1.0f + (g * -slope).exp()) * (u + offset);
    store(out, size, gate + i);
  });
}

constexpr FloatOps kOps = {multiply_rows, multiply_columns, softmax, log_sum_exp, gate_units};

}  // namespace
}  // namespace twofour
