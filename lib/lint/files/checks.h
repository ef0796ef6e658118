#pragma once
#include "lib/lint/bytes/input.h"
#include "lib/lint/files/token_table.h"

namespace twofour {

/// Checks the files beside the weights: tokenizer, code, chat templates.
void lint_auxiliary_files(const LintInput& input, LintReporter& reporter);
/// Checks that tokenizer.json can be read and agrees with itself, with vocab_size, and with the tokens in the
/// files beside it. `config` is the content of tokenizer_config.json, or null. Returns its tokens; nullopt:
/// there is no such file, or it cannot be read.
std::optional<TokenTable> lint_tokenizer_file(const LintInput& input, const Json& config,
                                              LintReporter& reporter);
/// Checks that chat templates parse, and that the tokens which they write exist. `tokenizer` is the content
/// of tokenizer_config.json, or null; `tokens` those of tokenizer.json, or nullptr.
void lint_templates(const LintInput& input, const Json& tokenizer, const TokenTable* tokens,
                    LintReporter& reporter);
/// Compares the tokens that end, begin or pad a text with vocab_size. `config` is the content of `file`.
void lint_token_settings(const LintInput& input, const char* file, const Json& config,
                         LintReporter& reporter);
/// Compares files of a Hub's cache with the hashes that name them. Reads all bytes.
void lint_hub_blobs(const LintInput& input, LintReporter& reporter);
/// Checks the files that users of a published checkpoint need: model card, licence, chat template.
/// `tokenizer` is the content of tokenizer_config.json, or null.
void lint_publishing(const LintInput& input, const Json& tokenizer, LintReporter& reporter);

}  // namespace twofour
