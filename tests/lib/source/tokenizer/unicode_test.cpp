#include <doctest/doctest.h>

#include <string>

#include "lib/source/tokenizer/unicode.h"

namespace unicode_test {

using namespace twofour;

namespace {

std::string utf8(std::u32string_view characters) {
  std::string out;
  for (const char32_t c : characters) append_character(out, c);
  return out;
}

std::string form(NormalForm f, std::u32string_view characters) { return normalize(utf8(characters), f); }

}  // namespace

TEST_CASE("characters are written and read in UTF-8") {
  for (char32_t c = 1; c < 0x110000; c += c < 0x900 ? 1 : 97) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string text = utf8(std::u32string(1, c));
    size_t at = 0;
    CHECK(find_not_utf8(text) == std::string::npos);
    CHECK(next_character(text, at) == c);
    CHECK(at == text.size());
  }
  CHECK(utf8(U"\u00e9\u4e2d\U0001F600") == "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80");
}

TEST_CASE("what is no UTF-8 is found, and replaced by as many U+FFFD as it has beginnings of characters") {
  // Source: The Unicode Standard 16.0, tables 3-8 to 3-11, and of WHATWG's decoder.
  const std::pair<std::string, size_t> cases[] = {{"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", 8},
                                                  {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", 8},
                                                  {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", 7},
                                                  {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", 4},
                                                  {"\xE4\xB8", 1},
                                                  {"\xF8", 1}};
  for (const auto& [bytes, count] : cases) {
    CAPTURE(bytes);
    CHECK(find_not_utf8(bytes) == 0);
    CHECK(find_not_utf8("\xC3\xA9x" + bytes) == 3);
    const std::string replaced = replace_not_utf8(bytes);
    CHECK(find_not_utf8(replaced) == std::string::npos);
    size_t marks = 0;
    for (size_t at = 0; (at = replaced.find("\xEF\xBF\xBD", at)) != std::string::npos; at += 3) ++marks;
    CHECK(marks == count);
  }
}

TEST_CASE("normal forms are those of the annex") {
  using enum NormalForm;
  CHECK(form(kNfc, U"e\u0301") == utf8(U"\u00e9"));
  CHECK(form(kNfd, U"\u00e9") == utf8(U"e\u0301"));
  CHECK(form(kNfc, U"\u212b") == utf8(U"\u00c5"));                // a singleton
  CHECK(form(kNfc, U"\u0958") == utf8(U"\u0915\u093c"));          // excluded from composition
  CHECK(form(kNfc, U"q\u0307\u0323") == utf8(U"q\u0323\u0307"));  // in the order of their classes
  CHECK(form(kNfc, U"d\u0307\u0323") == utf8(U"\u1e0d\u0307"));
  CHECK(form(kNfc, U"\u1e0b\u0323") == utf8(U"\u1e0d\u0307"));
  CHECK(form(kNfc, U"a\u0315\u0300") == utf8(U"\u00e0\u0315"));
  CHECK(form(kNfc, U"a\u0327\u0301\u0327") == utf8(U"\u00e1\u0327\u0327"));
  CHECK(form(kNfc, U"a\u1161\u0301") == utf8(U"a\u1161\u0301"));  // blocked by a character of class 0
  CHECK(form(kNfd, U"\ud55c") == utf8(U"\u1112\u1161\u11ab"));
  CHECK(form(kNfc, U"\u1112\u1161\u11ab") == utf8(U"\ud55c"));
  CHECK(form(kNfc, U"\ud558\u11ab") == utf8(U"\ud55c"));
  CHECK(form(kNfc, U"\uac01\u11a8") == utf8(U"\uac01\u11a8"));  // has a tail already
  CHECK(form(kNfkc, U"\ufb01\u00b2\uff21\u3392") == "fi2AMHz");
  CHECK(form(kNfkd, U"\u1e9b\u0323") == utf8(U"s\u0323\u0307"));
  CHECK(form(kNfc, U"\u1e9b\u0323") == utf8(U"\u1e9b\u0323"));
  CHECK(form(kNfc, U"") == "");
  CHECK(form(kNfc, U"\u0301abc") == utf8(U"\u0301abc"));
  CHECK(form(kNfc, U"plain \u4e2d\u6587 text") == utf8(U"plain \u4e2d\u6587 text"));
}

TEST_CASE("half a million marks in a row are sorted in little time") {
  std::u32string marks = U"a";
  for (int i = 0; i < 250'000; ++i) marks += U"\u0301\u0327";
  const std::string sorted = form(NormalForm::kNfc, marks);
  CHECK(sorted.starts_with(utf8(U"\u00e1\u0327\u0327")));
  CHECK(sorted.ends_with(utf8(U"\u0301\u0301")));
}

TEST_CASE("lower case is by character, and accents are marks") {
  CHECK(lower_case(utf8(U"ABC \u00c9\u03a3\u0130\u01c5\u1c89\U00010400")) ==
        utf8(U"abc \u00e9\u03c3i\u0307\u01c6\u1c8a\U00010428"));
  CHECK(strip_accents(utf8(U"e\u0301\u0327x\u0903\u00e9")) == utf8(U"ex\u00e9"));
}

TEST_CASE("white space is that of Unicode") {
  std::u32string spaces;
  for (char32_t c = 0; c < 0x110000; ++c)
    if (is_space(c)) spaces += c;
  CHECK(spaces ==
        U"\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
        U"\u2028\u2029\u202f\u205f\u3000");
  const std::string text = utf8(U" \u3000a b\u00a0\n");
  CHECK(leading_spaces(text) == 4);
  CHECK(trailing_spaces(text) == 3);
  CHECK(leading_spaces(utf8(U"\u2003")) == 3);
  CHECK(trailing_spaces(utf8(U"\u2003")) == 3);
}

TEST_CASE("younger characters are replaced for PCRE2 by others of the same length") {
  std::string buffer;
  const std::string old = utf8(U"plain \u00e9\u4e2d\U0001F600");
  CHECK(with_known_characters(old, buffer).data() == old.data());
  const std::string young = utf8(U"a\u0897b\U00031350c\u180e");
  const std::string_view known = with_known_characters(young, buffer);
  CHECK(known.size() == young.size());
  CHECK(known == utf8(U"a\u0898b\U0003134ac\u200b"));
}

}  // namespace unicode_test
