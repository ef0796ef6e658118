#include "lib/look/metrics/matrix_pair.h"

#include <algorithm>

namespace twofour {
namespace {

/// The rows of a module that span rows [n0, n1) of a matrix.
std::pair<int64_t, int64_t> module_rows(const StoredMatrix& s, int64_t n0, int64_t n1) {
  return {s.first + n0 * s.step, s.first + (n1 - 1) * s.step + 1};
}

}  // namespace

int64_t block_rows(int64_t k) {
  constexpr int64_t kBlockWeights = 1 << 20;
  return std::max<int64_t>(1, kBlockWeights / k);
}

uint64_t stored_bytes(const Matrices& matrices, const StoredMatrix& s, int64_t rows) {
  const Linear& m = matrices.module_of(s);
  return matrices.checkpoint().tensors()[m.weight].bytes() / static_cast<uint64_t>(m.e * m.n) *
         static_cast<uint64_t>(rows);
}

bool stored_alike(const Matrices& a, const Matrices& b, const MatrixPair& pair) {
  const Linear &x = a.module_of(*pair.a), &y = b.module_of(*pair.b);
  if (x.format != y.format || x.scale_rows != y.scale_rows || x.scale_cols != y.scale_cols ||
      pair.a->step != pair.b->step) {
    return false;
  }
  if (x.format->integers) return false;  // zero points and groups matter, too
  if (x.format->pairs) return true;
  const auto type = [](const Matrices& c, size_t tensor) { return c.checkpoint().tensors()[tensor].dtype; };
  if (type(a, x.weight) != type(b, y.weight)) return false;
  if (!x.scale) return true;
  // A block of rows must begin at the same row on both sides.
  return type(a, *x.scale) == type(b, *y.scale) && (pair.a->first - pair.b->first) % x.scale_rows == 0;
}

bool PairReader::same_bytes(const MatrixPair& pair, int64_t n0, int64_t n1) {
  if (!stored_alike(a_, b_, pair)) return false;
  const auto [a0, a1] = module_rows(*pair.a, n0, n1);
  const auto [b0, b1] = module_rows(*pair.b, n0, n1);
  const StoredRows x = a_reader_.read_stored(a_.module_of(*pair.a), pair.a->e, a0, a1);
  const StoredRows y = b_reader_.read_stored(b_.module_of(*pair.b), pair.b->e, b0, b1);
  return std::ranges::equal(x.weights, y.weights) && std::ranges::equal(x.scales, y.scales);
}

ValueError PairReader::compare(const MatrixPair& pair, int64_t n0, int64_t n1, double tolerance) {
  const int64_t k = a_.module_of(*pair.a).k;
  const auto width = static_cast<size_t>(k);
  a_values_.resize(static_cast<size_t>(n1 - n0) * width);
  b_values_.resize(a_values_.size());
  a_.read(a_reader_, *pair.a, n0, n1, a_values_);
  b_.read(b_reader_, *pair.b, n0, n1, b_values_);
  ValueError error;
  for (int64_t n = n0; n < n1; ++n) {
    const auto at = static_cast<size_t>(n - n0) * width;
    error.add_row(std::span(a_values_).subspan(at, width), std::span(b_values_).subspan(at, width), pair.a->e,
                  n, tolerance);
  }
  return error;
}

}  // namespace twofour
