#pragma once
#include "lib/lint/bytes/input.h"

namespace twofour {

/// Checks the files beside the weights: tokenizer, code, chat templates.
void lint_auxiliary_files(const LintInput& input, LintReporter& reporter);
/// Checks that tokenizer.json can be read, and compares its tokens with vocab_size.
void lint_tokenizer_file(const LintInput& input, LintReporter& reporter);
/// Compares the tokens that end, begin or pad a text with vocab_size. `config` is the content of `file`.
void lint_token_settings(const LintInput& input, const char* file, const Json& config,
                         LintReporter& reporter);
/// Checks the files that users of a published checkpoint need: model card, licence, chat template.
/// `tokenizer` is the content of tokenizer_config.json, or null.
void lint_publishing(const LintInput& input, const Json& tokenizer, LintReporter& reporter);

}  // namespace twofour
