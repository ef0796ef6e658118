#pragma once
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/base/names/sibling_name.h"
#include "lib/lint/bytes/figures.h"
#include "lib/lint/bytes/input.h"

namespace twofour {

/// A matrix or vector among its siblings.
struct Member {
  const MatrixFigures* figures = nullptr;
  std::string module{};  ///< module, or tensor without ".weight"
  std::string name{};    ///< the same, followed by " (expert 3)" in a stack
  SiblingName at{};      ///< also with the expert in a stack
  double log2_rms = std::numeric_limits<double>::quiet_NaN();   ///< of weights, with all scales applied
  double log2_amax = std::numeric_limits<double>::quiet_NaN();  ///< NaN: a scale is missing or not valid
  uint64_t numbers = 0;                                         ///< all numbers, not only sampled ones
  bool is_linear = false;                        ///< a matrix of a linear, in a format with known numbers
  size_t scale = MatrixFigures::kNone;           ///< the tensor of global scales, or of FP8 or MXFP4 scales
  const MatrixFigures* scale_figures = nullptr;  ///< of FP8 or MXFP4 scales
  double log2_scale = 0;                         ///< mean of these scales as multipliers, as log2
  bool reported = false;                         ///< a finding names it with others
};

/// All weights among `figures`: linears, embeddings, norms and biases, but no scales.
std::vector<Member> list_members(const LintInput& input, std::span<const MatrixFigures> figures);

/// Names with findings above "note". Anything that belongs to one of them, or contains one, is known to be
/// wrong. Its other oddities follow from that, and it is no measure for its siblings.
class Reported {
 public:
  explicit Reported(const LintReporter& reporter) : names_(reporter.reported_names()) {}
  bool covers(const std::string& name) const;

 private:
  std::set<std::string> names_;
};

/// Drops members with findings under their own name or together with others.
void drop_reported(const LintReporter& reporter, std::vector<Member>& members);

/// Middle and spread of some numbers, robust against a few outliers.
struct RobustSpread {
  double median = 0;
  double deviation = 0;  ///< 1.4826 times the median absolute deviation: the standard deviation of a Gaussian
};
RobustSpread robust_spread(std::vector<double> values);

}  // namespace twofour
