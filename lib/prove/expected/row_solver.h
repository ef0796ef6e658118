#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/e4m3.h"
#include "lib/prove/expected/expected_solve.h"

namespace twofour {

/// One row that is being solved. Sums are evaluated in the order in which they are written.
class RowSolver {
 public:
  /// `hessian` is null if the row is solved only by the diagonal.
  RowSolver(const ExpectedSolver& solver, const ExpectedHessian* hessian, std::span<const float> diagonal,
            std::span<const float> weights, std::span<const uint8_t> mask);
  ExpectedRow solve();

 private:
  int magnitude_code(float x) const;
  /// The nearest number of the format.
  float unit_of(float x) const;
  /// The block scale above zero whose step is nearest.
  int scale_code(float step) const;
  int clamp_scale(int code) const;
  /// The block scale of the largest magnitude of a block.
  int base_scale(float largest) const;

  /// The value of code 1.0. A given scale has the number of its block for a code.
  float step(int code) const {
    if (s_.scales == ExpectedSolver::Scales::kGiven) return s_.steps[static_cast<size_t>(code)];
    if (s_.scales == ExpectedSolver::Scales::kPowers) return std::ldexp(1.0f, code - 127);
    const float scale = e4m3_to_float(static_cast<unsigned>(code));
    return s_.divides ? scale / s_.global : scale * s_.global;
  }
  float inverse(int code) const { return 1.0f / step(code); }
  float to_code() const { return s_.divides ? s_.global : 1.0f / s_.global; }
  float u(size_t i, size_t j) const { return h_->factor[i * k_ + j]; }
  float hd(size_t i, size_t j) const { return h_->matrix[i * k_ + j]; }

  /// The given mask, or the mask with the largest sum of x^2 weights. On a tie, the first mask is taken.
  size_t mask_of(size_t first, std::span<const float> weights) const;
  int search(size_t block, std::span<const float> x, std::span<const float> weights) const;
  /// Subtracts the effect of a column's error from columns [from, until).
  void pass_on(size_t column, float error, size_t from, size_t until);
  void joint();
  void by_diagonal();
  void round(std::span<const float> weights);
  ExpectedRow written() const;

  // Runs sweeps that improve the codes. Defined in row_descent.cpp.
  void descend();
  /// Improves block `b` and returns the change of the loss. `g` is the gradient of the block.
  float improve_block(size_t b, std::span<float> g);
  float move_scale(size_t b, std::span<float> g);
  /// Finds the best codes of a group over all masks and both orders, and stores their changes in `delta`. The
  /// best codes have the least change of the loss, below 0. On a tie, the first codes are taken.
  float best_codes(size_t first, std::span<const float> g, std::vector<float>& delta) const;

  const ExpectedSolver& s_;
  const ExpectedHessian* h_;
  std::span<const float> diagonal_, w_;
  size_t k_;
  std::vector<float> x_;
  std::vector<int> scales_;
  std::vector<std::vector<bool>> masks_;
  std::vector<size_t> given_;
};

}  // namespace twofour
