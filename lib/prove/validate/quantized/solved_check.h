#pragma once
#include <functional>
#include <map>

#include "lib/prove/expected/expected_solve.h"
#include "lib/prove/validate/quantized/quantized_check.h"

namespace twofour {

/// The check of a format that is quantized by a rule's settings or solved by statistics.
class SolvedCheck : public QuantizedCheck {
 public:
  using QuantizedCheck::QuantizedCheck;

 protected:
  /// The form of a matrix that is solved.
  struct Solved {
    ExpectedSolver solver;
    size_t bits = 4;        ///< bits of a code
    size_t block = kGroup;  ///< columns of a stored scale; 0 if scales are not
                            ///< compared here
    /// Reads row `n` of the matrix back from its bytes.
    std::function<void(std::span<const uint8_t> codes, std::span<const uint8_t> scales, int64_t n,
                       std::span<float> values)>
        decode;
    /// Sets the given scales of row `n`; may be empty.
    std::function<void(ExpectedSolver& solver, int64_t n)> give_steps = {};
  };

  /// The largest magnitude of the weights, or of the targets that statistics have.
  float largest_of(const EncodedMatrix& m, EncodedResult& result) override;
  /// The result of largest_of().
  float known_largest(const EncodedMatrix& m) const { return largest_.at(&m); }
  bool has_target(const EncodedMatrix& m) const { return m.solving.target_offset.has_value(); }
  /// Rows [begin, end), or their targets W + 0.5 C (H + lambda I)^-1 if statistics have targets.
  Floats aims(const EncodedMatrix& m, int64_t begin, int64_t end);
  /// True if a matrix of a format without a global scale is solved, by its largest magnitude.
  bool is_solved(const EncodedMatrix& m) const;
  /// The method, search and sweeps of a matrix.
  ExpectedSolver solver_of(const EncodedMatrix& m) const;
  /// Solves the drawn rows again and compares their bytes. Checks the pattern and the reported loss of all
  /// rows.
  void check_solved(const EncodedMatrix& m, const Solved& form, EncodedResult& result);
  /// Rows [begin, end) of the mask of a matrix. Empty if no mask is given.
  Bytes mask_rows(const EncodedMatrix& m, int64_t begin, int64_t end) const;

 private:
  Floats targets(const EncodedMatrix& m, const SolvedHessian& h, int64_t begin, int64_t end);
  /// True if row `n` is drawn, which means that it is solved again. Unless Proof::all_rows is set, these are
  /// 64 evenly spaced rows of a matrix.
  bool is_drawn(const EncodedMatrix& m, int64_t n) const;

  std::map<const EncodedMatrix*, float> largest_;
};

}  // namespace twofour
