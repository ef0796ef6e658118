#include <algorithm>
#include <string>
#include <system_error>

#include "formats/error.h"
#include "formats/json/access.h"
#include "lib/base/findings/and_more.h"
#include "lib/lint/bytes/downloads.h"
#include "lib/lint/files/checks.h"

// The steps of tokenizer.json around its words, and vocab.json beside it. Source: huggingface/tokenizers
// 0.22, tokenizer/serialization.rs, decoders/mod.rs, processors/template.rs.

namespace twofour {

/// Models that make vectors of texts cut them on purpose.
bool makes_texts(const LintInput& s) {
  const std::vector<std::string> classes = strings_of(s.config, "architectures");
  return std::ranges::any_of(classes, [](const std::string& name) {
    return name.find("CausalLM") != name.npos || name.find("ConditionalGeneration") != name.npos;
  });
}

namespace {

class StepLint {
 public:
  StepLint(const LintInput& s, const Json& config, const TokenTable& tokens, const ChatTemplates& templates,
           LintReporter& reporter)
      : s_(s), config_(config), tokens_(tokens), templates_(templates), reporter_(reporter) {}

  void run() {
    check_lengths();
    check_decoder();
    check_appended();
    check_flags();
    check_words();
  }

 private:
  static constexpr const char* kFile = "tokenizer.json";

  void check_lengths() {
    if (!makes_texts(s_)) return;
    if (tokens_.truncation)
      reporter_.add("tokenizer-steps", {kFile, "truncation"},
                    "expected null, found truncation of texts to {} tokens", *tokens_.truncation);
    if (tokens_.padding)
      reporter_.add("tokenizer-steps", {kFile, "padding"},
                    "expected null, found padding of texts to {} tokens", *tokens_.padding);
    if (!tokens_.filler) return;
    const auto& [text, number] = *tokens_.filler;
    const auto own = tokens_.find(text);
    if (!own) {
      reporter_.add("missing-token", {kFile, "padding.pad_token"}, "expected a token of the file, found {}",
                    json_quote_short(text));
    } else if (*own != number) {
      reporter_.add("token-ids", {kFile, "padding.pad_id"}, "expected {} for {}, found {}", *own,
                    json_quote_short(text), number);
    }
  }

  /// A step that turns bytes into letters, or blanks into another letter, needs a decoder that turns them
  /// back.
  void check_decoder() {
    for (const char* step : {"ByteLevel", "Metaspace"}) {
      if (!TokenTable::has(tokens_.encodes, step) || !tokens_.decodes.empty()) continue;
      reporter_.add("tokenizer-steps", {kFile, "decoder"},
                    "expected {} (as in the pre-tokenizer), found none", step);
      return;
    }
    if (tokens_.falls_back && tokens_.decodes.empty())
      reporter_.add("tokenizer-steps", {kFile, "decoder"},
                    "expected ByteFallback, because the model has tokens of bytes, found none");
  }

  void check_appended() {
    for (const AppendedToken& token : tokens_.appended) {
      const auto number = tokens_.find(token.text);
      if (!number) {
        reporter_.add("missing-token", {kFile, "post_processor"}, "expected a token of the file, found {}",
                      json_quote_short(token.text));
      } else if (*number != token.number) {
        reporter_.add("token-ids", {kFile, "post_processor"}, "expected {} for {}, found {}", *number,
                      json_quote_short(token.text), token.number);
      }
    }
  }

  /// Compares the flags of tokens that each conversation has. Others are often flagged in one file only.
  void check_flags() {
    check_end_flag();
    size_t count = 0;
    std::string first;
    bool is_special = false;
    for (const auto& [number, token] : members_of(config_, "added_tokens_decoder")) {
      const std::string text = text_of(token, "content");
      const auto own = tokens_.special.find(text);
      const auto flag = flag_of(token, "special");
      if (text.size() < 3 || own == tokens_.special.end() || !flag || own->second == *flag ||
          !templates_.write(text))
        continue;
      if (count++ == 0) first = text, is_special = *flag;
    }
    if (count == 0) return;
    reporter_.add("token-flags", {kFile, "added_tokens"},
                  "expected {} to be {} (tokenizer_config.json), found otherwise{}", json_quote_short(first),
                  is_special ? "special" : "not special", and_more(count, ", and {} more"));
  }

  /// The token that ends texts is special in all files: otherwise, answers show it.
  void check_end_flag() {
    const Json& named = member(config_, "eos_token");
    const std::string text = named.is_object() ? text_of(named, "content") : text_of(named);
    const auto own = tokens_.special.find(text);
    if (text.size() < 3 || own == tokens_.special.end() || own->second) return;
    const auto number = tokens_.find(text);
    const Json& listed = member(config_, "added_tokens_decoder");
    const Json& token = number ? member(listed, std::to_string(*number)) : Json();
    if (flag_of(token, "special") == true) return;  // reported as a difference of both files
    reporter_.add("token-flags", {kFile, "added_tokens"},
                  "expected {}, the eos_token, to be special, found otherwise", json_quote_short(text));
  }

  /// Compares the words of vocab.json, which tokenizers without tokenizer.json read.
  void check_words() {
    constexpr const char* kWords = "vocab.json";
    std::error_code error;
    const std::filesystem::path path = s_.path / kWords;
    if (tokens_.is_pieces || !std::filesystem::is_regular_file(path, error) || find_placeholder(path)) return;
    std::unordered_map<std::string, uint64_t> words;
    try {
      words = read_words(s_.path, kWords);
    } catch (const Error& e) {
      reporter_.add("bad-config", {kWords, ""}, damage_of(e, path));
      return;
    }
    size_t count = 0;
    const std::pair<const std::string, uint64_t>* first = nullptr;
    for (const auto& word : words) {
      const auto number = tokens_.find(word.first);
      if (!number || *number == word.second) continue;
      ++count;
      if (first == nullptr || word.second < first->second ||
          (word.second == first->second && word.first < first->first))
        first = &word;
    }
    if (first == nullptr) return;
    reporter_.add("token-ids", {kWords, ""}, "expected {} for {} (as in tokenizer.json), found {}{}",
                  *tokens_.find(first->first), json_quote_short(first->first), first->second,
                  and_more(count, ", and other numbers of {} more words"));
  }

  const LintInput& s_;
  const Json& config_;
  const TokenTable& tokens_;
  const ChatTemplates& templates_;
  LintReporter& reporter_;
};

}  // namespace

void lint_tokenizer_steps(const LintInput& s, const Json& config, const TokenTable& tokens,
                          const ChatTemplates& templates, LintReporter& reporter) {
  StepLint(s, config, tokens, templates, reporter).run();
}

}  // namespace twofour
