#pragma once
#include <optional>

#include "lib/prove/validate/quantized/solved_check.h"

namespace twofour {

/// The check of NVFP4 that is quantized by a rule's settings, has the source's codes, or is solved by
/// statistics.
class Nvfp4Check : public SolvedCheck {
 public:
  Nvfp4Check(const QuantizedGroup& group, Proof& proof);

 private:
  void prepare(float largest) override;
  void check(const EncodedMatrix& m, EncodedResult& result) override;
  /// Checks the input scale of a matrix against the rule's settings, if it has one.
  void check_input_scale(const EncodedMatrix& m) override;

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

  /// True if steps under a global scale and their reciprocals are normal numbers.
  bool can_solve(float global) const;
  /// The form of a matrix that statistics solved.
  Solved solved_form(const EncodedMatrix& m, const ExpectedGlobal& global) const;

  const bool divides_, prunes_;
  ExpectedRule arithmetic_;
  float largest_ = 0;
  std::optional<CastRange> cast_;
};

}  // namespace twofour
