#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/lint/rules/rules.h"

namespace twofour {

/// A purpose for which a checkpoint is checked. It changes the severity of rules.
struct LintProfile {
  const char* name;
  const char* what;
};
std::span<const LintProfile> lint_profiles();

/// Returns the rules whose ids match a glob with * and ?. An id matches itself. Empty: no rule matches.
std::vector<size_t> matching_rules(std::string_view glob);

/// The options about rules on a command line.
struct LintChoice {
  std::string profile{};  ///< name of a profile in lint_profiles(); empty: the severities of the table apply
  LintLevels levels{};    ///< severities of single rules
  std::vector<std::string> select{};  ///< globs of rules; if there is any, all other rules are off
  std::vector<std::string> ignore{};  ///< globs of rules that are off
};

/// Returns the severities that differ from the rule table. If several settings cover a rule, the last of
/// these decides: profile, levels, select, ignore. A selected rule that would be off gets the table's
/// severity. A glob that matches no rule has no effect. Throws Error on an unknown profile.
LintLevels levels_of(const LintChoice& choice);

}  // namespace twofour
