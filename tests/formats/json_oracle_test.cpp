#include <doctest/doctest.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/json_events.h"

namespace json_oracle_test {

using namespace twofour;

namespace {

/// Whose values ours are measured by.
using Oracle = nlohmann::ordered_json;

constexpr auto kReplace = Oracle::error_handler_t::replace;

/// Texts of documents, sound ones.
class Documents {
 public:
  explicit Documents(unsigned seed) : random_(seed) {}
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  std::string document() { return blanks() + value(0) + blanks(); }
  std::string value(size_t depth) {
    switch (below(depth > 5 ? 6 : 10)) {
      case 0:
        return "null";
      case 1:
        return below(2) ? "true" : "false";
      case 2:
        return integer();
      case 3:
        return number();
      case 4:
        return "\"" + text() + "\"";
      case 5:
        return below(2) ? "[]" : "{}";
      case 6:
      case 7:
        return list('[', ']', [&] { return value(depth + 1); });
      default:
        return list('{', '}',
                    [&] { return "\"" + key() + "\"" + blanks() + ":" + blanks() + value(depth + 1); });
    }
  }
  double any_float() {
    const auto bits = std::uniform_int_distribution<uint64_t>()(random_);
    return below(2) ? std::bit_cast<double>(bits) : static_cast<double>(std::bit_cast<float>(uint32_t(bits)));
  }
  std::string bytes(size_t most) {
    std::string out;
    static const std::vector<std::string> kParts = {"é",        "漢",       "😀",   "\xED\xA0\x80",
                                                    "\xF4\x90", "\xE2\x82", "\xC0"};
    for (size_t n = below(most); n > 0; --n)
      out += below(3) ? std::string(1, static_cast<char>(below(256))) : kParts[below(kParts.size())];
    return out;
  }

 private:
  template <class Item>
  std::string list(char opening, char closing, const Item& item) {
    std::string out(1, opening);
    const size_t most = below(20) ? 6 : 60;
    for (size_t n = below(most), i = 0; i < n; ++i) out += (i ? "," : "") + blanks() + item() + blanks();
    return out + closing;
  }
  std::string blanks() { return std::string(below(3) / 2, " \n\t\r"[below(4)]); }
  /// Few enough that some come twice.
  std::string key() { return below(4) ? std::string(1, static_cast<char>('a' + below(12))) : text(); }
  std::string text() {
    static const std::vector<std::string> kParts = {
        "\\n",    "\\\"", "\\\\", "\\/",  "\\u0000", "\\u001f", "\\u00e9", "\\ud83d\\ude00",
        "é",      "漢",   "😀",    "\x7F", "\\b",     "\\f",     "\\r",     "\\t",
        "weight", ".",    "{",    "]",    ",",       " "};
    std::string out;
    for (size_t n = below(6); n > 0; --n) out += kParts[below(kParts.size())];
    return out;
  }
  std::string integer() {
    static const std::vector<std::string> kEdges = {"0",
                                                    "-0",
                                                    "9223372036854775807",
                                                    "9223372036854775808",
                                                    "-9223372036854775808",
                                                    "-9223372036854775809",
                                                    "18446744073709551615",
                                                    "18446744073709551616",
                                                    "-1",
                                                    "1"};
    return below(2) ? kEdges[below(kEdges.size())] : std::to_string(static_cast<int>(below(2000)) - 1000);
  }
  std::string number() {
    static const std::vector<std::string> kEdges = {"0.0",
                                                    "-0.0",
                                                    "1.0",
                                                    "1e5",
                                                    "1E+22",
                                                    "1e-05",
                                                    "0.1",
                                                    "5e-324",
                                                    "1e16",
                                                    "123456789012345680.0",
                                                    "1.7976931348623157e308"};
    if (below(2)) return kEdges[below(kEdges.size())];
    const double value = any_float();
    return std::isfinite(value) ? Oracle(value).dump() : "2.5";
  }

