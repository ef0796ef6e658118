#pragma once
#include <optional>
#include <set>
#include <string>

#include "lib/lint/family/family.h"
#include "lib/lint/family/family_presence.h"

namespace twofour {

/// What the checks of one family share. They run in this order, and each sets in `sizes` what it found to be
/// right, so that the next reports no consequence.
struct FamilySubject {
  const LintInput& input;
  const LanguageModel& model;
  const FamilyPresence& there;
  bool is_own_class;               ///< by `architectures` and by names: a class of its own may differ
  FamilySizes sizes;               ///< as config.json states them, then corrected
  std::set<std::string> blamed{};  ///< keys that were reported
  ModelFacts facts{};

  std::optional<int64_t> experts() const;
};

/// What all checks of a family are given.
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

/// How many layers there are, and of which kind each is.
void lint_family_layers(FamilySubject& subject, LintReporter& reporter);
/// Keys on which it depends whether a tensor is there at all.
void lint_family_switches(FamilySubject& subject, LintReporter& reporter);
/// Keys that state sizes, against all tensors; tensors, against what most others say.
void lint_family_sizes(FamilySubject& subject, LintReporter& reporter);

/// What a row's tensors must be by `sizes`.
struct ExpectedShape {
  std::optional<int64_t> e, n, k;
  bool is_known(const FamilyRow& row) const { return n && (row.k.empty() || k); }
  /// "[N, K]", once it is known.
  std::string text(const FamilyRow& row) const;
};
ExpectedShape expected_shape(const FamilySubject& subject, const FamilyRow& row, int64_t layer);
/// "[128, 2048, 768]"
std::string shape_text(const LogicalShape& shape);

}  // namespace twofour
