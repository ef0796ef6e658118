#pragma once
#include <vector>

#include "lib/lint/rules/rules.h"

namespace twofour {

/// Puts each finding that follows from another below that one. `findings` stay in the order of the report. A
/// finding is never put below one of lower severity.
void fold_consequences(std::vector<LintFinding>& findings, const std::vector<LostFile>& lost);

}  // namespace twofour
