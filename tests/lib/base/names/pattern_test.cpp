#include "lib/base/names/pattern.h"

#include <doctest/doctest.h>

#include <string>

#include "formats/error.h"

namespace pattern_test {

using namespace twofour;

namespace {

bool matches(const char* pattern, std::string_view name) { return NamePattern(pattern).matches(name); }

}  // namespace

TEST_CASE("a pattern without signs is an exact name") {
  CHECK(matches("lm_head", "lm_head"));
  CHECK(!matches("lm_head", "model.lm_head"));
  CHECK(!matches("lm_head", "lm_head.weight"));
  CHECK(!matches("lm_head", "LM_HEAD"));
  CHECK(!matches("a.b", "aXb"));  // a dot is a dot
  CHECK(matches("", ""));
  CHECK(!matches("", "a"));
}

TEST_CASE("a glob covers the whole name, and its star crosses dots and slashes") {
  CHECK(matches("model.layers.*", "model.layers.0.mlp.gate_proj"));
  CHECK(matches("*.experts.*", "model.layers.0.mlp.experts.3.up_proj"));
  CHECK(matches("*", ""));
  CHECK(matches("*", "a/b.c"));
  CHECK(matches("*mlp", "model.mlp"));
  CHECK(!matches("*mlp", "model.mlp.gate"));
  CHECK(!matches("mlp*", "model.mlp"));
  CHECK(matches("layers.?.mlp", "layers.1.mlp"));
  CHECK(!matches("layers.?.mlp", "layers.10.mlp"));
  CHECK(matches("layers.[0-3].mlp", "layers.2.mlp"));
  CHECK(!matches("layers.[0-3].mlp", "layers.4.mlp"));
  CHECK(matches("layers.[!0-3].mlp", "layers.4.mlp"));
  CHECK(matches("*", ".hidden"));
}

TEST_CASE("a name with a glob's signs matches itself") {
  CHECK(matches("odd[0]*name", "odd[0]*name"));
  CHECK(matches("back\\slash", "back\\slash"));
}

TEST_CASE("a regular expression matches from the start but need not reach the end, as Python's re.match") {
  CHECK(matches("re:model", "model.layers.0"));
  CHECK(!matches("re:layers", "model.layers.0"));
  CHECK(matches("re:.*layers", "model.layers.0"));
  CHECK(matches("re:.*self_attn.*", "model.layers.0.self_attn.q_proj"));
  CHECK(!matches("re:model$", "model.layers.0"));
  CHECK(matches("re:^model", "model.layers.0"));
  CHECK(matches("re:.*\\.mlp\\.gate$", "model.layers.0.mlp.gate"));
  CHECK(!matches("re:.*\\.mlp\\.gate$", "model.layers.0.mlp.gate_proj"));
  CHECK(matches("re:a|model", "model.x"));
  CHECK(!matches("re:x|layers", "model.layers"));
  CHECK(matches("re:", "anything"));
  CHECK(matches("re:model\\.layers\\.(?:0|1[0-9])\\.(?!self_attn)", "model.layers.12.mlp"));
  CHECK(!matches("re:model\\.layers\\.(?:0|1[0-9])\\.(?!self_attn)", "model.layers.12.self_attn.q_proj"));
  CHECK(matches("re:model.layers.\\d+.mlp", "model.layers.12.mlp.up_proj"));
}

TEST_CASE("a regular expression that begins with (?i) takes letters of either case") {
  CHECK(matches("re:(?i).*lm_head", "model.LM_Head"));
  CHECK(matches("re:(?i)MODEL\\.[A-F]+$", "model.abc"));
  CHECK(!matches("re:(?i)model$", "models"));
  CHECK(!matches("re:.*lm_head", "model.LM_Head"));
}

TEST_CASE("what is no regular expression is an Error that shows the pattern") {
  for (const char* bad : {"re:(", "re:[", "re:a)", "re:*a", "re:a{2,1}", "re:\\", "re:[z-a]", "re:(?<=a)b",
                          "re:(?i)(", "re:a(?i)b", "re:(a)\\1"}) {
    CHECK_THROWS_WITH_AS(NamePattern{bad},
                         (std::string("pattern '") + bad + "': not a regular expression").c_str(), Error);
  }
}

TEST_CASE("Python's anchors that are letters here are refused, escaped backslashes before letters are not") {
  for (const char* pattern : {"re:.*gate\\Z", "re:\\Amodel", "re:(?i)head\\Z"}) {
    CAPTURE(std::string(pattern));
    CHECK_THROWS_AS(NamePattern{pattern}, Error);
  }
  CHECK(matches("re:a\\\\Z", "a\\Z"));
  CHECK(matches("re:A.*Z", "AbZ"));
}

TEST_CASE("classes that Python reads in another way are refused, and no others") {
  for (const char* pattern : {"re:lm_hea[]d]", "re:x[^]]", "re:lm_hea[[:alpha:]]", "re:[a[.b]", "re:[ab][]]",
                              "re:[\\]a][]b]", "re:[[=a=]]"}) {
    CAPTURE(std::string(pattern));
    CHECK_THROWS_WITH_AS(NamePattern{pattern}, doctest::Contains("first in a class"), Error);
  }
  for (const char* pattern : {"re:lm_hea[[]?d", "re:lm_hea[a[]?d", "re:[x[^]?lm_head", "re:lm_hea[\\]d]",
                              "re:\\[?lm_head", "re:[^x]m_head", "re:lm_hea[d:.=]"}) {
    CAPTURE(std::string(pattern));
    CHECK(matches(pattern, "lm_head"));
  }
}

TEST_CASE("a repetition of a repetition, which Python reads in another way, is refused, in parentheses not") {
  for (const char* pattern : {"re:a?+a", "re:.*+x", "re:a{2}+", "re:(?:a)++", "re:.**", "re:a{2}{3}",
                              "re:a???", "re:\\(?+", "re:[ab]*{2,}", "re:a*?*"}) {
    CAPTURE(std::string(pattern));
    CHECK_THROWS_WITH_AS(NamePattern{pattern}, doctest::Contains("a repetition of a repetition"), Error);
  }
  for (const char* pattern :
       {"re:a*?b", "re:(?:a+)+b", "re:a{1,2}?b", "re:a[*+]?b", "re:a\\+*b", "re:(?=a)a??ab"}) {
    CAPTURE(std::string(pattern));
    CHECK(matches(pattern, "ab"));
  }
}

TEST_CASE("a glob's backslash and a class's ^ are themselves, as to Python's fnmatch") {
  CHECK(matches("a\\*", "a\\b"));
  CHECK(!matches("a\\*", "a*"));
  CHECK(matches("gat[^x]", "gatx"));
  CHECK(matches("gat[^x]", "gat^"));
  CHECK(!matches("gat[^x]", "gate"));
  CHECK(matches("gat[!x]", "gate"));
  CHECK(matches("gat[[^]e", "gat^e"));
  CHECK(matches("gat[a[:x]", "gat:"));
  CHECK(matches("[.a]gate", ".gate"));
}

TEST_CASE("a pattern remembers its text, and any of several may match") {
  CHECK(NamePattern("re:a.b").text() == "re:a.b");
  const auto patterns = parse_patterns({"lm_head", "*.gate", "re:visual"});
  REQUIRE(patterns.size() == 3);
  CHECK(any_matches(patterns, "lm_head"));
  CHECK(any_matches(patterns, "mlp.gate"));
  CHECK(any_matches(patterns, "visual.blocks.0"));
  CHECK(!any_matches(patterns, "mlp.up_proj"));
  CHECK(!any_matches({}, "lm_head"));
}

TEST_CASE("a regular expression refuses names so long that matching would overflow the stack") {
  CHECK(matches("re:.*a$", std::string(4096, 'a')));
  CHECK(!matches("re:(a|b)*x", std::string(4096, 'a')));
  CHECK_THROWS_WITH_AS(matches("re:.*a", std::string(4097, 'a')),
                       "pattern 're:.*a': expected names of at most 4096 bytes, found one of 4097", Error);
}

TEST_CASE("a glob takes names of any length") {
  const std::string name(1u << 20, 'a');
  CHECK(matches("*a", name));
  CHECK(!matches("*b", name));
}

}  // namespace pattern_test
