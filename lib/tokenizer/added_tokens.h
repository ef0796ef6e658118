#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/tokenizer/pattern.h"

namespace twofour {

/// A token that is found in a text before the model sees the rest.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;             ///< not within a word
  bool lstrip = false, rstrip = false;  ///< takes the white space before or behind it
  bool normalized = false;              ///< found in the normalized text, as its own normalized form
  bool special = false;
};

/// A piece of a text: a token, or, where `token` is nullptr, what is none.
struct TextPart {
  Span span;
  const AddedToken* token;
};

/// Finds tokens in a text: the leftmost, of those that begin at one place the longest.
class TokenFinder {
 public:
  /// No token is as long.
  static constexpr size_t kMostBytes = 256;

  /// `token` must outlive it. `text` is what is looked for, which is not empty. False: another token is found
  /// by it, and `token` will not be.
  bool add(const AddedToken& token, std::string_view text);
  /// The whole text, in its order, without empty parts.
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
