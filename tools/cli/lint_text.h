#pragma once
#include <string>

#include "lib/lint/rules/rules.h"
#include "tools/cli/command.h"

namespace twofour {

/// Of every rule: the severity that it has by `levels`, what, why, what to do, an incident.
int print_lint_rules(const Common& common, const LintLevels& levels);

/// What, why and what to do of the rules of `glob`; of "all" as a page in Markdown. Throws ErrorLines where
/// no rule has such an id.
int explain_lint_rules(const Common& common, const std::string& glob);

/// A report for people: each rule's first findings, each with its first consequences; all with --verbose.
/// `read` says what was read.
void print_lint_report(const Common& common, const LintReport& report, const std::string& path,
                       const std::string& read);
void print_lint_json(const LintReport& report, const std::string& path);

/// Throws ErrorLines unless each of these is the id of a rule or a glob that matches one: "index-*".
void check_lint_globs(const std::string& option, const std::vector<std::string>& globs);

/// "ID=LEVEL" of --rule. Throws Error on what is none.
LintLevels parse_lint_levels(const std::vector<std::string>& texts);

}  // namespace twofour
