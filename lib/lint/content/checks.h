#pragma once
#include <filesystem>
#include <span>

#include "lib/lint/siblings/members.h"

namespace twofour {

/// Reports matrices of one checkpoint that are equal and should differ: experts, layers, gate and up,
/// routers.
void lint_identical(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports codes and numbers that cannot be quantized weights: those of another format, noise, constants,
/// zero halves, repeated rows, block scales in another order.
void lint_content(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports numbers, rows and columns that are far larger than the rest of their matrix, and values and scales
/// that no training gives.
void lint_values(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports parts of matrices that do not belong to the rest: noise, zeros, no signs, bytes that occur
/// twice, other scales. Also reports values that no training gives.
void lint_regions(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports rows of zeros that fill pages exactly.
void lint_lost_pages(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports keys whose rows are there twice though those of the values are not, and values likewise.
void lint_repeated_heads(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports codes of AWQ and GPTQ whose columns are packed in another order than their zero points.
void lint_zero_point_order(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports codes whose scales are those of other blocks, rows or matrices.
void lint_scale_fit(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports matrices whose columns do not follow the channels that other readers of the same input follow.
void lint_channels(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Compares the weights of `path` with another checkpoint of the same model, in any format. Reports weights
/// that the other checkpoint has elsewhere or in another order. Throws Error if the two have no linear in
/// common.
void lint_against(const LintInput& input, const std::filesystem::path& path,
                  const std::filesystem::path& other, LintReporter& reporter);

}  // namespace twofour
