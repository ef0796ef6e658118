#pragma once
#include <string>

#include "lib/lint/rules/rules.h"

namespace twofour {

/// A rule's id and severities, and three lines: what is wrong, what follows, what to do.
std::string explain_rule(const LintRule& rule);

/// The same for every rule as a page in Markdown: RULES.md.
std::string lint_rules_page();

}  // namespace twofour
