#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/base/names/pattern.h"
#include "lib/recipe/artifact/recipe.h"

namespace twofour {

/// Decides which modules a rule's selection chooses. It remembers matches: a pattern or role that chooses
/// nothing is an error.
class Chooser {
 public:
  /// For a model of that many layers, which roles depend on. The selection must outlive it.
  Chooser(const Selection& selection, int64_t layers);
  /// True if it chooses a module, whether in the method's default set or not.
  bool chooses(std::string_view module, bool is_default);
  /// True if a name or role adds a module outside the default set.
  bool adds(std::string_view module);
  /// Notes a module that cannot be chosen: exclusions may name it.
  void add_other(std::string_view module) { exclude_.matches(module); }
  /// True if the last module was chosen only for its role: no name matches it.
  bool chose_by_role() const { return by_role_; }
  /// The reason why the last module was chosen: "default set", an option that names it, or a role's name.
  const char* reason() const { return reason_; }
  /// True if it is an expert of a draft that is chosen like the experts of the model.
  bool casts_draft(std::string_view module) const;
  /// Throws Error for the first pattern that matched nothing: an option of the selection with the pattern,
  /// "expected to match EXPECTED, found none". Also if the selection has only roles and none of them matched.
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
