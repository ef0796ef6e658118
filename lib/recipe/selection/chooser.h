#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/base/names/pattern.h"
#include "lib/recipe/artifact/recipe.h"

namespace twofour {

/// Decides which modules a rule's selection chooses. It remembers which patterns and roles matched, because a
/// pattern or role that chooses nothing is an error.
class Chooser {
 public:
  /// `layers` is the number of layers of the model, on which roles depend. The selection must outlive the
  /// chooser.
  Chooser(const Selection& selection, int64_t layers);
  /// True if the selection chooses a module. `is_default` is true if the module is in the method's default
  /// set.
  bool chooses(std::string_view module, bool is_default);
  /// True if a name or role adds a module outside the default set.
  bool adds(std::string_view module);
  /// Notes a module that cannot be chosen, so that patterns of `exclude` may match it without effect.
  void add_other(std::string_view module) { exclude_.matches(module); }
  /// True if the last module was chosen only for its role, because no name matches it.
  bool chose_by_role() const { return by_role_; }
  /// The reason why the last module was chosen: "default set", an option that names it, or a role's name.
  const char* reason() const { return reason_; }
  /// True if a module is an expert of a draft and the selection chooses such experts like other experts.
  bool casts_draft(std::string_view module) const;
  /// Throws Error for the first pattern that matched nothing. The message is the option with the pattern and
  /// "expected to match EXPECTED, found none". Also throws if the selection has only roles and none of them
  /// matched.
  void refuse_unused(const char* expected) const;

 private:
  bool has_role(std::string_view module);
  bool keeps_draft(std::string_view module) const;

  const Selection& selection_;
  int64_t layers_;
  Matcher include_, exclude_, also_;
  std::vector<bool> used_roles_;
  const char* reason_ = "";
  bool by_role_ = false;
};

}  // namespace twofour
