#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace twofour {

/// Properties of characters as in Hugging Face's `tokenizers`. Their tables were generated from it
/// (unicode_data.py). All texts are UTF-8.

/// Returns the position of the first byte that is not UTF-8. npos if the whole text is UTF-8.
size_t find_not_utf8(std::string_view text);

/// Returns the character at `text[at]` and moves `at` to the next character.
inline char32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return ++at, lead;
  const size_t bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t c = lead & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) c = c << 6 | (byte(i) & 0x3F);
  at += bytes;
  return c;
}

void append_character(std::string& out, char32_t c);

/// Returns `bytes` with U+FFFD in place of invalid UTF-8. As section 3.9 of Unicode recommends, each longest
/// piece that may begin a character gives one U+FFFD.
std::string replace_not_utf8(std::string_view bytes);

/// True for characters with the property White_Space.
bool is_space(char32_t c);

/// The number of bytes of white space at the beginning, and at the end.
size_t leading_spaces(std::string_view text);
size_t trailing_spaces(std::string_view text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
/// Normalizes a text. Source: UAX #15.
std::string normalize(std::string_view text, NormalForm form);

/// Returns the text with each character converted to lower case by itself.
std::string lower_case(std::string_view text);

/// Returns the text without combining marks.
std::string strip_accents(std::string_view text);

/// Returns the text for PCRE2, with the same length. A character that is newer than PCRE2's tables is
/// replaced by a neighbour of the same category. The result is `text` itself or a view of `buffer`.
std::string_view with_known_characters(std::string_view text, std::string& buffer);

}  // namespace twofour
