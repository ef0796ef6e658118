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
#include "lib/lint/chunks/levels.h"

namespace twofour {

/// A matrix or vector that is compared with its siblings.
struct Member {
  const MatrixFigures* figures = nullptr;
  std::string module{};  ///< name of the module, or of the tensor without ".weight"
  std::string name{};    ///< name of the module; in a stack it is followed by " (expert 3)"
  SiblingName at{};      ///< place among its siblings; in a stack, with the expert
  /// log2 of the RMS of the weights, with all scales applied; of a linear that is mostly zeros, of the
  /// others.
  double log2_rms = std::numeric_limits<double>::quiet_NaN();
  /// log2 of the largest weight; NaN: a scale is missing or invalid.
  double log2_amax = std::numeric_limits<double>::quiet_NaN();
  uint64_t numbers = 0;                 ///< number of all weights
  bool is_linear = false;               ///< true for a matrix of a linear in a format whose numbers are known
  size_t scale = MatrixFigures::kNone;  ///< the tensor of global scales, or of FP8 or MXFP4 scales
  const MatrixFigures* scale_figures = nullptr;  ///< figures of the FP8 or MXFP4 scales
  double log2_scale = 0;                         ///< log2 of the mean of these scales, as multipliers
  bool reported = false;                         ///< a finding names it together with others
  /// Another matrix has zeros at the same rows, or columns: see find_zero_partners().
  bool shares_zero_rows = false, shares_zero_columns = false;
};

/// Returns all weights among `figures`: linears, embeddings, norms and biases. Scales are left out.
std::vector<Member> list_members(const LintInput& input, std::span<const MatrixFigures> figures);

/// The names in warnings and errors. Anything that belongs to a named module, or contains it, is known to be
/// wrong. Its other oddities follow from that, and its siblings are not compared with it.
class Reported {
 public:
  explicit Reported(const LintReporter& reporter) : names_(reporter.reported_names()) {}
  bool covers(const std::string& name) const;

 private:
  std::set<std::string> names_;
};

/// Removes members that have findings, under their own name or together with others.
void drop_reported(const LintReporter& reporter, std::vector<Member>& members);

}  // namespace twofour
