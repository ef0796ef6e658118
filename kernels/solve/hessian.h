#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/hd.h"
#include "kernels/device/isa.h"

namespace twofour {

/// The adjustments of a Hessian before it is solved.
struct Regularization {
  Regularization(double damping_, double shrink_ = 0)  // NOLINT: a damping alone shrinks nothing
      : damping(damping_), shrink(shrink_) {}
  double damping;  ///< share of the mean of the diagonal that is added to the diagonal
  double shrink;   ///< share of each product of two inputs that is taken off, 0 to 1
};

/// The damped form Hd of a Hessian H [k, k], which solvers read. H is the mean over tokens of x x'. Its
/// numbers outside of the diagonal are first multiplied by 1 - shrink. Hd = H + lambda I, with lambda =
/// damping * mean(diag H). A diagonal element of 0 is first replaced by 1. Source of damping: Frantar et al.,
/// GPTQ (2210.17323) and SparseGPT (2301.00774). The arithmetic is the same as there, except
/// for its order; see README.md.
struct DampedHessian {
  int64_t k = 0;
  double lambda = 0;
  double shrink = 0;
  std::vector<float> matrix;  ///< Hd [k, k]
  std::vector<float> factor;  ///< U [k, k], upper, U'U = Hd^-1; empty if not requested
};

/// Shrinks and damps a symmetric H [k, k]. Reads only its upper triangle. Throws Error if a number is NaN or
/// infinite, if a diagonal element is negative, or if Hd is not positive definite in double. In the last
/// case, H is not a sum of x x'.
DampedHessian damped_hessian(std::span<const float> hessian, int64_t k, Regularization regularization,
                             bool with_factor, int threads = 1, Isa isa = best_isa());

/// A number of H outside of the diagonal, shrunk: (1 - shrink) h, computed in double.
TWOFOUR_HD inline float shrunk(float h, double shrink) {
  return static_cast<float>((1 - shrink) * double{h});
}

/// Copies the upper triangle of `square` [k, k] to the lower triangle.
void mirror_upper(std::span<float> square, int64_t k);

/// Throws the Error for an Hd that is not positive definite.
[[noreturn]] void throw_indefinite(int64_t column, double pivot);

/// Computes diag Hd [k] from diag H [k]. Throws like damped_hessian.
std::vector<float> damped_diagonal(std::span<const float> diagonal, double damping);

/// The factors of squared errors by which each weight is chosen alone: diag H [k]. A block of 16 numbers that
/// are all 0 gets factors of 1. Throws like damped_hessian.
std::vector<float> importance_weights(std::span<const float> diagonal);

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
