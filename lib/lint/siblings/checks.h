#pragma once
#include <span>

#include "lib/lint/siblings/members.h"

namespace twofour {

/// Weights far from those of the layer's other experts, of the same projection in other layers, or of the
/// whole checkpoint. README.md of lib/lint says which figures and thresholds.
void lint_outliers(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// The largest number of matrices against what their scales are made for.
void lint_full_scale(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// One scale in place of several: global ones, those of blocks and rows.
void lint_copied_scales(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Input and KV scales against each other: copied, constant, missing, far from the others.
void lint_sibling_scales(const LintInput& input, std::span<Member> members, LintReporter& reporter);

}  // namespace twofour
