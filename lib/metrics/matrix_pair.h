#pragma once
#include <cstdint>
#include <vector>

#include "lib/checkpoint/matrices.h"
#include "lib/metrics/value_error.h"

namespace twofour {

/// A matrix of each of two checkpoints, of one shape, that hold the same weights.
struct MatrixPair {
  const StoredMatrix *a, *b;
};

/// Rows of [N, K] that a thread compares at once: 4 MB of each checkpoint in float32.
int64_t block_rows(int64_t k);

/// Bytes of some rows' weights, without scales.
uint64_t stored_bytes(const Matrices& matrices, const StoredMatrix& matrix, int64_t rows);

/// Compares pairs by rows. One a thread.
class PairReader {
 public:
  PairReader(const Matrices& a, const Matrices& b)
      : a_(a), b_(b), a_reader_(a.checkpoint()), b_reader_(b.checkpoint()) {}

  /// Rows [n0, n1) as numbers, A's being the source's; `tolerance` as in ValueError::add_row. Throws Error as
  /// WeightReader::read_rows.
  ValueError compare(const MatrixPair& pair, int64_t n0, int64_t n1, double tolerance);
  /// Whether rows [n0, n1) are stored in the same codes or values and scales of blocks, that is, are equal if
  /// global scales are. False where both store them in unlike ways.
  bool same_bytes(const MatrixPair& pair, int64_t n0, int64_t n1);

 private:
  const Matrices &a_, &b_;
  WeightReader a_reader_, b_reader_;
  std::vector<float> a_values_, b_values_;
};

/// Whether both matrices are stored in one way, so that equal bytes are equal weights but for global scales.
bool stored_alike(const Matrices& a, const Matrices& b, const MatrixPair& pair);

}  // namespace twofour
