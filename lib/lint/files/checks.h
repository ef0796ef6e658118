#pragma once
#include "lib/lint/bytes/input.h"

namespace twofour {

/// Files that are no weights: tokenizer, code, chat templates.
void lint_auxiliary_files(const LintInput& input, LintReporter& reporter);
/// tokenizer.json: whether it can be read, and its tokens against vocab_size.
void lint_tokenizer_file(const LintInput& input, LintReporter& reporter);
/// Tokens that end, begin or pad a text, in one of the configs, against vocab_size.
void lint_token_settings(const LintInput& input, const char* file, const Json& config,
                         LintReporter& reporter);
/// What users of a published checkpoint look for: model card, licence, chat template. `tokenizer`:
/// tokenizer_config.json, or null.
void lint_publishing(const LintInput& input, const Json& tokenizer, LintReporter& reporter);

}  // namespace twofour
