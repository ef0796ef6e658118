#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/source/tokenizer/field.h"
#include "lib/source/tokenizer/pattern.h"

namespace twofour {

/// Steps that rewrite a text before and after tokenization, one after the other. Several threads may use a
/// step at once.

/// The largest number of steps in a list.
inline constexpr size_t kMostParts = 64;

/// Throws Error naming `where` if steps made a text of `before` bytes grow to `after` bytes, and if no honest
/// tokenizer does that.
void check_growth(std::string_view where, size_t before, size_t after);

/// A step of `normalizer`, which rewrites a text.
using NormalizerStep = std::function<void(std::string& text)>;

/// A text, and the pieces of it that are tokenized separately. Text outside of all pieces is dropped.
struct TextPieces {
  std::string text;
  std::vector<Span> spans;   ///< pieces in order; none is empty
  bool begins_text = false;  ///< true if the first piece is at the beginning of the text to encode
  std::string_view operator[](size_t i) const {
    return std::string_view(text).substr(spans[i].begin, spans[i].end - spans[i].begin);
  }
};

/// A step of `pre_tokenizer`, which divides pieces and may rewrite them.
using PreTokenizerStep = std::function<void(TextPieces& pieces)>;

/// A step of `decoder`, which rewrites the texts of tokens. Their concatenation is the result.
using DecoderStep = std::function<void(std::vector<std::string>& tokens)>;

/// Three functions that read the steps that a field describes. These are all steps of a Sequence, or none for
/// null. They throw Error, naming the field, on types that no supported family has.
std::vector<NormalizerStep> read_normalizer(const Field& field);
std::vector<PreTokenizerStep> read_pre_tokenizer(const Field& field);
std::vector<DecoderStep> read_decoder(const Field& field);

/// Reads {"String": TEXT} or {"Regex": EXPRESSION}.
Pattern read_pattern(const Field& field);

/// Returns `text` with every match replaced by `content`. Throws Error if the text becomes much longer.
std::string replace_matches(Pattern::Matcher& matcher, const std::string& text, const std::string& content);

/// Returns the printable character that stands for a byte in GPT-2's alphabet.
char32_t character_of_byte(uint8_t byte);
/// Returns the byte for which a character stands. -1 if it stands for none.
int byte_of_character(char32_t c);

}  // namespace twofour
