#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/lint/rules/rules.h"

namespace twofour {

/// The purpose of a check, which changes the severity of rules.
struct LintProfile {
  const char* name;
  const char* what;
};
std::span<const LintProfile> lint_profiles();

/// Rules whose ids match a glob with * and ?; an id matches itself. Empty: none does.
std::vector<size_t> matching_rules(std::string_view glob);

/// A command line's options for rules.
struct LintChoice {
  std::string profile{};              ///< a name in lint_profiles(); empty: the table's severities
  LintLevels levels{};                ///< levels of single rules
  std::vector<std::string> select{};  ///< globs; if any is given, all other rules are off
  std::vector<std::string> ignore{};  ///< globs of rules that are off
};

/// The levels that differ from the table. The last of these decides: profile, levels, select, ignore. A
/// selected rule that would be off has the table's severity. Globs without a match have no effect. Throws
/// Error on an unknown profile.
LintLevels levels_of(const LintChoice& choice);

}  // namespace twofour
