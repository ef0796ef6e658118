#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/prove/expected/expected_hessian.h"

namespace twofour {

/// The method of solving a row, as kernels/solve/README.md defines it.
struct ExpectedSolver {
  enum class Method { kJoint, kDiagonal };
  Method method = Method::kJoint;
  int group = 4;              ///< columns of a mask: 8 for 4:8-paired
  bool dense = false;         ///< all columns stay
  bool divides = false;       ///< compressed-tensors' arithmetic: a step is a scale divided by the global one
  float global = 1;           ///< as the checkpoint stores it
  uint8_t zero_scale = 0x38;  ///< of a block of zero codes
  int sweeps = 0;             ///< of descent
  float min_gain = 0.005f;    ///< of a sweep, as a share of the row's loss before
};

struct ExpectedRow {
  std::vector<uint8_t> codes;   ///< [k], one each
  std::vector<uint8_t> scales;  ///< [k/16]
};

/// Solves one row. `mask` [k] has 1 for columns that stay; empty if none is given.
ExpectedRow expect_row(const ExpectedSolver& solver, const ExpectedHessian& hessian,
                       std::span<const float> weights, std::span<const uint8_t> mask = {});
/// Solves a row by the diagonal alone: Method::kDiagonal without sweeps.
ExpectedRow expect_row_by_diagonal(const ExpectedSolver& solver, std::span<const float> diagonal,
                                   std::span<const float> weights, std::span<const uint8_t> mask = {});

}  // namespace twofour
