#pragma once
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/lint/bytes/figures.h"
#include "lib/lint/bytes/input.h"
#include "lib/names/sibling_name.h"

namespace twofour {

/// A matrix or vector among its siblings.
struct Member {
  const MatrixFigures* figures = nullptr;
  std::string module{};  ///< or tensor without ".weight"
  std::string name{};    ///< the same; of a stack " (expert 3)" behind it
  SiblingName at{};      ///< the expert in a stack, too
  double log2_rms = std::numeric_limits<double>::quiet_NaN();   ///< of weights, all scales applied
  double log2_amax = std::numeric_limits<double>::quiet_NaN();  ///< NaN: a scale is missing or not valid
  uint64_t numbers = 0;                 ///< all of them, not only those behind statistics
  bool is_linear = false;               ///< a matrix that is multiplied, in a format with known numbers
  size_t scale = MatrixFigures::kNone;  ///< the tensor of global scales, or of those of FP8 or MXFP4
  const MatrixFigures* scale_figures = nullptr;  ///< of those of FP8 or MXFP4
  double log2_scale = 0;                         ///< the RMS of these, as multipliers
  bool reported = false;                         ///< by a finding that names others
};

/// All weights among `figures`: linears, embeddings, norms and biases, but no scales.
std::vector<Member> list_members(const LintInput& input, std::span<const MatrixFigures> figures);

/// Names with findings above "note". What belongs to one of them, or contains one, is known to be wrong: what
/// else is odd about it follows from that, and it is no measure for its siblings.
class Reported {
 public:
  explicit Reported(const LintReporter& reporter) : names_(reporter.reported_names()) {}
  bool covers(const std::string& name) const;

 private:
  std::set<std::string> names_;
};

/// Drops members of which something was reported: by their name, or with others.
void drop_reported(const LintReporter& reporter, std::vector<Member>& members);

/// Middle and spread of some numbers, neither moved by a few of them.
struct RobustSpread {
  double median = 0;
  double deviation = 0;  ///< 1.4826 times the median absolute deviation: the standard deviation of a Gaussian
};
RobustSpread robust_spread(std::vector<double> values);

}  // namespace twofour
