#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "formats/json/access.h"
#include "lib/lint/files/checks.h"
#include "lib/source/config/model_config.h"

// Compares the numbers of tokens in configs with the tokens of the tokenizer: the tokens that begin and end
// texts, and the tokens for images and sounds.

namespace twofour {
namespace {

using Numbers = std::vector<uint64_t>;

/// Returns the number, or the list of numbers, under a key.
Numbers numbers_of(const Json& config, const char* key) {
  Numbers numbers;
  const Json& value = member(config, key);
  if (value.is_number_unsigned()) numbers.push_back(value.get<uint64_t>());
  if (value.is_array()) {
    for (const Json& one : value) {
      if (one.is_number_unsigned()) numbers.push_back(one.get<uint64_t>());
    }
  }
  return numbers;
}
bool has(const Numbers& numbers, uint64_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

/// A key of config.json with the number of a token that tokenizer_config.json names.
struct InputToken {
  const char *key, *token;
  const char* word;  ///< part of the names of such tokens
};
constexpr InputToken kInputTokens[] = {
    {"image_token_id", "image_token", "image"},    {"image_token_index", "image_token", "image"},
    {"video_token_id", "video_token", "video"},    {"video_token_index", "video_token", "video"},
    {"audio_token_id", "audio_token", "audio"},    {"audio_token_index", "audio_token", "audio"},
    {"boi_token_id", "boi_token", "image"},        {"boi_token_index", "boi_token", "image"},
    {"eoi_token_id", "eoi_token", "image"},        {"eoi_token_index", "eoi_token", "image"},
    {"vision_start_token_id", "", "vision_start"}, {"vision_end_token_id", "", "vision_end"},
};

class NumberLint {
 public:
  NumberLint(const LintInput& s, const Json& config, const TokenTable& tokens, const ChatTemplates& templates,
             LintReporter& reporter)
      : s_(s), config_(config), tokens_(tokens), templates_(templates), reporter_(reporter) {}

  void run() {
    begin_ = named("bos_token");
    end_ = named("eos_token");
    LintReporter unreported;  // other rules report a file that cannot be read
    const Json generation = read_lint_config(s_.path, kGeneration, unreported);
    const Json* own = nullptr;  // the language model's config where config.json has no numbers
    if (const auto model = find_language_model(s_.config)) own = model->config;
    const bool is_nested = own != nullptr && numbers_of(s_.config, "eos_token_id").empty();
    const Json& config = is_nested ? *own : s_.config;
    const bool agree = check_swapped("config.json", config) & check_swapped(kGeneration, generation);
    is_own_ = !numbers_of(generation, "eos_token_id").empty();
    if (agree && check_words(is_own_ ? generation : config)) check_end(config, generation);
    for (const InputToken& token : kInputTokens) check_input(token);
  }

 private:
  static constexpr const char* kGeneration = "generation_config.json";

  /// A token that tokenizer_config.json names, with its number.
  struct Named {
    std::string text{};
    std::optional<uint64_t> number{};
  };
  Named named(const char* key) const {
    const Json& token = member(config_, key);
    Named named{token.is_object() ? text_of(token, "content") : text_of(token)};
    if (!named.text.empty()) named.number = tokens_.find(named.text);
    return named;
  }
  void differ(const char* file, const char* key, const Named& token, uint64_t found) {
    const std::string* text = tokens_.find_added(found);
    reporter_.add("token-ids", {file, key}, "expected {}, {} (tokenizer_config.json), found {}{}",
                  *token.number, json_quote_short(token.text), found,
                  text != nullptr ? ", " + json_quote_short(*text) : std::string());
  }

  /// Reports a config in which the tokens that begin and end a text are exchanged. Other numbers may be
  /// correct: the end of a turn in place of the end of a text. Returns true if there is nothing to
  /// report.
  bool check_swapped(const char* file, const Json& config) {
    if (!end_.number) return true;
    bool agree = true;
    const Numbers begins = numbers_of(config, "bos_token_id"), ends = numbers_of(config, "eos_token_id");
    if (begin_.number && begin_.number != end_.number) {
      if (has(ends, *begin_.number) && !has(ends, *end_.number)) {
        differ(file, "eos_token_id", end_, *begin_.number);
        agree = false;
      }
      if (begins.size() == 1 && begins[0] == *end_.number) {
        differ(file, "bos_token_id", begin_, begins[0]);
        agree = false;
      }
    }
    return agree;
  }
  /// Reports words of the vocabulary as ends, where that of the tokenizer is an added token. Returns true if
  /// there is nothing to report.
  bool check_words(const Json& config) {
    const Numbers begins = numbers_of(config, "bos_token_id"), ends = numbers_of(config, "eos_token_id");
    if (begin_.number && begins.size() == 1 && is_word(begins[0]) && !is_word(*begin_.number) &&
        begin_.number != end_.number)
      differ(is_own_ ? kGeneration : "config.json", "bos_token_id", begin_, begins[0]);
    const bool are_words =
        !ends.empty() && std::ranges::all_of(ends, [&](uint64_t number) { return is_word(number); });
    if (!end_.number || !are_words || is_word(*end_.number)) return true;
    differ(is_own_ ? kGeneration : "config.json", "eos_token_id", end_, ends[0]);
    return false;
  }
  /// True for a word of the vocabulary that is no added token.
  bool is_word(uint64_t number) const {
    return tokens_.find_added(number) == nullptr &&
           std::ranges::any_of(tokens_.words, [&](const auto& word) { return word.second == number; });
  }

  /// Checks that generation stops at the token by which templates end the answer. In generation_config.json
  /// the tokens take the place of those in config.json.
  void check_end(const Json& config, const Json& generation) {
    const Numbers ends = numbers_of(is_own_ ? generation : config, "eos_token_id");
    const char* file = is_own_ ? kGeneration : "config.json";
    if (ends.empty() || templates_.empty()) return;
    if (end_.number && !has(ends, *end_.number) &&
        !std::ranges::any_of(ends, [&](uint64_t n) { return may_end(n); })) {
      differ(file, "eos_token_id", end_, ends[0]);
      return;
    }
    const bool is_written = end_.text.size() > 2 && templates_.write(end_.text);
    if (end_.number && is_written) {
      if (!has(ends, *end_.number)) missing_end(file, end_.text, *end_.number);
      return;
    }
    // Models that are not trained for conversations may have a template of their siblings. They do not
    // sample.
    if (templates_.read("eos_token") || flag_of(generation, "do_sample") != true) return;
    const std::pair<uint64_t, std::string>* turn = nullptr;
    for (const auto& token : tokens_.added) {
      if (token.second.size() < 3 || !templates_.write(token.second)) continue;
      if (has(ends, token.first)) return;
      const bool may_end = templates_.behind.find(token.second) != std::string::npos;
      if (may_end && (turn == nullptr || token.second.find("end") != std::string::npos)) turn = &token;
    }
    if (turn != nullptr) missing_end(file, turn->second, turn->first);
  }
  /// True for a token after the content of messages, and for one that is named as an end.
  bool may_end(uint64_t number) const {
    const std::string* text = tokens_.find_added(number);
    if (text == nullptr || templates_.behind.find(*text) != std::string::npos) return true;
    for (const char* word : {"end", "eos", "eot", "eom", "EOT", "EOS", "END", "</", "return", "call", "stop",
                             "sep", "SEP", "user", "User", "pad", "observation"}) {
      if (text->find(word) != text->npos) return true;
    }
    return false;
  }
  void missing_end(const char* file, const std::string& text, uint64_t number) {
    reporter_.add("turn-end", {file, "eos_token_id"},
                  "expected {}, {}, too, because chat templates end the answer with it, found none", number,
                  json_quote_short(text));
  }

  /// Checks that the number for images is that of a token for images.
  void check_input(const InputToken& token) {
    const Numbers found = numbers_of(s_.config, token.key);
    if (found.size() != 1) return;
    const Named expected = *token.token != '\0' ? named(token.token) : Named();
    if (expected.number) {
      if (*expected.number != found[0]) differ("config.json", token.key, expected, found[0]);
      return;
    }
    const auto other = std::ranges::find_if(
        tokens_.added, [&](const auto& added) { return added.second.find(token.word) != std::string::npos; });
    if (other == tokens_.added.end() || is_of_code()) return;
    const std::string* text = tokens_.find_added(found[0]);
    const auto suits = [&](const char* word) { return text->find(word) != std::string::npos; };
    if (text != nullptr && (suits(token.word) || std::ranges::any_of(kOthers, suits))) return;
    if (text == nullptr && !is_word(found[0]) && (is_listed(found[0]) || has_row(found[0]))) return;
    reporter_.add("token-ids", {"config.json", token.key},
                  "expected an added token, such as {}, {}, found {}, {}", other->first,
                  json_quote_short(other->second), found[0],
                  text != nullptr     ? json_quote_short(*text)
                  : is_word(found[0]) ? "a word of the vocabulary"
                                      : "which is none");
  }
  /// Parts of the names of tokens for other inputs that do not show their kind.
  static constexpr const char* kOthers[] = {"img",    "IMG",      "patch", "media",    "IMAGE",
                                            "AUDIO",  "VIDEO",    "sound", "speech",   "placeholder",
                                            "unused", "reserved", "extra", "endoftext"};
  /// Code of the model may count tokens in its own way.
  bool is_of_code() const { return s_.config.contains("auto_map"); }
  /// True if the vocabulary of the model is larger than a number.
  bool has_row(uint64_t number) const {
    const auto sizes = model_settings(s_.config, "vocab_size");
    return sizes.empty() || std::ranges::any_of(sizes, [&](const Json* size) {
             return size->is_number_unsigned() && size->get<uint64_t>() > number;
           });
  }
  /// True for a token that only tokenizer_config.json has.
  bool is_listed(uint64_t number) const {
    return !member(member(config_, "added_tokens_decoder"), std::to_string(number)).is_null();
  }

  const LintInput& s_;
  const Json& config_;
  const TokenTable& tokens_;
  const ChatTemplates& templates_;
  LintReporter& reporter_;
  Named begin_, end_;
  bool is_own_ = false;  // generation_config.json has ends of its own
};

}  // namespace

void lint_token_numbers(const LintInput& s, const Json& config, const TokenTable& tokens,
                        const ChatTemplates& templates, LintReporter& reporter) {
  NumberLint(s, config, tokens, templates, reporter).run();
}

void lint_token_rows(const LintInput& s, const std::vector<NeededToken>& tokens, LintReporter& reporter) {
  for (size_t i = 0; i < s.tensors.size() && !tokens.empty(); ++i) {
    const TensorInfo& t = s.tensors[i];
    const bool is_table = t.name.ends_with("embed_tokens.weight") && t.name.find("layers.") == t.name.npos &&
                          t.name.find("mtp") == t.name.npos;
    if (!is_table || t.shape.size() != 2 || t.shape[0] <= 0 || !s.whole[i]) continue;
    const uint64_t size = t.bytes() / static_cast<uint64_t>(t.shape[0]);
    std::vector<uint8_t> row(size);
    for (const NeededToken& token : tokens) {
      // Features take the place of the rows of tokens for images and sounds.
      const bool is_input = std::ranges::any_of(kInputTokens, [&](const InputToken& input) {
        return token.text.find(input.word) != std::string::npos;
      });
      if (is_input || token.number >= static_cast<uint64_t>(t.shape[0])) continue;
      s.read(i, token.number * size, row);
      if (std::ranges::any_of(row, [](uint8_t byte) { return byte != 0; })) continue;
      reporter.add("token-row", s.at(i), "expected numbers in row {} of {}, found zeros", token.number,
                   json_quote_short(token.text));
    }
  }
}

}  // namespace twofour
