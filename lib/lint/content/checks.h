#pragma once
#include <filesystem>
#include <span>

#include "lib/lint/siblings/members.h"

namespace twofour {

/// Reports equal matrices of one checkpoint that should differ: experts, layers, gate and up, routers.
void lint_identical(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports codes and numbers that are no quantized weights: another format under this one's name, noise,
/// constants, zero halves, repeated rows, block scales in another order.
void lint_content(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Compares weights of `path` with another checkpoint of the same model, in any format, and reports those
/// that are elsewhere, or in another order, there. Throws Error if the two share no linear.
void lint_against(const LintInput& input, const std::filesystem::path& path,
                  const std::filesystem::path& other, LintReporter& reporter);

}  // namespace twofour
