#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/prove/expected/expected_hessian.h"

namespace twofour {

/// The rule by which a row is solved. kernels/solve/README.md defines it.
struct ExpectedSolver {
  enum class Method { kJoint, kDiagonal };
  Method method = Method::kJoint;
  int group = 4;              ///< number of columns of a mask; 8 for 4:8-paired
  bool dense = false;         ///< no column is pruned
  bool divides = false;       ///< for compressed-tensors' arithmetic: a step is the block scale divided by
                              ///< the global scale
  float global = 1;           ///< the global scale as the checkpoint stores it
  uint8_t zero_scale = 0x38;  ///< the block scale of a block whose codes are all zero
  int highest = 2;            ///< block scales are tried up to so many codes above the largest weight's
  int sweeps = 0;             ///< number of sweeps of descent
  float min_gain = 0.005f;    ///< least gain of a sweep, as a share of the row's loss before it
};

struct ExpectedRow {
  std::vector<uint8_t> codes;   ///< [k], one code per element
  std::vector<uint8_t> scales;  ///< [k/16]
};

/// Solves one row. `mask` [k] has 1 for columns that stay. It is empty if no mask is given.
ExpectedRow expect_row(const ExpectedSolver& solver, const ExpectedHessian& hessian,
                       std::span<const float> weights, std::span<const uint8_t> mask = {});
/// Solves a row only by the diagonal, which is Method::kDiagonal without sweeps.
ExpectedRow expect_row_by_diagonal(const ExpectedSolver& solver, std::span<const float> diagonal,
                                   std::span<const float> weights, std::span<const uint8_t> mask = {});

}  // namespace twofour
