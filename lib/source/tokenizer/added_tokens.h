#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/source/tokenizer/pattern.h"

namespace twofour {

/// A token that is found in a text before the model sees the rest.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;             ///< not inside a word of text
  bool lstrip = false, rstrip = false;  ///< takes the white space before or behind it
  bool normalized = false;              ///< found in the normalized text, as its own normalized form
  bool special = false;
};

/// A piece of a text: a token or, if `token` is nullptr, other text.
struct TextPart {
  Span span;
  const AddedToken* token;
};

/// Finds tokens in a text: the leftmost, and the longest of those that begin at one place.
class TokenFinder {
 public:
  /// All tokens are shorter.
  static constexpr size_t kMostBytes = 256;

  /// `token` must outlive it. `text` is the text to look for, which is not empty. Returns false if the text
  /// already stands for another token; then `token` will not be found.
  bool add(const AddedToken& token, std::string_view text);
  /// Parts of the whole text, in its order; none is empty.
  std::vector<TextPart> find(std::string_view text) const;

 private:
  struct Match {
    const AddedToken* token;
    size_t end;
  };
  Match longest_at(std::string_view text, size_t at) const;
  bool is_single(std::string_view text, Span span) const;

  std::array<bool, 256> begins_{};
  std::unordered_map<uint64_t, uint32_t> edges_;  ///< of a tree: node and byte to node
  std::vector<const AddedToken*> ends_{nullptr};  ///< of a node; nullptr: no token ends here
  std::optional<Pattern> word_;                   ///< a character of words, if a token must be a word
};

}  // namespace twofour
