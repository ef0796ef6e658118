#pragma once
#include <optional>
#include <set>
#include <string>

#include "lib/lint/family/family.h"
#include "lib/lint/family/family_presence.h"

namespace twofour {

/// Shared state of the checks of one family. They run in this order, and each corrects `sizes` by its
/// findings, so that the next reports no consequences.
struct FamilySubject {
  const LintInput& input;
  const LanguageModel& model;
  const FamilyPresence& there;
  bool is_own_class;               ///< by `architectures` and names; another class may differ
  FamilySizes sizes;               ///< as config.json states them, then corrected
  std::set<std::string> blamed{};  ///< reported keys
  ModelFacts facts{};

  std::optional<int64_t> experts() const;
};

/// The input of all checks of a family.
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

/// Checks the number of layers and the kind of each.
void lint_family_layers(FamilySubject& subject, LintReporter& reporter);
/// Checks keys that decide if a tensor exists.
void lint_family_switches(FamilySubject& subject, LintReporter& reporter);
/// Compares keys that state sizes with all tensors, and tensors with most others.
void lint_family_sizes(FamilySubject& subject, LintReporter& reporter);

/// The shape of a row's tensors by `sizes`.
struct ExpectedShape {
  std::optional<int64_t> e, n, k;
  bool is_known(const FamilyRow& row) const { return n && (row.k.empty() || k); }
  /// "[N, K]", if known.
  std::string text(const FamilyRow& row) const;
};
ExpectedShape expected_shape(const FamilySubject& subject, const FamilyRow& row, int64_t layer);
/// A shape as text: "[128, 2048, 768]".
std::string shape_text(const LogicalShape& shape);

}  // namespace twofour
