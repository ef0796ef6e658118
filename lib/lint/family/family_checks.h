#pragma once
#include <optional>
#include <set>
#include <string>

#include "lib/lint/family/family.h"
#include "lib/lint/family/family_presence.h"

namespace twofour {

/// The state that the checks of one family share. The checks run in the order below. Each corrects `sizes` by
/// its findings, so that the next checks do not report their consequences.
struct FamilySubject {
  const LintInput& input;
  const LanguageModel& model;
  const FamilyPresence& there;
  bool is_own_class;  ///< `architectures` and names show the family's own class; another class may differ
  FamilySizes sizes;  ///< sizes as config.json states them, corrected by findings
  std::set<std::string> blamed{};  ///< keys that were reported
  ModelFacts facts{};
  bool is_draft = false;  ///< the subject is a draft of the model

  std::optional<int64_t> experts() const;
};

/// The base of all checks of a family.
class FamilyLint {
 public:
  FamilyLint(FamilySubject& x, LintReporter& reporter)
      : x_(x), s_(x.input), model_(x.model), there_(x.there), sizes_(x.sizes), reporter_(reporter) {}

 protected:
  FamilySubject& x_;
  const LintInput& s_;
  const LanguageModel& model_;
  const FamilyPresence& there_;
  FamilySizes& sizes_;
  LintReporter& reporter_;
};

/// Checks how many layers there are, and the kind of each.
void lint_family_layers(FamilySubject& subject, LintReporter& reporter);
/// True if all numbers of a bias are zero, as AutoGPTQ stores it for every linear. It changes nothing, and
/// loaders of models without biases leave it out.
bool is_zero_bias(const LintInput& input, size_t tensor);
/// Checks keys that decide whether a tensor exists.
void lint_family_switches(FamilySubject& subject, LintReporter& reporter);
/// Compares the sizes in config.json with all tensors. Then compares each tensor with the majority.
void lint_family_sizes(FamilySubject& subject, LintReporter& reporter);

/// Reports tensors that are missing although config.json and the rows ask for them.
void lint_missing_tensors(FamilySubject& subject, LintReporter& reporter);
/// Checks the parts of a family that have rows of their own: drafts, towers, tables of n-grams.
void lint_family_parts(FamilySubject& subject, LintReporter& reporter);

/// The shape that a row's tensors should have by `sizes`.
struct ExpectedShape {
  std::optional<int64_t> e, n, k;
  bool is_known(const FamilyRow& row) const { return n && (row.k.empty() || k); }
  /// Returns "[N, K]" if the sizes are known.
  std::string text(const FamilyRow& row) const;
};
ExpectedShape expected_shape(const FamilySubject& subject, const FamilyRow& row, int64_t layer);
/// Returns a shape as text: "[128, 2048, 768]".
std::string shape_text(const LogicalShape& shape);

}  // namespace twofour
