#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "formats/json/access.h"
#include "lib/base/io/file.h"
#include "lib/lint/files/checks.h"
#include "lib/source/config/model_config.h"

// The settings of tokenizer_config.json. Source: transformers 5.17, tokenization_utils_base.py,
// tokenization_utils_fast.py.

namespace twofour {
namespace {

constexpr const char* kFile = "tokenizer_config.json";

/// Checks the length at which tokenizers cut texts if they are asked to.
void check_length(const LintInput& s, const Json& config, LintReporter& reporter) {
  const Json& length = member(config, "model_max_length");
  if (length.is_null()) return;
  const bool is_odd = length.is_string() || length.is_boolean() || length.is_structured();
  if (is_odd || (length.is_number() && length.get<double>() < 1)) {
    reporter.add("odd-setting", {kFile, "model_max_length"}, "expected a number of tokens, found {}",
                 quoted_setting(length));
    return;
  }
  // Lengths of fine-tuning are above this, and models with fewer positions are below the other.
  constexpr double kShort = 1024, kLong = 8192;
  if (!length.is_number()) return;  // more digits than a number has
  for (const Json* most : model_settings(s.config, "max_position_embeddings")) {
    if (!most->is_number() || most->get<double>() < kLong || length.get<double>() >= kShort ||
        !makes_texts(s))
      continue;
    reporter.add("tokenizer-steps", {kFile, "model_max_length"},
                 "expected about max_position_embeddings, {}, found {}", quoted_setting(*most),
                 quoted_setting(length));
    return;
  }
}

/// Checks that the class of the tokenizer writes blanks as the words have them. Classes that read
/// tokenizer.json alone end in Fast, or are for all models.
void check_class(const LintInput& s, const Json& config, const TokenTable& tokens, LintReporter& reporter) {
  constexpr std::string_view kOfPieces[] = {"LlamaTokenizer", "GemmaTokenizer", "T5Tokenizer",
                                            "XLNetTokenizer"},
                             kOfBytes[] = {"Qwen2Tokenizer", "GPT2Tokenizer", "RobertaTokenizer",
                                           "BloomTokenizer"};
  const std::string name = text_of(config, "tokenizer_class");
  const auto is_one_of = [&](const auto& names) { return std::ranges::find(names, name) != std::end(names); };
  const bool bytes = TokenTable::has(tokens.encodes, "ByteLevel"), pieces = tokens.writes_blanks;
  if (tokens.words.empty() || config.contains("auto_map") || bytes == pieces) return;
  // transformers converts tokenizer.model first.
  if (bytes && is_one_of(kOfPieces) && is_absent(s.path / "tokenizer.model")) {
    reporter.add("impossible-setting", {kFile, "tokenizer_class"},
                 "expected a class for ByteLevel, which tokenizer.json has, found {}",
                 json_quote_short(name));
  } else if (pieces && is_one_of(kOfBytes)) {
    reporter.add("impossible-setting", {kFile, "tokenizer_class"},
                 "expected a class for the pieces that tokenizer.json has, found {}", json_quote_short(name));
  }
}

}  // namespace

void lint_tokenizer_config(const LintInput& s, const Json& config, const TokenTable& tokens,
                           const ChatTemplates& templates, LintReporter& reporter) {
  if (!config.is_object()) return;
  check_length(s, config, reporter);
  check_class(s, config, tokens, reporter);
  if (flag_of(config, "add_eos_token") == true && makes_texts(s) && !templates.empty())
    reporter.add("tokenizer-steps", {kFile, "add_eos_token"},
                 "expected false, because the model continues texts, found true");
}

}  // namespace twofour
