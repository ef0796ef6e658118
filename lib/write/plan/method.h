#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/artifact/recipe.h"
#include "lib/recipe/words/rule_words.h"
#include "lib/write/plan/planner.h"

namespace twofour {

/// How the modules of a rule change: the rule's settings with their types.
class Method {
 public:
  virtual ~Method() = default;
  /// Plans the transformations of the modules that the rule's selection chooses, and completes the rule's
  /// settings. Throws Error on a source or selection that the method cannot take; errors of single tensors go
  /// into the planner's problems.
  virtual void plan(Rule& rule, Planner& planner) const = 0;
  /// Plans the modules that no rule took, if number formats change.
  virtual void finish(PlannedRules&) const {}
  /// The value of "twofour.layout" in the files' headers: the layout, or the format of a checkpoint.
  virtual std::string file_format(const Rule& rule) const { return rule.to; }
  /// A short description of the result, for people; the rule's settings are complete.
  virtual std::string summary(const Rule& rule) const {
    return rule.pattern.empty() ? rule.to : std::string(rule.pattern.text());
  }
  /// True if the source's quantization entries must be ones that can stay beside another.
  virtual bool rewrites_config() const { return true; }
};

/// A row of the table of methods.
struct MethodRow {
  std::string_view name;  ///< as Rule::to
  unsigned kind;          ///< MethodKind: which settings of rules it takes; 0: none
  /// Gives the rule's settings their types and completes them. Throws Error on values that no option has.
  std::unique_ptr<Method> (*make)(Rule& rule);
};

/// The methods, layouts first; tests add their own.
std::vector<MethodRow>& methods();
/// The row of that name; nullptr if there is none.
const MethodRow* find_method(std::string_view name);
/// Throws Error if a rule's method does not take a setting with this value, and on a name that no method has.
void check_taken(const Rule& rule, const RuleWord& word, std::string_view value);
/// Throws Error on a name that no method has, on settings that the method does not use and on values that no
/// option has.
std::unique_ptr<Method> make_method(Rule& rule);

}  // namespace twofour
