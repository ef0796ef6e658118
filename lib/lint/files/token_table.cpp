#include "lib/lint/files/token_table.h"

#include <algorithm>

#include "formats/json_events.h"
#include "lib/lint/bytes/input.h"

namespace twofour {
namespace {

/// Collects the words, merges and added tokens of a tokenizer.json.
class TokenEvents : public JsonEvents {
 public:
  explicit TokenEvents(TokenTable& table) : table_(table) {}

  /// Looks up the merges that the file has before its vocabulary.
  void finish() {
    for (const auto& [left, right] : early_) check_merge(left, right);
    if (!filler_.text.empty()) table_.filler = filler_;
  }

  void null() override {}
  void boolean(bool value) override {
    if (is_in_added() && keys_.back() == "special") special_ = value;
    if (is_at("model", "byte_fallback") && depth() == 2) table_.falls_back = value;
  }
  void signed_number(int64_t) override {}
  void unsigned_number(uint64_t value) override {
    if (is_at("truncation", "max_length") && depth() == 2) table_.truncation = value;
    if (is_at("padding", "strategy") && depth() == 3 && keys_[2] == "Fixed") table_.padding = value;
    if (is_at("padding", "pad_id") && depth() == 2) filler_.number = value;
    append_number(value);
    if (is_at("model", "vocab") && depth() == 3) {
      table_.last_word = std::max(table_.last_word.value_or(0), value);
      table_.words.emplace(last_key_, value);
    }
    if (is_in_added() && keys_.back() == "id") id_ = value;
  }
  void float_number(double value, std::string_view) override {
    if (is_at("model", "dropout") && depth() == 2) table_.dropout = value;
  }
  void string(std::string& text) override {
    if (keys_.empty()) return;
    add_step(text);
    if (is_at("model", "type") && depth() == 2) table_.type = text;
    if (is_at("model", "unk_token") && depth() == 2) table_.unknown = text;
    if (is_at("padding", "pad_token") && depth() == 2) filler_.text = text;
    append_text(text);
    if (is_at("model", "continuing_subword_prefix") && depth() == 2) table_.joins_prefixes = !text.empty();
    if (is_in_added() && keys_.back() == "content") content_ = text;
    if (is_at("model", "vocab") && depth() == 4) {  // [piece, score]
      table_.last_word = pieces_;
      table_.words.emplace(text, pieces_++);
    }
    if (!is_at("model", "merges")) return;
    if (depth() == 3) {
      const size_t space = text.find(' ', 1);
      if (space != text.npos) add_merge(text.substr(0, space), text.substr(space + 1));
    } else if (depth() == 4) {
      if (left_)
        add_merge(*std::exchange(left_, std::nullopt), text);
      else
        left_ = text;
    }
  }
  void begin_object() override {
    if (keys_.size() == 1 && keys_[0] == "model") table_.has_model = true;
    keys_.emplace_back();
    if (depth() == 3 && keys_[0] == "added_tokens")
      id_ = std::nullopt, content_ = std::nullopt, special_ = std::nullopt;
  }
  void end_object() override {
    if (depth() == 3 && keys_[0] == "added_tokens" && id_ && content_) {
      table_.last_added = std::max(table_.last_added.value_or(0), *id_);
      table_.added.emplace_back(*id_, *content_);
      if (special_) table_.special[*content_] = *special_;
    }
    if (is_of_special()) {
      if (!text_.empty() && numbers_.size() == 1) table_.appended.push_back({text_, numbers_[0]});
      text_.clear();
      numbers_.clear();
    }
    keys_.pop_back();
  }
  void begin_array() override {
    if (is_at("model", "vocab") && depth() == 2) table_.is_pieces = true;
    left_ = std::nullopt;
    keys_.emplace_back();
  }
  void end_array() override { keys_.pop_back(); }
  void key(std::string& text) override {
    keys_.back() = text.substr(0, 32);
    if (depth() == 3 && is_at("model", "vocab")) last_key_ = text;
    table_.has_vocabulary = table_.has_vocabulary || (depth() == 2 && is_at("model", "vocab"));
  }

 private:
  void unexpected(const std::string&) override {}
  size_t depth() const { return keys_.size(); }
  bool is_at(std::string_view a, std::string_view b) const {
    return keys_.size() > 1 && keys_[0] == a && keys_[1] == b;
  }
  bool is_in_added() const { return depth() == 3 && keys_[0] == "added_tokens"; }

