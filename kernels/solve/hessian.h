#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device/isa.h"

namespace twofour {

/// The damped form Hd of a Hessian H [k, k], which solvers read. H is the mean over tokens of x x'. Hd = H +
/// lambda I, with lambda = damping * mean(diag H). A diagonal element of 0 is first replaced by 1. Source:
/// Frantar et al., GPTQ (2210.17323) and SparseGPT (2301.00774). The arithmetic is the same as there, except
/// for its order; see README.md.
struct DampedHessian {
  int64_t k = 0;
  double lambda = 0;
  std::vector<float> matrix;  ///< Hd [k, k]
  std::vector<float> factor;  ///< U [k, k], upper, U'U = Hd^-1; empty if not asked for
};

/// Damps a symmetric H [k, k]. Reads only its upper triangle. Throws Error if a number is NaN or infinite, if
/// a diagonal element is negative, or if Hd is not positive definite in double. In the last case, H is not a
/// sum of x x'.
DampedHessian damped_hessian(std::span<const float> hessian, int64_t k, double damping, bool with_factor,
                             int threads = 1, Isa isa = best_isa());

/// Copies the upper triangle of `square` [k, k] to the lower triangle.
void mirror_upper(std::span<float> square, int64_t k);

/// Throws the Error for an Hd that is not positive definite.
[[noreturn]] void throw_indefinite(int64_t column, double pivot);

/// Computes diag Hd [k] from diag H [k]. Throws like damped_hessian.
std::vector<float> damped_diagonal(std::span<const float> diagonal, double damping);

/// The inverse (H + lambda I)^-1, stored as a factor in double. The constructor throws like damped_hessian.
class DampedInverse {
 public:
  DampedInverse(std::span<const float> hessian, int64_t k, double damping, int threads = 1,
                Isa isa = best_isa());
  ~DampedInverse();
  /// Multiplies each row of `rows` [n, k] by the inverse in place. From C, this gives X with X (H + lambda I)
  /// = C.
  void multiply(std::span<float> rows) const;
  /// Returns the `factor` of damped_hessian, computed from this factor.
  std::vector<float> factor();

 private:
  struct Factor;
  std::unique_ptr<Factor> factor_;
};

/// Computes e H e' for each row e of `rows` [n, k], under a symmetric H [k, k]. e H is a float32 sum in
/// ascending order of k. Its product with e is summed in double.
std::vector<double> quadratic_forms(std::span<const float> hessian, int64_t k, std::span<const float> rows,
                                    int threads = 1, Isa isa = best_isa());

}  // namespace twofour
