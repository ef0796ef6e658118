#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lib/checkpoint/tensor_values.h"

namespace twofour {

/// A weight that two checkpoints hold differently; e = -1: none.
struct WeightDifference {
  int64_t e = -1, n = 0, k = 0;
  float expected = 0, found = 0;
};

/// How far weights differ from the source's. Sums in double, in a fixed order: the same figures for any
/// number of threads and any instruction set. Two NaN are equal, as are 0 and -0.
struct ValueError {
  double energy = 0;        ///< sum of the source's squared weights
  double other_energy = 0;  ///< of the others'
  double product = 0;       ///< of source's and others'
  double error = 0;         ///< sum of squared differences
  double max_abs = 0;       ///< the largest difference; NaN where one is
  uint64_t weights = 0, different = 0;
  uint64_t beyond = 0;     ///< differ by more than a tolerance
  WeightDifference first;  ///< of those, in the order e, n, k

  /// Row `n` of expert `e`. A difference is beyond `tolerance` where it is larger than the source's weight
  /// (or, of subnormal ones, 2^-126) times that.
  void add_row(std::span<const float> source, std::span<const float> other, int64_t e, int64_t n,
               double tolerance);
  /// Adds what follows in the order e, n, k.
  ValueError& operator+=(const ValueError& next);

  // NaN where values differ and the source's are infinite, or squares overflow or vanish.
  double relative_error() const;  ///< in Frobenius norm
  double snr_db() const;          ///< infinite where nothing differs, and nowhere else
  double cosine() const;

 private:
  /// Whether the sums show the difference: any difference drowns in an infinite energy.
  bool has_ratios() const;
};

/// What became of one module of the source.
struct ValueReport {
  std::string module;
  int64_t e, n, k;
  ValueError error;
};

/// How far elements of a type without float values differ.
struct ElementError {
  ValueError error;  ///< places count along k
  std::optional<std::array<ElementValue, 2>>
      first{};  ///< the values at `error.first`, which has them rounded
};

/// Compares elements of one type. Integers that differ are beyond any tolerance; their distance is the exact
/// difference, rounded once. F64 is compared with `tolerance` as ValueError::add_row does. Of other types,
/// elements with different bytes are counted and their figures are NaN.
ElementError compare_elements(DType dtype, std::span<const uint8_t> source, std::span<const uint8_t> other,
                              double tolerance);

}  // namespace twofour
