#include "formats/json.h"

#include <doctest/doctest.h>

#include <limits>

#include "formats/error.h"

namespace json_test {

using namespace twofour;

namespace {

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

}  // namespace

TEST_CASE("keys stay in the order of the text") {
  CHECK(parse_json("x", R"({"b":1,"a":{"z":2,"y":3}})").dump() == R"({"b":1,"a":{"z":2,"y":3}})");
}

TEST_CASE("of duplicate keys the last counts") { CHECK(parse_json("x", R"({"a":1,"a":2})")["a"] == 2); }

TEST_CASE("nesting is read to 64 levels and refused beyond, however deep") {
  CHECK_NOTHROW(parse_json("x", nested(64)));
  for (const size_t depth : {66u, 1000u, 100'000u}) {
    CHECK_THROWS_WITH_AS(parse_json("config.json", nested(depth)),
                         doctest::Contains("config.json: nested deeper than 64 levels"), Error);
  }
}

TEST_CASE("what is not JSON is refused with the name of the file") {
  using namespace std::literals;
  for (const std::string_view text :
       {""sv, " "sv, "{"sv, "[1,]"sv, "{'a':1}"sv, "{}{}"sv, "{} x"sv, "nul"sv, "\"\xFF\""sv,
        "\"\xC0\x80\""sv, "\"\\ud800\""sv, "\"\n\""sv, "// comment\n{}"sv, "{\"a\":01}"sv, "[1e999]"sv,
        "{}\0"sv, "{}\0{}"sv, "{\"a\"\0:1}"sv}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_json("config.json", text), doctest::Contains("config.json: not JSON"), Error);
  }
}

TEST_CASE("quoting escapes what JSON must and nothing else") {
  CHECK(json_quote("model.norm.weight") == R"("model.norm.weight")");
  CHECK(json_quote("a\"b\\c/d") == R"("a\"b\\c/d")");
  CHECK(json_quote("\n\t\x1b") == R"("\n\t\u001b")");
  CHECK(json_quote(std::string_view("\0", 1)) == R"("\u0000")");
  CHECK(json_quote("é漢😀") == "\"é漢😀\"");
}

TEST_CASE("quoting text that is not UTF-8 gives a replacement, for it must not fail within a message") {
  CHECK(json_quote("a\xFF") == "\"a\xEF\xBF\xBD\"");
}

TEST_CASE("numbers that are not finite go through a rewritten config unchanged") {
  const std::string text =
      "{\n  \"a\": [\n    0.0,\n    Infinity,\n    -Infinity\n  ],\n  \"b\": NaN,\n  \"NaN \\\" Infinity\": "
      "\"-Infinity\"\n}\n";
  const Json json = parse_json("config.json", text);
  CHECK(json["a"][0] == 0.0);
  CHECK(json["NaN \" Infinity"] == "-Infinity");
  CHECK(format_json(json) == text);
  CHECK_THROWS_AS(parse_json("config.json", "{\"a\": Infinityx}"), Error);
}

TEST_CASE("integers of more than 64 bits go through a rewritten config unchanged") {
  const std::string text =
      "{\n  \"a\": [\n    18446744073709551615,\n    18446744073709551616,\n    -9223372036854775808,\n"
      "    -9223372036854775809,\n    340282366920938463463374607431768211456\n  ],\n"
      "  \"b\": \"18446744073709551616\",\n  \"18446744073709551616\": 1e+300\n}\n";
  const Json json = parse_json("config.json", text);
  CHECK(json["a"][0] == 18446744073709551615u);
  CHECK(json["b"] == "18446744073709551616");
  CHECK_FALSE(json["a"][1].is_number());
  CHECK(format_json(json) == text);
  for (const char* wrong : {"[018446744073709551616]", "[--18446744073709551616]", "[1 18446744073709551616]",
                            "[18446744073709551616x]", "{18446744073709551616: 1}", "{NaN: 1}"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(parse_json("config.json", wrong), doctest::Contains("config.json: not JSON"), Error);
  }
  // Floating-point numbers of many digits are no integers.
  CHECK(parse_json("x", "[18446744073709551616.5, 18446744073709551616e1]")[0].is_number_float());
}

TEST_CASE(
    "strings that look like marked numbers are refused where they come from, and kept where they do not") {
  for (const char* text :
       {R"(["\uf8fftwofour:NaN"])", R"({"\uf8fftwofour:NaN": 1})", R"([NaN, "\uf8fftwofour:1"])"}) {
    CHECK_THROWS_WITH_AS(parse_json("config.json", text), doctest::Contains("config.json: not JSON"), Error);
  }
  for (const char* within :
       {"a\"\uf8fftwofour:NaN", "\uf8fftwofour:x", "\uf8fftwofour:", "\uf8fftwofour:1"}) {
    CAPTURE(within);
    const Json json = {within};
    CHECK(Json::parse(format_json(json)) == json);
  }
}

TEST_CASE("a quotation for a message is short, and what it cuts stays UTF-8") {
  CHECK(json_quote_short("a\n") == R"("a\n")");
  const std::string quoted = json_quote_short(std::string(255, 'x') + "\xC3\xA9 and more");
  CHECK(quoted == "\"" + std::string(255, 'x') + "\xEF\xBF\xBD\"... (266 bytes)");
}

TEST_CASE("a document of very many values is refused before it is parsed") {
  const auto array = [](size_t size, const std::string& value) {
    std::string text = "[" + value;
    for (size_t i = 1; i < size; ++i) text += "," + value;
    return text + "]";
  };
  CHECK(parse_json("x", array(900'000, "0")).size() == 900'000);
  CHECK(parse_json("x", array(300'000, "{}")).size() == 300'000);
  CHECK(parse_json("x", "[\"" + std::string(2'000'000, ',') + "\\\"[{\"]").size() == 1);
  for (const char* value : {"0", "[]", "{}", R"({"":0})"}) {
    CHECK_THROWS_WITH_AS(parse_json("config.json", array(1'000'001, value)),
                         doctest::Contains("config.json: expected at most 1000000 values, found more"),
                         Error);
  }
}

TEST_CASE("a whole number is taken as it stands or not at all") {
  const auto holds = [](const char* text, auto number) {
    return whole_number<decltype(number)>(parse_json("x", text)) == number;
  };
  CHECK(holds("-2147483648", std::numeric_limits<int>::min()));
  CHECK(holds("4294967295", std::numeric_limits<uint32_t>::max()));
  CHECK(holds("-9223372036854775808", std::numeric_limits<int64_t>::min()));
  CHECK(holds("9223372036854775807", std::numeric_limits<int64_t>::max()));
  CHECK(holds("18446744073709551615", std::numeric_limits<uint64_t>::max()));
  CHECK_THROWS_AS(whole_number<int>(parse_json("x", "2147483648")), Json::exception);
  CHECK_THROWS_AS(whole_number<uint32_t>(parse_json("x", "4294967296")), Json::exception);
  CHECK_THROWS_AS(whole_number<int64_t>(parse_json("x", "9223372036854775808")), Json::exception);
  for (const char* none :
       {"-1", "1.0", "1e22", "-1e300", "18446744073709551616", "true", "null", R"("1")", "[1]"}) {
    CAPTURE(none);
    CHECK_THROWS_AS(whole_number<uint64_t>(parse_json("x", none)), Json::exception);
  }
}

}  // namespace json_test
