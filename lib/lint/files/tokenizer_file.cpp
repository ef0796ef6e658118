#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "formats/error.h"
#include "lib/lint/bytes/downloads.h"
#include "lib/lint/files/checks.h"
#include "lib/source/checkpoint/model_config.h"

// Compares token ids in tokenizer.json and generation_config.json with the number of rows of the embedding.

namespace twofour {
namespace {

/// Collects the token ids of a tokenizer.json: those of the model, and those of added tokens.
class TokenEvents : public JsonEvents {
 public:
  bool has_vocabulary = false;
  std::optional<uint64_t> last_of_model, last_added;

  void null() override {}
  void boolean(bool) override {}
  void signed_number(int64_t) override {}
  void unsigned_number(uint64_t value) override {
    if (is_vocabulary(3)) last_of_model = std::max(last_of_model.value_or(0), value);
    const bool is_added = keys_.size() == 3 && keys_[0] == "added_tokens" && keys_[2] == "id";
    if (is_added) last_added = std::max(last_added.value_or(0), value);
  }
  void float_number(double, std::string_view) override {}
  void string(std::string&) override {}
  void begin_object() override { keys_.emplace_back(); }
  void end_object() override { keys_.pop_back(); }
  void begin_array() override {
    // Unigram models have a list of pairs. Each is a piece and its score.
    if (is_vocabulary(3)) last_of_model = pieces_++;
    keys_.emplace_back();
  }
  void end_array() override { keys_.pop_back(); }
  void key(std::string& text) override {
    keys_.back() = text.substr(0, 16);
    has_vocabulary = has_vocabulary || is_vocabulary(2);
  }

 private:
  void unexpected(const std::string&) override {}
  /// True if the parser is directly below model.vocab.
  bool is_vocabulary(size_t depth) const {
    return keys_.size() == depth && keys_[0] == "model" && keys_[1] == "vocab";
  }
  std::vector<std::string> keys_;  ///< the last key of each open object; empty for arrays
  uint64_t pieces_ = 0;
};

/// Returns vocab_size of the language model; nullopt: no config states it.
std::optional<uint64_t> find_vocabulary(const Json& config) {
  std::optional<uint64_t> size;
  for (const Json* configured : model_settings(config, "vocab_size")) {
    if (configured->is_number_unsigned() && configured->get<uint64_t>() > 0)
      size = std::max(size.value_or(0), configured->get<uint64_t>());
  }
  return size;
}

void check_vocabulary(const LintInput& s, const TokenEvents& tokens, LintReporter& reporter) {
  const auto add = [&](const std::string& message) {
    reporter.add("tokenizer-size", {"tokenizer.json", "model.vocab"}, message);
  };
  if (!tokens.has_vocabulary) return;
  if (!tokens.last_of_model && !tokens.last_added) return add("expected tokens, found none");
  const auto size = find_vocabulary(s.config);
  const uint64_t last = tokens.last_of_model.value_or(0),
                 all = std::max(last, tokens.last_added.value_or(0)) + 1;
  if (!size) return;
  if (last >= *size) {
    add(fmt::format("expected numbers below vocab_size, {}, found {}", *size, last));
    return;
  }
  // Embeddings are padded to round sizes. Behind the rows for text, they may also have rows for other inputs.
  constexpr uint64_t kFew = 1024;
  const auto model = find_language_model(s.config);
  if (model && !model->is_nested && *size > kFew && all < *size / 2)
    add(fmt::format("expected about as many tokens as vocab_size says, {}, found {}", *size, all));
}

}  // namespace

void lint_tokenizer_file(const LintInput& s, LintReporter& reporter) {
  constexpr const char* kName = "tokenizer.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(s.path / kName, error) || find_placeholder(s.path / kName)) return;
  TokenEvents tokens;
  try {
    read_json_file(s.path, kName, tokens);
  } catch (const ReadError&) {
    throw;
  } catch (const Error& e) {
    reporter.add("bad-config", {kName, ""}, damage_of(e, s.path / kName));
    return;
  }
  check_vocabulary(s, tokens, reporter);
}

void lint_token_settings(const LintInput& s, const char* file, const Json& config, LintReporter& reporter) {
  const auto size = find_vocabulary(s.config);
  if (!size || !config.is_object()) return;
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
