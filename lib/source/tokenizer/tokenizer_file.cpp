#include "lib/source/tokenizer/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "formats/error.h"
#include "formats/json_events.h"
#include "lib/source/tokenizer/field.h"

namespace twofour {
namespace {

/// The largest number of values besides vocabulary and merges, and the deepest nesting of objects and arrays.
constexpr size_t kMostValues = 1'000'000, kMostLevels = 64;
constexpr size_t kMostMerges = 1 << 24;

/// Parses a tokenizer.json. It stores vocabulary and merges directly, since they have millions of values, and
/// builds a document of all other values.
class TokenizerEvents : public JsonEvents {
 public:
  TokenizerEvents(std::string_view where, TokenizerFile& file) : where_(where), file_(file) {}

  void null() override { add(nullptr); }
  void boolean(bool v) override { add(v); }
  void signed_number(int64_t v) override { add(v); }
  void unsigned_number(uint64_t v) override {
    if (place_ != Place::kVocabulary) return add(v);
    if (v >= static_cast<uint64_t>(kMostIds)) return unexpected(fmt::format("{}", v));
    file_.model.vocabulary.emplace_back(std::move(key_), static_cast<int32_t>(v));
  }
  void float_number(double v, std::string_view) override { add(v); }
  void string(std::string& text) override {
    if (place_ == Place::kMerges) {
      add_merge(text);
    } else if (place_ == Place::kPair && pair_.size() < 2) {
      pair_.push_back(std::move(text));
    } else {
      add(std::move(text));
    }
  }
  void key(std::string& text) override { key_ = std::move(text); }
  void begin_object() override {
    const bool is_vocabulary = in_model() && key_ == "vocab";
    if (is_vocabulary) {
      begin_once(has_vocabulary_);
      place_ = Place::kVocabulary;
      return;
    }
    open(Json::object());
  }
  void end_object() override {
    if (place_ == Place::kVocabulary) {
      place_ = Place::kTree;
    } else {
      close();
    }
  }
  void begin_array() override {
    if (in_model() && key_ == "merges") {
      begin_once(has_merges_);
      place_ = Place::kMerges;
    } else if (place_ == Place::kMerges) {
      place_ = Place::kPair;
      pair_.clear();
    } else {
      open(Json::array());
    }
  }
  void end_array() override {
    if (place_ == Place::kPair) {
      if (pair_.size() != 2) unexpected(fmt::format("{} of them", pair_.size()));
      place_ = Place::kMerges;
      push_merge(std::move(pair_[0]), std::move(pair_[1]));
    } else if (place_ == Place::kMerges) {
      place_ = Place::kTree;
    } else {
      close();
    }
  }

 private:
  enum class Place { kTree, kVocabulary, kMerges, kPair };
  struct Level {
    Json value;
    std::string key;  ///< key of this level in the level above
  };

  bool in_model() const { return place_ == Place::kTree && levels_.size() == 2 && levels_[1].key == "model"; }

  void begin_once(bool& seen) {
    if (std::exchange(seen, true))
      throw Error(fmt::format("{}: model.{}: expected it once, found it twice", where_, key_));
  }

  /// Adds a merge "a b". Ignores a line with the version of the file in which the merges were stored.
  void add_merge(const std::string& text) {
    if (text.starts_with("#version")) return;
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      return unexpected(json_quote_short(text));
    push_merge(text.substr(0, space), text.substr(space + 1));
  }
  void push_merge(std::string left, std::string right) {
    if (file_.model.merges.size() == kMostMerges)
      throw Error(fmt::format("{}: model.merges: expected at most {}, found more", where_, kMostMerges));
    file_.model.merges.emplace_back(std::move(left), std::move(right));
  }

  void add(Json value) {
    if (place_ != Place::kTree) {
      return unexpected(value.is_string() ? json_quote_short(value.get_ref<const std::string&>())
                                          : json_line(value));
    }
    if (++values_ > kMostValues)
      throw Error(fmt::format("{}: expected at most {} values beside vocabulary and merges, found more",
                              where_, kMostValues));
    if (levels_.empty()) {
      throw Error(fmt::format("{}: expected an object, found {}", where_, value.type_name()));
    }
    Json& into = levels_.back().value;
    if (into.is_array()) {
      into.push_back(std::move(value));
    } else {
      into.items().emplace_back(std::move(key_), std::move(value));
    }
  }
  void open(Json value) {
    if (place_ != Place::kTree) return unexpected(value.is_array() ? "an array" : "an object");
    if (levels_.size() == kMostLevels)
      throw Error(fmt::format("{}: expected at most {} levels, found more", where_, kMostLevels));
    if (levels_.empty() && value.is_array())
      throw Error(fmt::format("{}: expected an object, found an array", where_));
    levels_.push_back({std::move(value), std::move(key_)});
  }
  void close() {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    if (level.value.is_object()) refuse_twice(level);
    if (levels_.empty()) {
      file_.parts = std::move(level.value);
      return;
    }
    key_ = std::move(level.key);
    add(std::move(level.value));
  }
  /// Throws Error if a key occurs twice, since any choice would be a guess.
  void refuse_twice(const Level& level) const {
    std::vector<std::string_view> keys;
    for (const auto& [key, value] : level.value.items()) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice == keys.end()) return;
    throw Error(fmt::format("{}: {}: expected every key once, found {} twice", where_,
                            level.key.empty() ? "the document" : level.key, json_quote_short(*twice)));
  }

