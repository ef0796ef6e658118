#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/artifact/recipe.h"
#include "lib/recipe/settings/rule_settings.h"
#include "lib/write/plan/planner.h"

namespace twofour {

/// The way in which a rule changes modules. It holds the rule's settings with their types.
class Method {
 public:
  virtual ~Method() = default;
  /// Plans the transformations of the modules that the rule's selection chooses, and completes the rule's
  /// settings. Throws Error on a source or selection that the method does not support. Errors of single
  /// tensors become problems of the planner.
  virtual void plan(Rule& rule, Planner& planner) const = 0;
  /// Plans the modules that no rule took, if number formats change.
  virtual void finish(PlannedRules&) const {}
  /// The value of "twofour.layout" in the headers of the files: a layout, or the format of a checkpoint.
  virtual std::string file_format(const Rule& rule) const { return rule.to; }
  /// A short description of the result, for messages. The rule's settings must be complete.
  virtual std::string summary(const Rule& rule) const {
    return rule.pattern.empty() ? rule.to : std::string(rule.pattern.text());
  }
  /// True if the method requires that the source's quantization entries can stay beside another one.
  virtual bool rewrites_config() const { return true; }
};

/// A row of the table of methods.
struct MethodRow {
  std::string_view name;  ///< the value of Rule::to
  unsigned kind;          ///< bits of MethodKind, for the settings of rules that it takes; 0 if none
  /// Converts the rule's settings to their types and completes them. Throws Error on values that no option
  /// has.
  std::unique_ptr<Method> (*make)(Rule& rule);
};

/// The table of methods, layouts first. Tests add rows.
std::vector<MethodRow>& methods();
/// The row with this name. Null if there is none.
const MethodRow* find_method(std::string_view name);
/// Throws Error if the rule's method does not take the setting `word` with this value, and if no method has
/// the rule's name.
void check_taken(const Rule& rule, const RuleSetting& word, std::string_view value);
/// Makes the method that a rule names. Throws Error if no method has this name, on settings that the method
/// does not use, and on values that no option has.
std::unique_ptr<Method> make_method(Rule& rule);

}  // namespace twofour
