#pragma once
#include <span>

#include "lib/lint/rules/rules.h"

namespace twofour {

/// Rules about artifacts, other checkpoints and baselines. They follow those of rule_table.cpp.
std::span<const LintRule> artifact_rules();

}  // namespace twofour
