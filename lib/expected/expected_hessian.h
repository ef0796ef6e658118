#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace twofour {

/// What a solver reads of a Hessian H [k, k], from kernels/solve/README.md alone: plain loops over the
/// definitions in double, which share no code with the solver.
struct ExpectedHessian {
  int64_t k = 0;
  double lambda = 0;
  std::vector<float> matrix;  ///< H + lambda I [k, k]
  std::vector<float> factor;  ///< upper U [k, k] with U'U its inverse; empty where it is not asked for
};

/// Numbers of a mean over tokens [k, k], or of its diagonal [k], in the unit that lib/statistics/README.md
/// defines.
struct ExpectedMean {
  std::vector<float> numbers;
  double unit = 1;  ///< what they were multiplied by
};
ExpectedMean expect_mean(std::vector<float> numbers, int64_t k);

/// Of the upper triangle of a finite, positive semidefinite H.
ExpectedHessian expect_hessian(std::span<const float> hessian, int64_t k, double damping, bool with_factor);

/// diag(H + lambda I) of diag H.
std::vector<float> expect_diagonal(std::span<const float> diagonal, double damping);

/// (H + lambda I)^-1 of a row, in double: forwards, then backwards through the factor of the reversed matrix.
class ExpectedInverse {
 public:
  ExpectedInverse(std::span<const float> hessian, int64_t k, double damping);
  void multiply(std::span<float> row) const;

 private:
  std::vector<double> factor_;  ///< [k, k]
};

/// e H e', e H added up in float32 over k ascending and its product with e in double; of rows without numbers
/// around 1 as if they had some.
double expect_float_form(std::span<const float> hessian, std::span<const float> e);

/// e H e' in double, e H as well.
double expect_form(std::span<const float> hessian, std::span<const float> e);

}  // namespace twofour
