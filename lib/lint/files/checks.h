#pragma once
#include "lib/lint/bytes/input.h"
#include "lib/lint/files/token_table.h"

namespace twofour {

/// A token that the model needs in each conversation.
struct NeededToken {
  uint64_t number = 0;
  std::string text;
};

/// Checks the files beside the weights: tokenizer, code, chat templates. Returns the tokens that begin and
/// end texts and that chat templates write.
std::vector<NeededToken> lint_auxiliary_files(const LintInput& input, LintReporter& reporter);
/// Reports needed tokens whose row in the embedding is all zero. Reads these rows.
void lint_token_rows(const LintInput& input, const std::vector<NeededToken>& tokens, LintReporter& reporter);
/// Checks that tokenizer.json can be read and agrees with itself, with vocab_size, and with the tokens in the
/// files beside it. `config` is the content of tokenizer_config.json, or null. Returns its tokens; nullopt:
/// there is no such file, or it cannot be read.
std::optional<TokenTable> lint_tokenizer_file(const LintInput& input, const Json& config,
                                              LintReporter& reporter);
/// Facts of all chat templates of a checkpoint.
struct ChatTemplates {
  std::string written{};  ///< all texts that they may write, a line each
  std::string names{};    ///< all names and compared texts that they read, between blanks
  std::string behind{};   ///< the texts that they write behind contents of messages, a line each
  bool empty() const { return written.empty() && names.empty(); }
  /// True if they may write a text.
  bool write(std::string_view text) const { return written.find(text) != written.npos; }
  /// True if they read a name.
  bool read(std::string_view name) const;
};

/// Checks that chat templates parse, that the tokens which they write exist, that they begin an answer, and
/// that a model that reads images has places for them. `tokenizer` is the content
/// of tokenizer_config.json, or null; `tokens` those of tokenizer.json, or nullptr.
ChatTemplates lint_templates(const LintInput& input, const Json& tokenizer, const TokenTable* tokens,
                             LintReporter& reporter);
/// Checks the other steps of tokenizer.json: lengths to which it cuts or fills up texts, the decoder, the
/// numbers of the tokens that it adds, and the flags of special tokens. Compares vocab.json with it. `config`
/// is the content of tokenizer_config.json, or null.
void lint_tokenizer_steps(const LintInput& input, const Json& config, const TokenTable& tokens,
                          const ChatTemplates& templates, LintReporter& reporter);
/// Checks that the model in tokenizer.json is whole and that the steps around it are those of its words:
/// merges, tokens of bytes, letters for blanks. Compares merges.txt with it.
void lint_tokenizer_model(const LintInput& input, const TokenTable& tokens, LintReporter& reporter);
/// True if the model's class makes texts.
bool makes_texts(const LintInput& input);
/// Compares the numbers of tokens in config.json and generation_config.json with the tokens that
/// tokenizer_config.json names and that chat templates write.
void lint_token_numbers(const LintInput& input, const Json& config, const TokenTable& tokens,
                        const ChatTemplates& templates, LintReporter& reporter);
/// Compares the tokens that end, begin or pad a text with vocab_size. `config` is the content of `file`.
void lint_token_settings(const LintInput& input, const char* file, const Json& config,
                         LintReporter& reporter);
/// Checks tokenizer_config.json by itself, against the words of tokenizer.json, and against the length of
/// texts in config.json. `config` is its content, or null.
void lint_tokenizer_config(const LintInput& input, const Json& config, const TokenTable& tokens,
                           const ChatTemplates& templates, LintReporter& reporter);
/// Compares files with the hashes that name them in a Hub's cache, and that lists of SHA-256 sums state.
/// Reads all their bytes.
void lint_hub_blobs(const LintInput& input, LintReporter& reporter);
/// Checks the files that users of a published checkpoint need: model card, licence, chat template.
/// `tokenizer` is the content of tokenizer_config.json, or null.
void lint_publishing(const LintInput& input, const Json& tokenizer, LintReporter& reporter);

}  // namespace twofour