  void unexpected(const std::string& found) override {
    if (place_ == Place::kVocabulary) {
      throw Error(fmt::format("{}: model.vocab: {}: expected an id below {}, found {}", where_,
                              json_quote_short(key_), kMostIds, found));
    }
    throw Error(fmt::format("{}: model.merges[{}]: expected two tokens, \"A B\" or [\"A\", \"B\"], found {}",
                            where_, file_.model.merges.size(), found));
  }

  std::string_view where_;
  TokenizerFile& file_;
  Place place_ = Place::kTree;
  std::vector<Level> levels_;
  std::string key_;
  std::vector<std::string> pair_;
  size_t values_ = 0;
  bool has_vocabulary_ = false, has_merges_ = false;
};

/// Throws Error on settings of other models and on settings that make ids random. Null, "" and 0 count as
/// absent.
void refuse_other_models(const Field& model) {
  const Field type = model.at("type");
  if (!type.is_null()) type.choice({"BPE"});
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Field affix = model.at(key);
    if (!affix.is_null() && !affix.text().empty()) affix.refuse("none");
  }
  const Field dropout = model.at("dropout");
  if (!dropout.is_null() && !(dropout.json().is_number() && dropout.json().get<double>() == 0))
    dropout.refuse("none");
}

void read_model(const Field& model, BpeModel& bpe) {
  if (model.is_null()) model.refuse("an object");
  refuse_other_models(model);
  bpe.where = model.where();
  const Field unknown = model.at("unk_token");
  bpe.unknown_token = unknown.is_null() ? "" : unknown.text();
  bpe.fuse_unknown = model.at("fuse_unk").boolean(false);
  bpe.byte_fallback = model.at("byte_fallback").boolean(false);
  bpe.ignore_merges = model.at("ignore_merges").boolean(false);
  for (const char* key : {"vocab", "merges"})  // the document has these keys only if their type is wrong
    if (!model.at(key).is_null())
      model.at(key).refuse(key == std::string_view("vocab") ? "an object" : "an array");
  if (bpe.vocabulary.empty())
    throw Error(fmt::format("{}.vocab: expected tokens, found none", model.where()));
}

AddedToken read_added_token(const Field& field) {
  AddedToken token;
  const Field content = field.at("content");
  token.content = content.text();
  if (token.content.empty() || token.content.size() > TokenFinder::kMostBytes)
    content.refuse(fmt::format("1 to {} bytes", TokenFinder::kMostBytes));
  token.id = static_cast<int32_t>(field.at("id").whole(static_cast<size_t>(kMostIds) - 1));
  token.single_word = field.at("single_word").boolean(false);
  token.lstrip = field.at("lstrip").boolean(false);
  token.rstrip = field.at("rstrip").boolean(false);
  token.normalized = field.at("normalized").boolean(true);
  token.special = field.at("special").boolean(false);
  return token;
}

/// Reads the added tokens. A token in the vocabulary has its id there. Other tokens get the next ids after
/// the vocabulary's size, in order. `tokenizers` does the same and ignores the ids in the file.
void read_added_tokens(const Field& field, TokenizerFile& file) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (const auto& [token, id] : file.model.vocabulary) ids.emplace(token, id);
  auto next = static_cast<int32_t>(file.model.vocabulary.size());
  const std::vector<Field> elements = field.elements();
  file.added_tokens.reserve(elements.size());
  std::unordered_set<std::string_view> added;
  for (const Field& element : elements) {
    const AddedToken& token = file.added_tokens.emplace_back(read_added_token(element));
    if (!added.insert(token.content).second) element.at("content").refuse("every token once");
    const auto [id, is_new] = ids.emplace(token.content, next);
    if (is_new) ++next;
    if (id->second != token.id) {
      element.at("id").refuse(fmt::format(
          "{}, {}", id->second, is_new ? "as many as there are tokens before it" : "as in model.vocab"));
    }
  }
}

}  // namespace

TokenizerFile read_tokenizer_file(std::string_view where, std::string_view text) {
  TokenizerFile file;
  TokenizerEvents events(where, file);
  read_json(where, text, events);
  const Field document(fmt::format("{}:", where), file.parts);
  if (const Field version = document.at("version"); !version.is_null()) version.choice({"1.0"});
  read_model(document.at("model"), file.model);
  read_added_tokens(document.at("added_tokens"), file);
  return file;
}

}  // namespace twofour
