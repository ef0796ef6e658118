#pragma once
#include <string>

#include "lib/lint/rules/rules.h"
#include "tools/cli/command.h"

namespace twofour {

/// Prints every rule, with its severity by `levels`, its subject, the reason, the remedy and an incident.
/// Returns the exit code.
int print_lint_rules(const Common& common, const LintLevels& levels);

/// Prints the subject, reason and remedy of the rules whose ids match `glob`, or of all rules as a page in
/// Markdown if it is "all". Returns the exit code. Throws ErrorLines if no id matches.
int explain_lint_rules(const Common& common, const std::string& glob);

/// Prints a report as text. It has the first findings of each rule with their first consequences or, with
/// --verbose, all of them. `read` is a text about the data that was read.
void print_lint_report(const Common& common, const LintReport& report, const std::string& path,
                       const std::string& read);
void print_lint_json(const LintReport& report, const std::string& path);

}  // namespace twofour
