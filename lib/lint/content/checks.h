#pragma once
#include <filesystem>

#include "lib/lint/bytes/input.h"

namespace twofour {

/// Swaps that show only beside another checkpoint of the same model. Throws Error where the two share no
/// module.
void lint_against(const LintInput& input, const std::filesystem::path& other, LintReporter& reporter);

}  // namespace twofour
