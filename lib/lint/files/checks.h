#pragma once
#include "lib/lint/bytes/input.h"

namespace twofour {

/// Checks files that are no weights: tokenizer, code, chat templates.
void lint_auxiliary_files(const LintInput& input, LintReporter& reporter);
/// Checks that tokenizer.json can be read, and compares its tokens with vocab_size.
void lint_tokenizer_file(const LintInput& input, LintReporter& reporter);
/// Compares tokens that end, begin or pad a text, in one of the configs, with vocab_size.
void lint_token_settings(const LintInput& input, const char* file, const Json& config,
                         LintReporter& reporter);
/// Checks files that users of a published checkpoint need: model card, licence, chat template. `tokenizer`:
/// tokenizer_config.json, or null.
void lint_publishing(const LintInput& input, const Json& tokenizer, LintReporter& reporter);

}  // namespace twofour
