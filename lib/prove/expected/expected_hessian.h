#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace twofour {

/// The data of a Hessian H [k, k] that a solver reads. It is derived only from kernels/solve/README.md, by
/// plain loops over the definitions in double. It shares no code with the solver.
struct ExpectedHessian {
  int64_t k = 0;
  double lambda = 0;
  std::vector<float> matrix;  ///< H + lambda I, [k, k]
  std::vector<float> factor;  ///< upper triangular U, [k, k], where U'U is the inverse of `matrix`; empty if
                              ///< it was not requested
};

/// A mean over tokens [k, k], or its diagonal [k], in the unit that lib/recipe/statistics/README.md defines.
struct ExpectedMean {
  std::vector<float> numbers;
  double unit = 1;  ///< the factor by which the numbers were multiplied
};
ExpectedMean expect_mean(std::vector<float> numbers, int64_t k);

/// Derives the data from the upper triangle of H, which must be finite and positive semidefinite. Numbers
/// outside of the diagonal lose the share `shrink`.
ExpectedHessian expect_hessian(std::span<const float> hessian, int64_t k, double damping, double shrink,
                               bool with_factor);

/// The diagonal of H + lambda I. `diagonal` is the diagonal of H.
std::vector<float> expect_diagonal(std::span<const float> diagonal, double damping);

/// The diagonal of H as weights of squares. Each block of 16 zeros becomes a block of ones.
std::vector<float> expect_importance(std::span<const float> diagonal);

/// Multiplies a row by (H + lambda I)^-1 in double. It solves forwards and then backwards through the factor
/// of the reversed matrix.
class ExpectedInverse {
 public:
  ExpectedInverse(std::span<const float> hessian, int64_t k, double damping);
  void multiply(std::span<float> row) const;

 private:
  std::vector<double> factor_;  ///< [k, k]
};

/// Computes e H e'. The row e H is summed in float32 over ascending k, its product with e in double. Rows far
/// from 1 lose no precision compared with rows near 1.
double expect_float_form(std::span<const float> hessian, std::span<const float> e);

/// Computes e H e' entirely in double.
double expect_form(std::span<const float> hessian, std::span<const float> e);

}  // namespace twofour
