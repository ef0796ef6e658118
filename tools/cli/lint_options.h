#pragma once
#include <string>
#include <vector>

#include "lib/lint/rules/levels.h"

namespace twofour {

/// Throws ErrorLines unless each of `globs` is the id of a rule or a glob that matches one ("index-*").
void check_lint_globs(const std::string& option, const std::vector<std::string>& globs);

/// Parses "ID=LEVEL" of --rule. Throws Error on other texts.
LintLevels parse_lint_levels(const std::vector<std::string>& texts);

}  // namespace twofour
