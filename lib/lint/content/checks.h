#pragma once
#include <filesystem>
#include <span>

#include "lib/lint/siblings/members.h"

namespace twofour {

/// Matrices of one checkpoint that are equal and should not be: experts, layers, gate and up, routers.
void lint_identical(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Codes and numbers that are no quantized weights: other formats under this one's name, noise, constants,
/// zero halves, repeated rows, block scales in another order.
void lint_content(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// What shows only beside another checkpoint of the same model, in whatever format: weights of `path` that
/// are elsewhere, or in another order, there. Throws Error where the two share no linear.
void lint_against(const LintInput& input, const std::filesystem::path& path,
                  const std::filesystem::path& other, LintReporter& reporter);

}  // namespace twofour
