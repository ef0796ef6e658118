#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/source/tokenizer/field.h"
#include "lib/source/tokenizer/pattern.h"

namespace twofour {

/// Steps on a text before and after tokenization, one after the other. Steps are safe from several threads.

/// The largest number of steps in a list.
inline constexpr size_t kMostParts = 64;

/// Throws Error naming `where` if steps made `before` bytes grow to `after` bytes, more than any honest
/// tokenizer does.
void check_growth(std::string_view where, size_t before, size_t after);

/// A step of `normalizer`: rewrites a text.
using NormalizerStep = std::function<void(std::string& text)>;

/// A text in pieces, which are tokenized separately; text outside of all pieces is dropped.
struct Pieces {
  std::string text;
  std::vector<Span> spans;   ///< in their order, none of them empty
  bool begins_text = false;  ///< true if the first piece begins the text to encode
  std::string_view operator[](size_t i) const {
    return std::string_view(text).substr(spans[i].begin, spans[i].end - spans[i].begin);
  }
};

/// A step of `pre_tokenizer`: divides pieces, and may rewrite them.
using PreTokenizerStep = std::function<void(Pieces& pieces)>;

/// A step of `decoder`: rewrites the texts of tokens, which together are the result.
using DecoderStep = std::function<void(std::vector<std::string>& tokens)>;

/// The steps that a field describes: all steps of a Sequence, none for null. Throw Error, naming the field,
/// on types that no supported family has.
std::vector<NormalizerStep> read_normalizer(const Field& field);
std::vector<PreTokenizerStep> read_pre_tokenizer(const Field& field);
std::vector<DecoderStep> read_decoder(const Field& field);

/// {"String": TEXT} or {"Regex": EXPRESSION}.
Pattern read_pattern(const Field& field);

/// `text` with every match replaced by `content`. Throws Error if it becomes much longer.
std::string replace_matches(Pattern::Matcher& matcher, const std::string& text, const std::string& content);

/// GPT-2's alphabet: a printable character for every byte.
char32_t character_of_byte(uint8_t byte);
/// The inverse; -1: it is of no byte.
int byte_of_character(char32_t c);

}  // namespace twofour