  /// True in {"id": TEXT, "ids": [NUMBER], ...}, a token of TemplateProcessing.
  bool is_of_special() const {
    return depth() > 3 && keys_[0] == "post_processor" && keys_[depth() - 3] == "special_tokens";
  }
  /// True in [TEXT, NUMBER], a token of BertProcessing and RobertaProcessing.
  bool is_of_pair() const {
    return depth() > 2 && keys_[0] == "post_processor" && keys_.back().empty() &&
           (keys_[depth() - 2] == "sep" || keys_[depth() - 2] == "cls");
  }
  void append_text(const std::string& text) {
    if (is_of_pair() || (is_of_special() && keys_.back() == "id")) text_ = text;
  }
  void append_number(uint64_t value) {
    if (is_of_pair() && !text_.empty())
      table_.appended.push_back({std::exchange(text_, {}), value});
    else if (depth() > 4 && keys_[0] == "post_processor" && keys_[depth() - 2] == "ids" &&
             keys_[depth() - 4] == "special_tokens")
      numbers_.push_back(value);
  }

  /// Notes the type of a step, or U+2581, which stands for a blank.
  void add_step(const std::string& text) {
    const bool encodes = keys_[0] == "pre_tokenizer", normalizes = keys_[0] == "normalizer",
               decodes = keys_[0] == "decoder";
    if (!encodes && !normalizes && !decodes) return;
    if (keys_.back() == "type")
      (encodes ? table_.encodes : normalizes ? table_.normalizes : table_.decodes).push_back(text);
    if (text.find("\u2581") == text.npos && text != "Metaspace") return;
    (decodes ? table_.reads_blanks : table_.writes_blanks) = true;
  }

  void add_merge(std::string left, std::string right) {
    if (table_.words.empty())
      early_.emplace_back(std::move(left), std::move(right));
    else
      check_merge(left, right);
  }
  void check_merge(const std::string& left, const std::string& right) {
    if (table_.joins_prefixes || table_.words.empty()) return;
    const auto none = table_.words.end(), a = table_.words.find(left), b = table_.words.find(right),
               both = table_.words.find(left + right);
    if (a != none && b != none && both != none) {
      table_.merges.push_back({a->second, b->second, both->second});
    } else if (table_.lost_merges++ == 0) {
      table_.lost_merge = {left, right};
    }
  }

  TokenTable& table_;
  std::vector<std::string> keys_;  ///< the last key of each open object; empty for arrays
  std::string last_key_;
  std::optional<uint64_t> id_;
  std::optional<bool> special_;
  std::string text_;               // of a token that the post-processor adds
  std::vector<uint64_t> numbers_;  // and its numbers
  std::optional<std::string> content_, left_;
  std::vector<std::pair<std::string, std::string>> early_;
  uint64_t pieces_ = 0;
  AppendedToken filler_;
};

/// Collects a flat object of words and numbers.
class WordEvents : public JsonEvents {
 public:
  explicit WordEvents(std::unordered_map<std::string, uint64_t>& words) : words_(words) {}
  void finish() {
    if (!is_flat_) words_.clear();
  }

  void null() override { is_flat_ = false; }
  void boolean(bool) override { is_flat_ = false; }
  void signed_number(int64_t) override { is_flat_ = false; }
  void unsigned_number(uint64_t value) override {
    if (depth_ == 1) words_[key_] = value;
  }
  void float_number(double, std::string_view) override { is_flat_ = false; }
  void string(std::string&) override { is_flat_ = false; }
  void begin_object() override { is_flat_ = is_flat_ && ++depth_ == 1; }
  void end_object() override {}
  void begin_array() override { is_flat_ = false; }
  void end_array() override {}
  void key(std::string& text) override { key_ = text; }

 private:
  void unexpected(const std::string&) override {}
  std::unordered_map<std::string, uint64_t>& words_;
  std::string key_;
  int depth_ = 0;
  bool is_flat_ = true;
};

}  // namespace

std::optional<uint64_t> TokenTable::find(const std::string& text) const {
  for (const auto& [number, content] : added) {
    if (content == text) return number;
  }
  const auto at = words.find(text);
  return at == words.end() ? std::nullopt : std::optional(at->second);
}

bool TokenTable::has(const std::vector<std::string>& types, std::string_view type) {
  return std::ranges::find(types, type) != types.end();
}

const std::string* TokenTable::find_added(uint64_t number) const {
  for (const auto& [own, content] : added) {
    if (own == number) return &content;
  }
  return nullptr;
}

std::unordered_map<std::string, uint64_t> read_words(const std::filesystem::path& directory,
                                                     const std::string& name) {
  std::unordered_map<std::string, uint64_t> words;
  WordEvents events(words);
  read_json_file(directory, name, events);
  events.finish();
  return words;
}

TokenTable read_token_table(const std::filesystem::path& directory) {
  TokenTable table;
  TokenEvents events(table);
  read_json_file(directory, "tokenizer.json", events);
  events.finish();
  return table;
}

}  // namespace twofour
