#pragma once
#include <span>

#include "lib/lint/siblings/members.h"

namespace twofour {

/// Reports weights far from those of the layer's other experts, of the same projection in other layers, or of
/// the whole checkpoint. README.md of lib/lint lists figures and thresholds.
void lint_outliers(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Compares the largest number of matrices with the one that their scales are made for.
void lint_full_scale(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports one scale in place of several: global scales, and scales of blocks and rows.
void lint_copied_scales(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Compares input and KV scales with each other: copied, constant, missing, far from the others.
void lint_sibling_scales(const LintInput& input, std::span<Member> members, LintReporter& reporter);

}  // namespace twofour
