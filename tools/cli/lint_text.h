#pragma once
#include <string>

#include "lib/lint/rules/rules.h"
#include "tools/cli/command.h"

namespace twofour {

/// Prints every rule: its severity by `levels`, its subject, the reason, the remedy, an incident.
int print_lint_rules(const Common& common, const LintLevels& levels);

/// Prints subject, reason and remedy of the rules of `glob`; for "all" as a page in Markdown. Throws
/// ErrorLines if no rule has such an id.
int explain_lint_rules(const Common& common, const std::string& glob);

/// Prints a report for people: each rule's first findings, each with its first consequences; all with
/// --verbose. `read` is a text on the data that was read.
void print_lint_report(const Common& common, const LintReport& report, const std::string& path,
                       const std::string& read);
void print_lint_json(const LintReport& report, const std::string& path);

/// Throws ErrorLines unless each of `globs` is the id of a rule or a glob that matches one: "index-*".
void check_lint_globs(const std::string& option, const std::vector<std::string>& globs);

/// Parses "ID=LEVEL" of --rule. Throws Error on other texts.
LintLevels parse_lint_levels(const std::vector<std::string>& texts);

}  // namespace twofour
