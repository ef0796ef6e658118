#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/artifact/recipe.h"
#include "lib/names/pattern.h"

namespace twofour {

/// Which modules a rule's selection chooses. It remembers what matched: a pattern or role that chooses
/// nothing is an error.
class Chooser {
 public:
  /// Of a model of that many layers, which roles depend on. The selection must outlive it.
  Chooser(const Selection& selection, int64_t layers);
  /// Whether it chooses a module, of the method's default set or not.
  bool chooses(std::string_view module, bool is_default);
  /// Whether a name or role adds a module outside the default set.
  bool adds(std::string_view module);
  /// Says that there is a module which is not to choose from: exclusions may name it.
  void add_other(std::string_view module) { exclude_.matches(module); }
  /// Whether the last module was chosen for its role alone: no name says it.
  bool chose_by_role() const { return by_role_; }
  /// What chose the last module: "default set", an option that names it, or a role's name.
  const char* reason() const { return reason_; }
  /// Whether it is an expert of a draft that is chosen as the experts of the model are.
  bool casts_draft(std::string_view module) const;
  /// Throws Error for the first pattern that matched nothing: an option of the selection with the pattern,
  /// "expected to match EXPECTED, found none", and for roles of which none did, where there is nothing else.
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
