#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "formats/error.h"
#include "formats/json/access.h"
#include "formats/module_names.h"
#include "lib/base/findings/and_more.h"
#include "lib/lint/bytes/downloads.h"
#include "lib/lint/files/checks.h"
#include "lib/source/config/model_config.h"

// Compares the tokens in tokenizer.json with each other, with those that the files beside it name, and with
// the number of rows of the embedding.

namespace twofour {
namespace {

/// Returns vocab_size of the language model; nullopt: no config states it.
std::optional<uint64_t> find_vocabulary(const Json& config) {
  std::optional<uint64_t> size;
  for (const Json* configured : model_settings(config, "vocab_size")) {
    if (configured->is_number_unsigned() && configured->get<uint64_t>() > 0)
      size = std::max(size.value_or(0), configured->get<uint64_t>());
  }
  return size;
}

/// Tokens for images and sounds are replaced by their features and need no row.
bool is_of_other_input(const std::string& token) {
  for (const char* word : {"image", "audio", "video", "vision", "speech"}) {
    if (token.find(word) != token.npos) return true;
  }
  return false;
}

class TokenLint {
 public:
  TokenLint(const LintInput& s, const TokenTable& tokens, LintReporter& reporter)
      : s_(s), tokens_(tokens), reporter_(reporter) {}

  void run(const Json& config) {
    check_model();
    check_numbers();
    check_vocabulary();
    if (!tokens_.is_known()) return;
    check_decoder(config);
    const Json map = read("special_tokens_map.json");
    check_special("tokenizer_config.json", config);
    check_special("special_tokens_map.json", map);
    for (const char* key : kSpecial) {
      const std::string own = text_of_token(member(config, key)), other = text_of_token(member(map, key));
      // Fine-tuning often sets another token for padding, in one file only.
      if (own.empty() || other.empty() || own == other || key == std::string_view("pad_token")) continue;
      reporter_.add("token-ids", {"special_tokens_map.json", key},
                    "expected {} (tokenizer_config.json), found {}", json_quote_short(own),
                    json_quote_short(other));
    }
    const Json added = read("added_tokens.json");
    for (const auto& [text, number] : members_of(added)) {
      if (number.is_number_unsigned()) check_token("added_tokens.json", text, text, number.get<uint64_t>());
    }
  }

 private:
  /// Special tokens without which generation does not begin or end.
  static constexpr const char* kSpecial[] = {"eos_token", "bos_token", "pad_token"};

  /// Returns the text of a token, which is a string or an object with its content.
  static std::string text_of_token(const Json& token) {
    return token.is_object() ? text_of(token, "content") : text_of(token);
  }
  /// Reads a file beside tokenizer.json. Other rules report one that is not a file, or not downloaded.
  Json read(const char* name) const {
    std::error_code error;
    const std::filesystem::path path = s_.path / name;
    if (!std::filesystem::is_regular_file(path, error) || find_placeholder(path)) return {};
    return read_lint_config(s_.path, name, reporter_);
  }
  void add(const char* rule, std::string key, std::string message) {
    reporter_.add(rule, {"tokenizer.json", std::move(key)}, std::move(message));
  }

  void check_model() {
    // A file without any token stands in for one, in small models that are made for tests.
    if (!tokens_.has_model && !tokens_.added.empty())
      return add("bad-tokenizer", "model", "expected a model that splits text into tokens, found none");
    if (!tokens_.lost_merge) return;
    const auto& [left, right] = *tokens_.lost_merge;
    add("bad-tokenizer", "model.merges",
        fmt::format("expected merges of words in the vocabulary, found {} and {}{}", json_quote_short(left),
                    json_quote_short(right), and_more(tokens_.lost_merges, ", and {} more")));
  }

  /// Reports numbers that two tokens have, and added tokens with another number than the same word.
  void check_numbers() {
    std::unordered_map<uint64_t, const std::string*> by_number;
    for (const auto& [word, number] : tokens_.words) {
      const auto [at, is_new] = by_number.emplace(number, &word);
      if (is_new) continue;
      add_shared(number, std::min(*at->second, word), std::max(*at->second, word), "model.vocab");
      break;
    }
    std::unordered_map<uint64_t, const std::string*> added;
    for (const auto& [number, text] : tokens_.added) {
      const auto word = tokens_.words.find(text);
      const auto [at, is_new] = added.emplace(number, &text);
      const auto other = by_number.find(number);
      if (!is_new && *at->second != text) {
        return add_shared(number, *at->second, text, "added_tokens");
      } else if (word != tokens_.words.end() && word->second != number) {
        return add("token-ids", "added_tokens",
                   fmt::format("expected {} for {} (as in the vocabulary), found {}", word->second,
                               json_quote_short(text), number));
      } else if (other != by_number.end() && *other->second != text) {
        return add_shared(number, *other->second, text, "added_tokens");
      }
    }
  }
  void add_shared(uint64_t number, const std::string& a, const std::string& b, const char* key) {
    add("token-ids", key,
        fmt::format("expected a number for each token, found {} for {} and {}", number, json_quote_short(a),
                    json_quote_short(b)));
  }

