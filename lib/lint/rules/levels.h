#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/lint/rules/rules.h"

namespace twofour {

/// For whom a checkpoint is checked; it changes the severity of rules.
struct LintProfile {
  const char* name;
  const char* what;
};
std::span<const LintProfile> lint_profiles();

/// Rules whose ids are matched by a glob with * and ?; an id matches itself. None: nothing does.
std::vector<size_t> matching_rules(std::string_view glob);

/// What a command line says of rules.
struct LintChoice {
  std::string profile{};              ///< of lint_profiles(); empty: severities of the table
  LintLevels levels{};                ///< of single rules
  std::vector<std::string> select{};  ///< globs; if any is given, all other rules are off
  std::vector<std::string> ignore{};  ///< globs of rules that are off
};

/// The level of each rule that is not as the table says. The later of these decides: profile, levels, select,
/// ignore. What is selected and would be off has the severity of the table. Globs that match nothing count
/// for nothing. Throws Error on an unknown profile.
LintLevels levels_of(const LintChoice& choice);

}  // namespace twofour
