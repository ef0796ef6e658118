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

/// The tokens in a tokenizer.json.
struct TokenTable {
  bool has_model = false, has_vocabulary = false;
  bool is_pieces = false;  ///< the vocabulary is a list of pieces with scores, whose places are their numbers
  std::unordered_map<std::string, uint64_t> words;      ///< of the model
  std::vector<std::pair<uint64_t, std::string>> added;  ///< in the order of the file
  std::optional<uint64_t> last_word, last_added;        ///< the largest numbers
  std::optional<std::pair<std::string, std::string>>
      lost_merge;  ///< a merge of words that are not in `words`
  size_t lost_merges = 0;

  bool is_known() const { return has_vocabulary && (!words.empty() || !added.empty()); }
  /// Returns the number of a token: that of an added token or, if there is none of the text, of a word.
  std::optional<uint64_t> find(const std::string& text) const;
  /// Returns the text of an added token; nullptr: there is none of the number.
  const std::string* find_added(uint64_t number) const;
};

/// Reads tokenizer.json of a directory. Throws Error if it is not JSON.
TokenTable read_token_table(const std::filesystem::path& directory);

}  // namespace twofour
