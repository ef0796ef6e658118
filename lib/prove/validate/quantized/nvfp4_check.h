#pragma once
#include <optional>

#include "lib/prove/expected/expected_solve.h"
#include "lib/prove/validate/quantized/quantized_check.h"

namespace twofour {

/// The check of NVFP4 that is quantized by a rule's settings, has the source's codes, or is solved by
/// statistics.
class Nvfp4Check : public QuantizedCheck {
 public:
  Nvfp4Check(const QuantizedGroup& group, Proof& proof);

 private:
  float largest_of(const EncodedMatrix& m, EncodedResult& result) override;
  void prepare(float largest) override;
  void check(const EncodedMatrix& m, EncodedResult& result) override;
  /// Checks the input scale of a matrix against the rule's settings, if it has one.
  void check_input_scale(const EncodedMatrix& m) override;

  /// Rows [begin, end) of the mask of a matrix. Empty if no mask is given.
  Bytes mask_rows(const EncodedMatrix& m, int64_t begin, int64_t end) const;
  /// The values of codes and scales of rows. The first row is `begin`. Adds the difference of the values from
  /// `weights` to `error`.
  Floats read_back(const EncodedMatrix& m, int64_t begin, const Floats& weights, const Bytes& codes,
                   const Bytes& scales, float global, EncodeError& error) const;

  /// Quantizes a matrix again and compares it. Weights are pruned first if there is a pattern or a mask.
  void check_quantized(const EncodedMatrix& m, const ExpectedGlobal& global, EncodedResult& result);
  /// Checks that the matrix has the source's block scales and, except where the mask drops them, the source's
  /// codes.
  void check_masked(const EncodedMatrix& m, const ExpectedGlobal& global, EncodedResult& result);
  /// The exponents of the scales of MXFP4 weights that are cast as a group.
  std::optional<CastRange> cast_range();
  void check_cast(const EncodedMatrix& m, const CastRange& range, EncodedResult& result);

  // The functions below check matrices that statistics solved. solved_check.cpp defines them.
  bool has_target(const EncodedMatrix& m) const { return m.solving.target_offset.has_value(); }
  /// The targets of rows [begin, end): W + 0.5 C (H + lambda I)^-1.
  Floats targets(const EncodedMatrix& m, const SolvedHessian& h, int64_t begin, int64_t end);
  float largest_target(const EncodedMatrix& m);
  /// True if steps under a global scale and their reciprocals are normal numbers.
  bool can_solve(float global) const;
  ExpectedSolver solver_of(const EncodedMatrix& m, const ExpectedGlobal& global) const;
  /// Solves the drawn rows again and compares their bytes. Checks the pattern and the reported loss of all
  /// rows.
  void check_solved(const EncodedMatrix& m, const ExpectedGlobal& global, EncodedResult& result);
  /// True if row `n` is drawn, which means that it is solved again. Unless Proof::all_rows is set, these are
  /// 64 evenly spaced rows of a matrix.
  bool is_drawn(const EncodedMatrix& m, int64_t n) const;

  const bool divides_, prunes_;
  ExpectedRule arithmetic_;
  float largest_ = 0;
  std::optional<CastRange> cast_;
};

}  // namespace twofour
