#include "lib/expected/expected_solve.h"

#include <cmath>

#include "lib/expected/row_solver.h"

namespace twofour {
namespace {

/// A row and its global scale. Where the latter is far from 1, both in a unit of a power of two, so that no
/// square vanishes or overflows.
struct RowInUnits {
  ExpectedSolver solver;
  std::vector<float> weights;
};

RowInUnits in_units(const ExpectedSolver& solver, std::span<const float> weights) {
  RowInUnits out{solver, {weights.begin(), weights.end()}};
  int exponent = 0;  // the global scale is in [2^exponent, 2^(exponent + 1)); of a divisor, its inverse
  std::frexp(solver.global, &exponent);
  exponent = solver.divides ? 1 - exponent : exponent - 1;
  if (exponent >= -40 && exponent <= 24) return out;
  const int shift = -16 - exponent;
  out.solver.global =
      static_cast<float>(std::ldexp(static_cast<double>(solver.global), solver.divides ? -shift : shift));
  for (float& w : out.weights) w = static_cast<float>(std::ldexp(static_cast<double>(w), shift));
  return out;
}

}  // namespace

ExpectedRow expect_row(const ExpectedSolver& solver, const ExpectedHessian& hessian,
                       std::span<const float> weights, std::span<const uint8_t> mask) {
  std::vector<float> diagonal;
  const auto k = static_cast<size_t>(hessian.k);
  for (size_t j = 0; j < k; ++j) diagonal.push_back(hessian.matrix[j * k + j]);
  const RowInUnits in = in_units(solver, weights);
  return RowSolver(in.solver, &hessian, diagonal, in.weights, mask).solve();
}

ExpectedRow expect_row_by_diagonal(const ExpectedSolver& solver, std::span<const float> diagonal,
                                   std::span<const float> weights, std::span<const uint8_t> mask) {
  const RowInUnits in = in_units(solver, weights);
  return RowSolver(in.solver, nullptr, diagonal, in.weights, mask).solve();
}

}  // namespace twofour
