#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace twofour {

/// A token that the post-processor of a tokenizer.json adds to each text, with its number there.
struct AppendedToken {
  std::string text;
  uint64_t number = 0;
};

/// The tokens in a tokenizer.json, and its other steps.
struct TokenTable {
  bool has_model = false, has_vocabulary = false;
  bool is_pieces = false;  ///< the vocabulary is a list of pieces with scores, whose places are their numbers
  std::unordered_map<std::string, uint64_t> words;      ///< of the model
  std::vector<std::pair<uint64_t, std::string>> added;  ///< in the order of the file
  std::optional<uint64_t> last_word, last_added;        ///< the largest numbers
  std::optional<std::pair<std::string, std::string>>
      lost_merge;  ///< a merge of words that are not in `words`
  size_t lost_merges = 0;
  std::unordered_map<std::string, bool> special;  ///< of added tokens that say whether they are
  std::optional<uint64_t> truncation;             ///< the length to which texts are cut
  std::optional<uint64_t> padding;                ///< the length to which each text is filled up
  std::vector<AppendedToken> appended;            ///< of the post-processor
  std::vector<std::string> encodes, decodes;      ///< the types of pre-tokenizers and of decoders
  bool falls_back = false;                        ///< letters that no word has become tokens of bytes

  bool is_known() const { return has_vocabulary && (!words.empty() || !added.empty()); }
  /// Returns the number of a token: that of an added token or, if there is none of the text, of a word.
  std::optional<uint64_t> find(const std::string& text) const;
  /// Returns the text of an added token; nullptr: there is none of the number.
  const std::string* find_added(uint64_t number) const;
};

/// Reads the words of a vocab.json with their numbers. Throws Error if it is not JSON. Empty: it is not a
/// flat object of numbers.
std::unordered_map<std::string, uint64_t> read_words(const std::filesystem::path& directory,
                                                     const std::string& name);

/// Reads tokenizer.json of a directory. Throws Error if it is not JSON.
TokenTable read_token_table(const std::filesystem::path& directory);

}  // namespace twofour
