#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "lib/source/tokenizer/pattern.h"
#include "tests/support/message.h"

namespace pattern_test {

using namespace twofour;

namespace {

const char* const kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The matches in `text`, each behind a bar.
std::string matches(const std::string& expression, const std::string& text) {
  const Pattern pattern("p", expression);
  Pattern::Matcher matcher(pattern, text.size());
  std::string out;
  for (const Span& s : matcher.find_all(text)) out += "|" + text.substr(s.begin, s.end - s.begin);
  return out;
}

std::string refused(const std::string& expression) {
  return message_of([&] { Pattern("p", expression); });
}

}  // namespace

TEST_CASE("expressions of the families are taken as they are, but for groups that capture") {
  CHECK(pcre2_expression("p", kLlama3) == kLlama3);
  CHECK(pcre2_expression("p", R"((a|b)+?[^\]\-x]{2,}\u00e9\x{4e00}\x41)") ==
        R"((?:a|b)+?[^\]\-x]{2,}\x{e9}\x{4e00}\x{41})");
  CHECK(pcre2_expression("p", "a{,3}b{2}") == "a{0,3}b{2}");
}

TEST_CASE("what Oniguruma and PCRE2 take for different things is refused") {
  for (const char* expression : {R"(\w)",
                                 R"(\h)",
                                 R"(\R)",
                                 R"(\K)",
                                 R"(\G)",
                                 R"(\b)",
                                 R"(\1)",
                                 R"(\v)",
                                 R"(\k<a>)",
                                 R"(\p{Alphabetic})",
                                 R"(\pL)",
                                 R"(\p{^L})",
                                 R"([[:alpha:]])",
                                 R"([a[b]])",
                                 R"([a&&b])",
                                 R"([]a])",
                                 "(?<n>a)",
                                 "(?i)a",
                                 "(?#c)",
                                 "(?i:\\p{Lu})",
                                 "a**",
                                 "a{2}+",
                                 "a{2}?",
                                 "a{2,1}",
                                 "a{,}",
                                 "a{x}",
                                 "{1}",
                                 "a{1001}",
                                 "*a",
                                 "a]",
                                 "a}",
                                 "(a",
                                 "a)",
                                 "[a",
                                 "\\",
                                 "",
                                 R"(\x4)",
                                 R"(\xe9)",
                                 R"(\u12)",
                                 R"(\x{110000})",
                                 R"(\ud800)",
                                 R"(\x{})"}) {
    CAPTURE(expression);
    CHECK(contains(refused(expression), "p: expected "));
  }
  CHECK(contains(refused("[b-a]"), "p: expected a regular expression, found \"[b-a]\": range out of order"));
  CHECK(contains(refused(R"(ab\wc)"), R"(at byte 2 of a split pattern, found "\\wc" of "ab\\wc")"));
  CHECK(contains(refused(std::string(101, '(')), "expected less nesting at byte 100"));
  CHECK(contains(refused(std::string(20'000, 'a')),
                 "expected a split pattern of 1 to 16384 bytes, found 20000"));
}

TEST_CASE("matches are all those from left to right, an empty one not right behind another") {
  CHECK(matches("a+", "aabaXa") == "|aa|a|a");
  CHECK(matches("a*", "aab") == "|aa|");  // behind aa nothing, at the end an empty one
  CHECK(matches("$", "a\nb\n") == "|||");
  CHECK(matches("^.", "ab\ncd\n") == "|a|c");
  CHECK(matches("x*", "\xC3\xA9") == "||");  // not within a character
  CHECK(matches(R"(\s+$)", "a  \n b \n") == "|  | \n");
  CHECK(matches(R"((?<=a)b|(?<!a)c)", "abcac") == "|b|c");
  CHECK(matches("(?i:'ll|'s)", "'LL'S'\xC5\xBF") == "|'LL|'S|'\xC5\xBF");
  CHECK(matches(R"(-{,2}(?i:z)?+\S{2})", "-- ab") == "|--|ab");
  CHECK(matches(R"(\s)", "\v\xC2\xA0\xE3\x80\x80.") == "|\v|\xC2\xA0|\xE3\x80\x80");
}

TEST_CASE("a match may be longer than what the matcher sees at first, and begin anywhere") {
  for (const size_t size : {1000u, 1023u, 1024u, 1025u, 4096u, 5000u, 300'000u}) {
    CAPTURE(size);
    for (const char* character : {"a", "\xC3\xA9", "\xE4\xB8\xAD", "\xF0\xA0\x80\x80"}) {
      std::string word;
      while (word.size() < size) word += character;
      const std::string spaces(size, ' ');
      CHECK(matches(kLlama3, spaces + word + "1") == "|" + spaces.substr(1) + "| " + word + "|1");
      CHECK(matches(kLlama3, word + spaces + "\n" + word) == "|" + word + "|" + spaces + "\n|" + word);
      CHECK(matches(kLlama3, spaces) == "|" + spaces);
      CHECK(matches("1", word + "1" + word) == "|1");
      CHECK(matches("^" + std::string(character), word + "\n" + word).size() ==
            2 * (1 + std::string(character).size()));
    }
  }
}

TEST_CASE("an empty match that takes many steps is found at the end of a text, too") {
  for (const std::string text : {"", "hello"}) CHECK(matches("(?:a?){900}", text) == matches("a?", text));
}

TEST_CASE("a pattern that would not come to an end is an error within seconds") {
  const auto refused_on = [](const std::string& expression, const std::string& text) {
    return contains(message_of([&] { matches(expression, text); }),
                    "expected a split pattern that needs few steps, found");
  };
  CHECK(refused_on("(a+)+[bc]", std::string(40, 'a')));
  CHECK(refused_on("(a|a)*[bc]", std::string(40, 'a')));
  CHECK(refused_on("(a|aa)+$", std::string(200, 'a') + "b"));
  std::string parts;
  for (int i = 0; i < 4'000; ++i) parts += std::string(24, 'a') + "c";
  CHECK(refused_on("(a+)+b", parts));
  // Quadratic, not exponential: every character asks for all behind it.
  CHECK(refused_on("[ x]+[y-z]", std::string(300'000, ' ') + "c"));
  CHECK(matches(R"(\s+$)", std::string(5000, ' ') + "x").empty());
}

}  // namespace pattern_test
