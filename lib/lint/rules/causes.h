#pragma once
#include <vector>

#include "lib/lint/rules/rules.h"

namespace twofour {

/// Moves each finding that follows from another finding below its cause. `findings` are in the order of the
/// report and stay in it. A finding never moves below one of lower severity.
void fold_consequences(std::vector<LintFinding>& findings, const std::vector<LostFile>& lost);

}  // namespace twofour
