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

/// A merge of two words to a third, as their numbers.
struct Merge {
  uint64_t left = 0, right = 0, product = 0;
};

/// The tokens in a tokenizer.json, and its other steps.
struct TokenTable {
  std::string type;  ///< type of the model: "BPE", "Unigram", "WordPiece"
  bool has_model = false, has_vocabulary = false;
  bool is_pieces = false;  ///< the vocabulary is a list of pieces with scores, whose places are their numbers
  std::unordered_map<std::string, uint64_t> words;      ///< the model's vocabulary
  std::vector<std::pair<uint64_t, std::string>> added;  ///< in the order of the file
  std::optional<uint64_t> last_word, last_added;        ///< the largest numbers
  std::optional<std::pair<std::string, std::string>>
      lost_merge;  ///< a merge of words that are not in `words`
  size_t lost_merges = 0;
  std::vector<Merge> merges;                      ///< in their order, without lost ones
  bool joins_prefixes = false;                    ///< words inside of others have a prefix, which merges drop
  std::string unknown;                            ///< the token for letters that no word has; empty: none
  double dropout = 0;                             ///< the share of merges that are left out at random
  std::unordered_map<std::string, bool> special;  ///< for added tokens that state it, true if special
  std::optional<uint64_t> truncation;             ///< the length to which texts are cut
  std::optional<uint64_t> padding;                ///< the length to which each text is filled up
  std::vector<AppendedToken> appended;            ///< tokens that the post-processor appends
  std::vector<std::string> normalizes, encodes, decodes;  ///< types of normalizers, pre-tokenizers, decoders
  bool writes_blanks = false;           ///< a normalizer or pre-tokenizer writes U+2581 for blanks
  bool reads_blanks = false;            ///< a decoder turns U+2581 back into blanks
  std::optional<AppendedToken> filler;  ///< the token with which texts are filled up
  bool falls_back = false;              ///< letters that no word has become tokens of bytes

  bool is_known() const { return has_vocabulary && (!words.empty() || !added.empty()); }
  /// Returns the number of a token: that of an added token or, if there is none of the text, of a word.
  std::optional<uint64_t> find(const std::string& text) const;
  /// True if a step has a type, in a list of types.
  static bool has(const std::vector<std::string>& types, std::string_view type);
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
