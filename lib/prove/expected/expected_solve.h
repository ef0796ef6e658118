#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/prove/expected/expected_hessian.h"

namespace twofour {

/// The rule by which a row is solved. kernels/solve/README.md defines it.
struct ExpectedSolver {
  enum class Method { kJoint, kDiagonal };
  /// The form of scales: E4M3 under a global scale, powers of two as E8M0, or given numbers.
  enum class Scales { kE4m3, kPowers, kGiven };
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
  Scales scales = Scales::kE4m3;
  std::vector<float> numbers = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};  ///< magnitudes by code, ascending
  size_t block = 16;                                            ///< columns that share a scale
  int lowest = -12;               ///< scales are tried from so many codes below the largest weight's
  std::vector<float> steps = {};  ///< for kGiven, the scales of the row's blocks
};

/// Changes a solver to a format with `to` "mxfp8", "mxfp6" or "mxfp4", or else to FP8 with given scales.
void use_format(ExpectedSolver& solver, std::string_view to);
/// The bytes of codes of `bits` bits, which are given one a byte. The first is in the lowest bits.
std::vector<uint8_t> pack_expected(size_t bits, std::span<const uint8_t> codes);

struct ExpectedRow {
  std::vector<uint8_t> codes;   ///< [k], one code per element
  std::vector<uint8_t> scales;  ///< [k/block]; without meaning for given scales
};

/// Solves one row. `mask` [k] has 1 for columns that stay. It is empty if no mask is given.
ExpectedRow expect_row(const ExpectedSolver& solver, const ExpectedHessian& hessian,
                       std::span<const float> weights, std::span<const uint8_t> mask = {});
/// Solves a row only by the diagonal, which is Method::kDiagonal without sweeps.
ExpectedRow expect_row_by_diagonal(const ExpectedSolver& solver, std::span<const float> diagonal,
                                   std::span<const float> weights, std::span<const uint8_t> mask = {});

}  // namespace twofour