  void check_vocabulary() {
    if (!tokens_.has_vocabulary) return;
    const auto add_size = [&](const char* key, std::string message) {
      add("tokenizer-size", key, std::move(message));
    };
    if (!tokens_.last_word && !tokens_.last_added)
      return add_size("model.vocab", "expected tokens, found none");
    const auto size = find_vocabulary(s_.config);
    if (!size) return;
    const uint64_t last = tokens_.last_word.value_or(0);
    if (last >= *size && tokens_.last_word)
      return add_size("model.vocab",
                      fmt::format("expected numbers below vocab_size, {}, found {}", *size, last));
    for (const auto& [number, text] : tokens_.added) {
      if (number < *size || is_of_other_input(text)) continue;
      return add_size("added_tokens", fmt::format("expected numbers below vocab_size, {}, found {} for {}",
                                                  *size, number, json_quote_short(text)));
    }
    // Embeddings are padded to round sizes. Behind the rows for text, they may also have rows for other
    // inputs. A tokenizer of special tokens alone stands in for one, in small models that are made for tests.
    constexpr uint64_t kFew = 512, kTest = 1024;
    const uint64_t all = std::max<uint64_t>(tokens_.words.size(), last + 1) + tokens_.added.size();
    const bool stands_in = *size <= kTest && tokens_.words.size() <= tokens_.added.size();
    const auto model = find_language_model(s_.config);
    if (model && !model->is_nested && *size > kFew && all < *size / 2 && !stands_in)
      add_size("model.vocab", fmt::format("expected about {} tokens (vocab_size), found {}", *size, all));
  }

  /// Compares the added tokens that tokenizer_config.json lists.
  void check_decoder(const Json& config) {
    for (const auto& [number, token] : members_of(config, "added_tokens_decoder")) {
      const auto own = parse_index(number);
      const std::string text = text_of_token(token);
      if (!own || text.empty()) continue;
      if (!check_token("tokenizer_config.json", "added_tokens_decoder." + number, text,
                       static_cast<uint64_t>(*own)))
        return;
    }
  }
  /// Compares the number of a token in another file. Returns true if it agrees.
  bool check_token(const char* file, const std::string& key, const std::string& text, uint64_t number) {
    const auto found = tokens_.find(text);
    if (found && *found != number) {
      reporter_.add("token-ids", {file, key}, "expected {} for {} (as in tokenizer.json), found {}", *found,
                    json_quote_short(text), number);
      return false;
    }
    const std::string* other = tokens_.find_added(number);
    if (!found && other != nullptr) {
      reporter_.add("token-ids", {file, key}, "expected {} for {} (as in tokenizer.json), found {}",
                    json_quote_short(*other), number, json_quote_short(text));
      return false;
    }
    return true;
  }

  /// Checks that special tokens are tokens.
  void check_special(const char* file, const Json& config) {
    for (const char* key : kSpecial) {
      const std::string text = text_of_token(member(config, key));
      if (text.empty() || tokens_.find(text) || is_added_by(config, text)) continue;
      reporter_.add("missing-token", {file, key}, "expected a token of tokenizer.json, found {}",
                    json_quote_short(text));
    }
    for (const Json& token : member(config, "additional_special_tokens")) {
      const std::string text = text_of_token(token);
      if (text.empty() || tokens_.find(text) || is_added_by(config, text)) continue;
      reporter_.add("missing-token", {file, "additional_special_tokens"},
                    "expected tokens of tokenizer.json, found {}", json_quote_short(text));
      return;
    }
  }
  static bool is_added_by(const Json& config, const std::string& text) {
    for (const auto& [number, token] : members_of(config, "added_tokens_decoder")) {
      if (text_of_token(token) == text) return true;
    }
    return false;
  }

  const LintInput& s_;
  const TokenTable& tokens_;
  LintReporter& reporter_;
};

}  // namespace

std::optional<TokenTable> lint_tokenizer_file(const LintInput& s, const Json& config,
                                              LintReporter& reporter) {
  constexpr const char* kName = "tokenizer.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(s.path / kName, error) || find_placeholder(s.path / kName))
    return std::nullopt;
  std::optional<TokenTable> tokens;
  try {
    tokens = read_token_table(s.path);
  } catch (const ReadError&) {
    throw;
  } catch (const Error& e) {
    reporter.add("bad-config", {kName, ""}, damage_of(e, s.path / kName));
    return std::nullopt;
  }
  TokenLint(s, *tokens, reporter).run(config);
  return tokens;
}

void lint_token_settings(const LintInput& s, const char* file, const Json& config, LintReporter& reporter) {
  const auto size = find_vocabulary(s.config);
  if (!size || !config.is_object()) return;
  // Models of sounds count codes there, and text in other keys.
  for (const auto& [key, value] : members_of(s.config)) {
    if (key.find("codebook") != key.npos) return;
  }
  for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id"}) {
    const auto at = config.find(key);
    if (at == config.end()) continue;
    for (const Json& id : *at) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() < *size) continue;
      reporter.add("impossible-setting", {file, key}, "expected less than vocab_size, {}, found {}", *size,
                   quoted_setting(id));
      break;
    }
  }
}

}  // namespace twofour
