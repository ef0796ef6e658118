#pragma once
#include <array>
#include <optional>
#include <span>

#include "lib/checkpoint/tensor_values.h"
#include "lib/metrics/value_error.h"

namespace twofour {

/// How far elements of a type without float values lie apart.
struct ElementError {
  ValueError error;  ///< places count along k
  std::optional<std::array<ElementValue, 2>>
      first{};  ///< the values at `error.first`, which has them rounded
};

/// Compares elements of one type. Integers are beyond any tolerance where they differ, and lie apart by their
/// exact difference, rounded once; F64 is held against `tolerance` as ValueError::add_row does. Of other
/// types those whose bytes differ are counted, their figures are NaN.
ElementError compare_elements(DType dtype, std::span<const uint8_t> source, std::span<const uint8_t> other,
                              double tolerance);

}  // namespace twofour
