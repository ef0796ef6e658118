#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lib/source/linears/tensor_values.h"

namespace twofour {

/// The place of a weight that differs between two checkpoints, and both values. `e` is -1 if there is no such
/// weight.
struct WeightDifference {
  int64_t e = -1, n = 0, k = 0;
  float expected = 0, found = 0;
};

/// The error of weights compared with the source's weights. Sums are in double and in a fixed order, so that
/// they are the same for any number of threads and any instruction set. NaN equals NaN, and 0 equals -0.
struct ValueError {
  double energy = 0;        ///< sum of the source's squared weights
  double other_energy = 0;  ///< sum of the other squared weights
  double product = 0;       ///< sum of products of source and other
  double error = 0;         ///< sum of squared differences
  double max_abs = 0;       ///< the largest difference; NaN if any difference is
  uint64_t weights = 0, different = 0;
  uint64_t beyond = 0;     ///< weights that differ by more than a tolerance
  WeightDifference first;  ///< the first difference, in the order e, n, k

  /// Adds row `n` of expert `e`. A difference is beyond the tolerance if it is larger than `tolerance` times
  /// the magnitude of the source's weight (2^-126 if the weight is smaller).
  void add_row(std::span<const float> source, std::span<const float> other, int64_t e, int64_t n,
               double tolerance);
  /// Adds the sums of weights that follow these in the order e, n, k.
  ValueError& operator+=(const ValueError& next);

  // The next three are NaN if values differ and the source has infinite values, or if squares overflow or
  // vanish.
  double relative_error() const;  ///< in Frobenius norm
  double snr_db() const;          ///< infinite if and only if nothing differs
  double cosine() const;

 private:
  /// True if the sums show the difference. An infinite energy hides any difference.
  bool has_ratios() const;
};

/// The error of one module of the source.
struct ValueReport {
  std::string module;
  int64_t e, n, k;
  ValueError error;
};

/// The error of elements of one type, which need not have float values.
struct ElementError {
  ValueError error;  ///< a place counts elements along k
  std::optional<std::array<ElementValue, 2>>
      first{};  ///< the exact values at `error.first`, whose floats are rounded
};

/// Compares elements of one type. Different integers are beyond any tolerance, and their distance is the
/// exact difference, rounded once. F64 is compared with `tolerance` as ValueError::add_row does. For other
/// types, elements with different bytes are counted, and their figures are NaN.
ElementError compare_elements(DType dtype, std::span<const uint8_t> source, std::span<const uint8_t> other,
                              double tolerance);

}  // namespace twofour
