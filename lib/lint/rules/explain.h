#pragma once
#include <string>

#include "lib/lint/rules/rules.h"

namespace twofour {

/// Returns a rule's id and severities, and three lines: what is wrong, what follows from it, what to do.
std::string explain_rule(const LintRule& rule);

/// Returns a page in Markdown that explains every rule: RULES.md.
std::string lint_rules_page();

}  // namespace twofour