  std::mt19937_64 random_;
};

/// That both hold the same and say so, by every way of asking.
void check_same(const Json& ours, const Oracle& theirs) {
  REQUIRE(ours.type_name() == std::string(theirs.type_name()));
  REQUIRE(ours.is_null() == theirs.is_null());
  REQUIRE(ours.is_boolean() == theirs.is_boolean());
  REQUIRE(ours.is_number() == theirs.is_number());
  REQUIRE(ours.is_number_integer() == theirs.is_number_integer());
  REQUIRE(ours.is_number_unsigned() == theirs.is_number_unsigned());
  REQUIRE(ours.is_number_float() == theirs.is_number_float());
  REQUIRE(ours.is_string() == theirs.is_string());
  REQUIRE(ours.is_array() == theirs.is_array());
  REQUIRE(ours.is_object() == theirs.is_object());
  REQUIRE(ours.size() == theirs.size());
  REQUIRE(ours.empty() == theirs.empty());
  REQUIRE(static_cast<size_t>(std::distance(ours.begin(), ours.end())) == theirs.size());
  if (ours.is_boolean()) REQUIRE(ours.get<bool>() == theirs.get<bool>());
  if (ours.is_string()) REQUIRE(ours.get<std::string>() == theirs.get<std::string>());
  if (ours.is_number()) {
    REQUIRE(std::bit_cast<uint64_t>(ours.get<double>()) == std::bit_cast<uint64_t>(theirs.get<double>()));
    REQUIRE(ours.get<float>() == theirs.get<float>());
  }
  if (ours.is_number_integer()) {
    REQUIRE(ours.get<int64_t>() == theirs.get<int64_t>());
    REQUIRE(ours.get<uint64_t>() == theirs.get<uint64_t>());
    REQUIRE(ours.get<uint32_t>() == theirs.get<uint32_t>());
  }
  if (!ours.is_number()) CHECK_THROWS_AS(ours.get<double>(), Json::exception);
  if (!ours.is_string()) CHECK_THROWS_AS(ours.get<std::string>(), Json::exception);
  if (!ours.is_object()) {
    CHECK_THROWS_AS(ours.at("a"), Json::exception);
    REQUIRE_FALSE(ours.contains("a"));
  }
  auto at = ours.begin();
  if (ours.is_array()) {
    for (size_t i = 0; i < theirs.size(); ++i, ++at) {
      REQUIRE(&ours[i] == &*at);
      check_same(ours.at(i), theirs.at(i));
    }
    CHECK_THROWS_AS(ours.at(theirs.size()), Json::exception);
  }
  if (ours.is_object()) {
    auto member = ours.items().begin();
    for (const auto& [key, value] : theirs.items()) {
      REQUIRE(member->first == key);
      REQUIRE(at.key() == key);
      REQUIRE(&*at == &ours.at(key));
      REQUIRE(&*ours.find(key) == &ours[key]);
      REQUIRE(ours.contains(key));
      check_same(ours.value(key, Json("none")), value);
      ++member, ++at;
    }
    REQUIRE(ours.find("no such key") == ours.end());
    REQUIRE(ours.value("no such key", "none") == "none");
    CHECK_THROWS_AS(ours.at("no such key"), Json::exception);
  }
}

/// The message of parse_json() for a text; "" if it takes the text.
std::string complaint_of(std::string_view text) {
  try {
    parse_json("x", text);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

/// The expected message, by what nlohmann-json refuses.
std::string complaint_expected(std::string_view text) {
  if (const size_t zero = text.find('\0'); zero != text.npos)
    return "x: not JSON: error at byte " + std::to_string(zero + 1);
  try {
    const nlohmann::json parsed = nlohmann::json::parse(text);
    return "";
  } catch (const nlohmann::json::parse_error& e) {
    return "x: not JSON: error at byte " + std::to_string(e.byte);
  } catch (const nlohmann::json::out_of_range&) {
    return "x: not JSON: a number is too large";
  }
}

void check_document(const std::string& text) {
  CAPTURE(text);
  const Oracle theirs = Oracle::parse(text);
  const Json ours = Json::parse(text);
  check_same(ours, theirs);
  REQUIRE(ours.dump() == theirs.dump());
  REQUIRE(json_line(ours) == theirs.dump());
  for (const int indent : {0, 1, 2}) REQUIRE(ours.dump(indent) == theirs.dump(indent));
  REQUIRE(format_json(ours) == theirs.dump(2) + "\n");
  Json copy = ours;
  REQUIRE(copy == ours);
  const Json moved = std::move(copy);
  REQUIRE(moved == ours);
  REQUIRE(Json::parse(ours.dump()) == ours);
}

}  // namespace

TEST_CASE("random documents are read, asked and written as nlohmann-json does") {
  Documents documents(1);
  for (int i = 0; i < 1000; ++i) check_document(documents.document());
}

TEST_CASE("values compare as those of nlohmann-json do") {
  Documents documents(2);
  std::vector<std::string> texts = {"1",
                                    "1.0",
                                    "-1",
                                    "0",
                                    "-0.0",
                                    "true",
                                    "\"1\"",
                                    "[1]",
                                    "[1.0]",
                                    "{\"a\":1}",
                                    "{\"a\":1.0}",
                                    "{\"a\":1,\"b\":2}",
                                    "{\"b\":2,\"a\":1}",
                                    "null",
                                    "\"\"",
                                    "18446744073709551615",
                                    "9223372036854775807"};
  for (int i = 0; i < 60; ++i) texts.push_back(documents.value(4));
  size_t equal = 0;
  for (const std::string& a : texts) {
    for (const std::string& b : texts) {
      CAPTURE(a);
      CAPTURE(b);
      // nlohmann-json takes 18446744073709551615 and -1 for one number.
      if ((a == "18446744073709551615" && b == "-1") || (b == "18446744073709551615" && a == "-1")) {
        CHECK(Json::parse(a) != Json::parse(b));
        continue;
      }
      const bool same = Oracle::parse(a) == Oracle::parse(b);
      equal += same;
      REQUIRE((Json::parse(a) == Json::parse(b)) == same);
    }
  }
  CHECK(equal > texts.size());
  CHECK(Json(3) == 3.0);
  CHECK(Json(3u) == 3);
  CHECK(Json("a") == "a");
  CHECK(Json(true) != 1);
  CHECK(Json(nullptr) == nullptr);
}

TEST_CASE("what nlohmann-json refuses is refused at the same byte") {
  Documents documents(3);
  size_t refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string text = documents.document();
    for (size_t n = 1 + documents.below(2); n > 0; --n) {
      const size_t at = documents.below(text.size());
      switch (documents.below(4)) {
        case 0:
          text.resize(at + 1);
          break;
        case 1:
          text.erase(at, 1 + documents.below(3));
          break;
        case 2:
          text[at] = "{}[],:\"\\0-e.tx\n\xC3"[documents.below(17)];
          break;
        default:
          text[at] = static_cast<char>(documents.below(256));
          break;
      }
      if (text.empty()) text = "x";
    }
    // Numbers that nlohmann-json does not have are another test's.
    size_t digits = 0, most = 0;
    for (const char c : text) most = std::max(most, digits = c >= '0' && c <= '9' ? digits + 1 : 0);
    if (most >= 19 || text.find("NaN") != text.npos || text.find("Infinity") != text.npos) continue;
    CAPTURE(text);
    const std::string expected = complaint_expected(text);
    REQUIRE(complaint_of(text) == expected);
    if (expected.empty()) check_document(text);
    if (!expected.empty()) CHECK_THROWS_AS(Json::parse(text), Json::exception);
    refused += !expected.empty();
  }
  CHECK(refused > 600);
}

TEST_CASE("floats and strings of any bytes are written as nlohmann-json does") {
  Documents documents(4);
  for (int i = 0; i < 5000; ++i) {
    const double value = documents.any_float();
    REQUIRE(Json(value).dump() == Oracle(value).dump());
  }
  for (int i = 0; i < 5000; ++i) {
    const std::string bytes = documents.bytes(12);
    CAPTURE(bytes);
    REQUIRE(Json(bytes).dump() == Oracle(bytes).dump(-1, ' ', false, kReplace));
    REQUIRE(json_quote(bytes) == Oracle(bytes).dump(-1, ' ', false, kReplace));
    REQUIRE(Json({{bytes, 1}}).dump() == Oracle({{bytes, 1}}).dump(-1, ' ', false, kReplace));
  }
}

TEST_CASE("a long document is sorted, and of its twins the last counts") {
  Documents documents(5);
  std::string text = "{";
  size_t members = 0;
  while (text.size() < (300u << 10)) {
    text += (members ? ",\"" : "\"") + std::to_string(documents.below(5000)) +
            "\":{\"z\":" + std::to_string(members) + ",\"a\":0}";
    ++members;
  }
  text += "}";
  CHECK(parse_json("x", text).dump() == nlohmann::json::parse(text).dump());
  CHECK(Json::parse(text).dump() == Oracle::parse(text).dump());
  // The same document below the limit keeps its order.
  text = text.substr(0, text.rfind(',', 200u << 10));
  text = text.substr(0, text.rfind('}')) + "}}";
  CHECK(parse_json("x", text).dump() == Oracle::parse(text).dump());
}

/// That the braces give the same text as a value of ours and of theirs.
#define CHECK_SAME_TEXT(...)                                         \
  do {                                                               \
    const Json ours = __VA_ARGS__;                                   \
    const Oracle theirs = __VA_ARGS__;                               \
    CHECK(ours.dump() == theirs.dump());                             \
    CHECK(ours.type_name() == std::string(theirs.type_name()));      \
    CHECK(ours.is_number_unsigned() == theirs.is_number_unsigned()); \
  } while (false)

TEST_CASE("lists of braces make what they make of nlohmann-json") {
  const std::string text = "text";
  const std::vector<int64_t> numbers = {1, 2};
  const std::map<std::string, int> map = {{"a", 1}, {"b", 2}};
  const std::set<std::string> set = {"x", "y"};
  CHECK_SAME_TEXT({{"a", 1}});
  CHECK_SAME_TEXT({"a", 1});
  CHECK_SAME_TEXT({"a", "b"});
  CHECK_SAME_TEXT({{"a", "b"}, {"c", "d"}});
  CHECK_SAME_TEXT({{"a", "b"}, {"c", "d", "e"}});
  CHECK_SAME_TEXT({{"a", "b"}, {1, "d"}});
  CHECK_SAME_TEXT({{"a", 1}, {"a", 2}});
  CHECK_SAME_TEXT({{"a", {1, 2}}, {"b", {{"c", nullptr}}}, {"d", {{"e", 1}, {"f", {}}}}});
  CHECK_SAME_TEXT({{{"a", 1}}, {{"b", 2}}});
  CHECK_SAME_TEXT({{{"a", 1}}});
  CHECK_SAME_TEXT({1, 2.5, true, nullptr, "x", {1}, {{"k", 'c'}}});
  CHECK_SAME_TEXT({128, 128});
  CHECK_SAME_TEXT({text});
  CHECK_SAME_TEXT({{"s", text}, {"v", numbers}, {"m", map}, {"set", set}, {"view", std::string_view("v")}});
  CHECK_SAME_TEXT({{"u", uint64_t{18446744073709551615u}}, {"i", int64_t{-1}}, {"f", 0.1f}, {"b", false}});
  CHECK_SAME_TEXT(uint32_t{5});
  CHECK_SAME_TEXT(5);
  CHECK_SAME_TEXT(size_t{5});
  CHECK_SAME_TEXT(0.1f);
  CHECK_SAME_TEXT(nullptr);
  CHECK_SAME_TEXT({});
  CHECK_SAME_TEXT(std::vector<std::string>{});
  CHECK_SAME_TEXT(std::map<std::string, std::vector<int>>{{"a", {1}}});
  CHECK(Json::array({{{"a", 1}}}).dump() == Oracle::array({{{"a", 1}}}).dump());
  CHECK(Json::array({{"a", 1}}).dump() == Oracle::array({{"a", 1}}).dump());
  CHECK(Json::array({Json(1)}).dump() == "[1]");
  CHECK(Json::object({{"a", 1}}).dump() == Oracle::object({{"a", 1}}).dump());
  CHECK_THROWS_AS(Json::object({1, 2}), Json::exception);
}

TEST_CASE("values change as those of nlohmann-json do") {
  const auto change = [](auto json) {
    json["a"] = 1;
    json["b"]["c"] = {1, 2};
    json["b"]["c"].push_back({{"d", nullptr}});
    json["list"].push_back(1);
    json["list"].push_back("x");
    json["list"][0] = {{"y", 0.5}};
    json["gone"] = true;
    json["last"] = json["b"];
    json.erase("gone");
    json.erase("never there");
    json.update({{"a", 2}, {"new", "z"}});
    json["a"] = json["b"]["c"][0];
    for (auto& value : json["b"]["c"]) value = 7;
    return json.dump();
  };
  CHECK(change(Json()) == change(Oracle()));
  Json text = "x";
  CHECK_THROWS_AS(text.push_back(1), Json::exception);
  CHECK_THROWS_AS(text["a"], Json::exception);
  CHECK_THROWS_AS(text.erase("a"), Json::exception);
  CHECK_THROWS_AS(text.items(), Json::exception);
  CHECK_THROWS_AS(text.value("a", 1), Json::exception);
  const Json numbers = {"a", "b"};
  CHECK(numbers.get<std::set<std::string>>() == std::set<std::string>{"a", "b"});
  CHECK(numbers.get<std::vector<std::string>>() == std::vector<std::string>{"a", "b"});
  CHECK_THROWS_AS(numbers.get<std::vector<int>>(), Json::exception);
  CHECK_THROWS_AS(Json(1e300).get<int64_t>(), Json::exception);
  CHECK_THROWS_AS(Json(-1.0).get<uint64_t>(), Json::exception);
}

TEST_CASE("raw numbers are neither strings nor numbers of 64 bits, and cross a line as marked strings") {
  const Json json = parse_json("x", "[NaN, 18446744073709551616]");
  for (const Json& raw : json) {
    CHECK(raw.type() == Json::Type::kRaw);
    CHECK_FALSE(raw.is_string());
    CHECK_FALSE(raw.is_number());
    CHECK_THROWS_AS(raw.get<double>(), Json::exception);
    CHECK_THROWS_AS(raw.get<std::string>(), Json::exception);
  }
  CHECK(json[0] == json[0]);
  CHECK(json[0] != json[1]);
  CHECK(json_line(json) == "[\"\uf8fftwofour:NaN\",\"\uf8fftwofour:18446744073709551616\"]");
  CHECK_NOTHROW(Oracle::parse(json_line(json)));
  CHECK(Json::parse(json_line(json)) == json);
}

TEST_CASE("every text of the corpus is read as nlohmann-json reads it") {
  size_t sound = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(TWOFOUR_SOURCE_DIR "/tests/fuzz/corpus")) {
    if (!entry.is_regular_file()) continue;
    CAPTURE(entry.path().string());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.find('\0') != text.npos) continue;
    if (Oracle::accept(text)) {
      ++sound;
      const Oracle theirs = Oracle::parse(text);
      CHECK(Json::parse(text).dump() == theirs.dump(-1, ' ', false, kReplace));
    } else {
      CHECK_THROWS_AS(Json::parse(text), Json::exception);
    }
  }
  CHECK(sound > 10);
}

