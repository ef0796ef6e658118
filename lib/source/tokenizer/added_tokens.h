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

/// A token that is found in the text itself, before the model divides the rest into tokens.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< does not match inside a word
  /// Also takes the white space before the token (lstrip) or after it (rstrip).
  bool lstrip = false, rstrip = false;
  /// The token is searched in the normalized text, and its content is normalized, too.
  bool normalized = false;
  bool special = false;
};

/// A part of a text. It is an added token or, if `token` is null, other text.
struct TextPart {
  Span span;
  const AddedToken* token;
};

/// Finds added tokens in a text. The leftmost match is taken. If several matches begin at one place, the
/// longest is taken.
class TokenFinder {
 public:
  /// The upper limit of a token's length in bytes.
  static constexpr size_t kMostBytes = 256;

  /// Adds a token, which must outlive this object. `text` is the text to search for and must not be empty.
  /// Returns false if another token already has this text. `token` is then not found.
  bool add(const AddedToken& token, std::string_view text);
  /// Returns the parts of the whole text, in order. No part is empty.
  std::vector<TextPart> find(std::string_view text) const;

 private:
  struct Match {
    const AddedToken* token;
    size_t end;
  };
  Match longest_at(std::string_view text, size_t at) const;
  bool is_single(std::string_view text, Span span) const;

  std::array<bool, 256> begins_{};
  std::unordered_map<uint64_t, uint32_t> edges_;  ///< edges of a prefix tree, from node and byte to node
  std::vector<const AddedToken*> ends_{nullptr};  ///< for each node, the token that ends there; may be null
  std::optional<Pattern> word_;  ///< pattern of a word's character; set if any token has single_word
};

}  // namespace twofour
