#pragma once
#include "lib/lint/bytes/input.h"

namespace twofour {

/// Settings of config.json that are not what model classes read, or contradict each other.
void lint_settings(const LintInput& input, LintReporter& reporter);

/// The scaling of rotary embeddings.
void lint_rope(const LintInput& input, LintReporter& reporter);

/// Settings that are one of some texts, and texts where a number or a switch belongs.
void lint_choices(const LintInput& input, LintReporter& reporter);

/// The class that loaders choose, and whether config.json says enough of it.
void lint_model_class(const LintInput& input, LintReporter& reporter);

}  // namespace twofour
