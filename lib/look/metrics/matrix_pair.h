#pragma once
#include <cstdint>
#include <vector>

#include "lib/look/metrics/value_error.h"
#include "lib/source/linears/matrices.h"

namespace twofour {

/// Two matrices of the same shape, one from each of two checkpoints, that should hold the same weights.
struct MatrixPair {
  const StoredMatrix *a, *b;
};

/// The number of rows of a matrix [N, K] that a thread compares at once. They take 4 MB of each checkpoint in
/// float32.
int64_t block_rows(int64_t k);

/// The number of bytes that store the weights of `rows` rows, without scales.
uint64_t stored_bytes(const Matrices& matrices, const StoredMatrix& matrix, int64_t rows);

/// Compares rows of matrix pairs. Each thread needs its own reader.
class PairReader {
 public:
  PairReader(const Matrices& a, const Matrices& b)
      : a_(a), b_(b), a_reader_(a.checkpoint()), b_reader_(b.checkpoint()) {}

  /// Compares rows [n0, n1) as numbers, with A as the source. ValueError::add_row explains `tolerance`.
  /// Throws Error like WeightReader::read_rows.
  ValueError compare(const MatrixPair& pair, int64_t n0, int64_t n1, double tolerance);
  /// True if rows [n0, n1) are stored with the same codes or values and the same block scales, so that the
  /// rows are equal if the global scales are equal. False if the two matrices store their weights in
  /// different ways.
  bool same_bytes(const MatrixPair& pair, int64_t n0, int64_t n1);

 private:
  const Matrices &a_, &b_;
  WeightReader a_reader_, b_reader_;
  std::vector<float> a_values_, b_values_;
};

/// True if both matrices are stored in the same way, so that equal bytes mean equal weights if the global
/// scales are equal.
bool stored_alike(const Matrices& a, const Matrices& b, const MatrixPair& pair);

}  // namespace twofour