TEST_CASE("a text in pieces is the text, and objects that are not kept leave no place") {
  Documents documents(6);
  const auto in_pieces = [](std::string_view text, size_t size, const KeepJson& keep) {
    const JsonPieces next = [text, size]() mutable {
      const std::string_view piece = text.substr(0, size);
      text.remove_prefix(piece.size());
      return piece;
    };
    return parse_json_pieces("x", next, keep);
  };
  for (int i = 0; i < 200; ++i) {
    const std::string text = documents.document();
    CAPTURE(text);
    REQUIRE(in_pieces(text, 1 + documents.below(5), [](Json&) { return true; }) == Json::parse(text));
  }
  std::vector<std::string> seen;
  const auto keep = [&](Json& json) {
    seen.push_back(json.dump());
    return !json.contains("take");
  };
  const Json rest = in_pieces(R"({"a":[{"take":1},2,{"b":{"take":2}},{"take":3}],"c":{"take":4}})", 3, keep);
  CHECK(rest.dump() == R"({"a":[2,{}]})");
  CHECK(seen == std::vector<std::string>{R"({"take":1})", R"({"take":2})", R"({})", R"({"take":3})",
                                         R"({"take":4})", R"({"a":[2,{}]})"});
  CHECK(in_pieces(R"({"take":1})", 3, keep).is_null());
  CHECK_THROWS_WITH_AS(in_pieces(std::string(81, '[') + std::string(81, ']'), 7, keep),
                       "x: nested deeper than 80 levels", Error);
  CHECK_THROWS_WITH_AS(in_pieces(std::string("[1,\0]", 5), 2, keep), "x: not JSON: error at byte 4", Error);
  CHECK_THROWS_WITH_AS(in_pieces("[1,]", 2, keep), "x: not JSON: error at byte 4", Error);
}

}  // namespace json_oracle_test
