#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lib/source/checkpoint/tensor_values.h"

namespace twofour {

/// A weight that two checkpoints hold differently; e = -1: none.
struct WeightDifference {
  int64_t e = -1, n = 0, k = 0;
  float expected = 0, found = 0;
};

/// The differences of weights from the source's. Sums in double, in a fixed order: the same figures for any
/// number of threads and any instruction set. Two NaN are equal, as are 0 and -0.
struct ValueError {
  double energy = 0;        ///< sum of the source's squared weights
  double other_energy = 0;  ///< of the others'
  double product = 0;       ///< of source's and others'
  double error = 0;         ///< sum of squared differences
  double max_abs = 0;       ///< the largest difference; NaN if any is
  uint64_t weights = 0, different = 0;
  uint64_t beyond = 0;     ///< differ by more than a tolerance
  WeightDifference first;  ///< of these, in the order e, n, k

  /// Adds row `n` of expert `e`. A difference is beyond `tolerance` if it is larger than that times the
  /// source's weight (or 2^-126 for subnormal weights).
  void add_row(std::span<const float> source, std::span<const float> other, int64_t e, int64_t n,
               double tolerance);
  /// Adds the sums of weights that follow in the order e, n, k.
  ValueError& operator+=(const ValueError& next);

  // NaN if values differ and the source's are infinite, or squares overflow or vanish.
  double relative_error() const;  ///< in Frobenius norm
  double snr_db() const;          ///< infinite if and only if nothing differs
  double cosine() const;

 private:
  /// True if the sums show the difference: any difference drowns in an infinite energy.
  bool has_ratios() const;
};

/// The error of one module of the source.
struct ValueReport {
  std::string module;
  int64_t e, n, k;
  ValueError error;
};

/// The difference of elements of a type without float values.
struct ElementError {
  ValueError error;  ///< places count along k
  std::optional<std::array<ElementValue, 2>>
      first{};  ///< the exact values at `error.first`, where they are rounded
};

/// Compares elements of one type. Integers that differ are beyond any tolerance; their distance is the exact
/// difference, rounded once. F64 is compared with `tolerance` as ValueError::add_row does. For other types,
/// elements with different bytes are counted and their figures are NaN.
ElementError compare_elements(DType dtype, std::span<const uint8_t> source, std::span<const uint8_t> other,
                              double tolerance);

}  // namespace twofour
