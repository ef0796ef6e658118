#include "lib/recipe/settings/rule_settings.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "formats/error.h"
#include "lib/write/plan/method.h"
#include "tests/support/message.h"

namespace rule_words_test {

using namespace twofour;

namespace {

/// Words of a choice that the row takes, and one that it does not.
std::vector<std::string> values_of(const RuleSetting& word) {
  return word.asked.values == nullptr ? std::vector<std::string>{} : word.asked.values(kQuantizes);
}

std::string refusal(Rule rule) {
  return message_of([&] { make_method(rule); });
}

}  // namespace

TEST_CASE("each key is in the table once, and what people ask has a place of its own in help") {
  std::set<std::string_view> keys;
  std::set<int> options, files;
  for (const RuleSetting& word : rule_settings()) {
    CAPTURE(word.key);
    CHECK(keys.insert(word.key).second);
    if (!word.has_user_form()) continue;
    CHECK(options.insert(word.asked.place.option).second);
    if (*word.asked.file_help != '\0') CHECK(files.insert(word.asked.place.file).second);
    CHECK(word.given(Rule{}).empty());
    CHECK(&rule_setting(word.key) == &word);
  }
}

TEST_CASE("a word that is taken is given, written, and read back as it was") {
  for (const RuleSetting& word : rule_settings()) {
    if (!word.has_user_form() || word.asked.form != UserForm::Form::kChoice) continue;
    for (const std::string& value : values_of(word)) {
      CAPTURE(word.key);
      CAPTURE(value);
      Rule rule;
      REQUIRE(word.take({}, value, rule));
      const bool is_default = word.is_required && value == values_of(word)[0];
      CHECK(word.given(rule) == (is_default ? "" : value));
      const Json json = write_keys(rule_settings(), rule);
      CHECK(json.at(word.key) == value);
      Rule read;
      read_keys(rule_settings(), {"w", "rule", UnknownKeys::kRefuse}, json, read);
      CHECK(same_settings(rule, read));
      CHECK(write_keys(rule_settings(), read) == json);
    }
  }
}

TEST_CASE("a share is taken as a number or a text, from 0 to 1, and written as the number that it is") {
  const RuleSetting& word = rule_setting(keys::kShrink);
  for (const auto& [json, share] : {std::pair{Json("0.5"), 0.5},
                                    {Json("0"), 0.0},
                                    {Json("1"), 1.0},
                                    {Json(0.1), 0.1},
                                    {Json(1), 1.0},
                                    {Json("1e-3"), 1e-3}}) {
    Rule rule, read;
    REQUIRE(word.take({}, json, rule));
    CHECK(rule.shrink == share);
    const Json written = Json::parse(json_line(write_keys(rule_settings(), rule)));
    CHECK(written.at("shrink").get<double>() == share);
    read_keys(rule_settings(), {"w", "rule", UnknownKeys::kRefuse}, written, read);
    CHECK(same_settings(rule, read));
    CHECK(!word.given(rule).empty());
  }
  for (const Json& json :
       {Json("-0.1"), Json("1.5"), Json("nan"), Json(""), Json("0.5 "), Json(2), Json(-1e-9)}) {
    Rule rule;
    CHECK(!word.take({}, json, rule));
    CHECK(!rule.shrink);
  }
  CHECK(message_of([] {
          Rule rule;
          read_keys(
              rule_settings(), {"w", "rule", UnknownKeys::kRefuse},
              Json::parse(R"({"to":"v7","include":[],"exclude":[],"also":[],"fold":"larger","shrink":2})"),
              rule);
        }) == "w: rule.shrink: expected 0 to 1, found 2");
}

TEST_CASE("texts that are no values are refused") {
  CHECK(message_of([] { Chosen<BlockScale>("best"); }) == "expected max, mse or four-over-six, found 'best'");
  CHECK(Chosen<BlockScale>("").empty());
  CHECK(Chosen<BlockScale>().or_default() == BlockScale::max);
  for (const char* scale :
       {"constant=0", "constant=inf", "constant=nan", "constant=1x", "constant=", "from", "all"})
    CHECK_MESSAGE(!InputScale::parse(scale), scale);
  CHECK(InputScale("constant=0.5").constant() == 0.5f);
  CHECK(InputScale("from a file").file() == "a file");
}

TEST_CASE("a method refuses words that it does not take, as their author wrote them") {
  Rule rule;
  rule.to = "fp8";
  rule.block_scale = BlockScale::mse;
  CHECK(refusal(rule) ==
        "--block-scale: expected with --to v7, v7-packed, g8 or quantize only, found with --to fp8");
  rule.author = Author::kFile;
  CHECK(refusal(rule) ==
        "block_scale: expected with to: v7, v7-packed, g8 or quantize only, found with to: fp8");
  rule = {.to = "bf16", .fold = Fold::kAny};
  CHECK(refusal(rule) == "--fold any: expected with --to v7, v7-packed or g8 only, found with --to bf16");
  rule = {.to = "quantize", .method = SolveBy::kGptq, .author = Author::kFile};
  CHECK(refusal(rule) == "method: expected --stats beside gptq, found none");
  rule = {.to = "gguf"};
  CHECK(refusal(rule).starts_with("--to: expected one of v7, "));
}

}  // namespace rule_words_test
