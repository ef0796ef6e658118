#include "lib/source/checkpoint/index_file.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/support/message.h"

namespace index_file_test {

using namespace twofour;
using namespace std::literals;

namespace {

constexpr const char* kWhere = "model.safetensors.index.json";

std::string refusal(std::string_view json) {
  return message_of([&] { parse_index_file(kWhere, json); });
}

}  // namespace

TEST_CASE("an index says which file holds which tensor, and the total size") {
  const IndexFile index = parse_index_file(
      kWhere,
      R"({"metadata":{"total_size":123},"weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"2.safetensors"}})");
  CHECK(index.total_size == 123);
  CHECK(index.files == std::vector<std::string>{"1.safetensors", "2.safetensors"});
  REQUIRE(index.entries.size() == 3);
  for (const auto& entry : index.entries) {
    CHECK(index.files.at(entry.file) == (entry.tensor == "a" ? "1.safetensors" : "2.safetensors"));
  }
}

TEST_CASE("a total size may be missing, a float, or nonsense, which counts as missing") {
  const auto total_size = [](const char* metadata) {
    return parse_index_file(kWhere, R"({"metadata":)" + std::string(metadata) + R"(,"weight_map":{}})")
        .total_size;
  };
  CHECK(total_size(R"({"total_size":123.0})") == 123);
  CHECK(total_size(R"({"total_size":1.23e2})") == 123);
  CHECK(total_size(R"({"total_size":18446744073709551615})") == 18446744073709551615u);
  for (const char* metadata : {"{}", "null", "[]", "[123]", "123", R"({"total_size":"123"})",
                               R"({"total_size":-1})", R"({"total_size":1e300})", R"({"total_size":-1.5})",
                               R"({"total_size":null})", R"({"total_size":true})", R"({"total_size":[123]})",
                               R"({"other":123})", R"({"x":{"total_size":123}})"}) {
    CAPTURE(std::string(metadata));
    CHECK(!total_size(metadata));
  }
  CHECK(!parse_index_file(kWhere, R"({"weight_map":{}})").total_size);
}

TEST_CASE("unknown sections are skipped, whatever they hold") {
  const IndexFile index = parse_index_file(
      kWhere,
      R"({"x":{"weight_map":{"q":"../evil"}},"y":[{"weight_map":{"r":1}},[[]]],"weight_map":{"a":"1"},"z":null})");
  CHECK(index.entries.size() == 1);
  CHECK(index.files == std::vector<std::string>{"1"});
}

TEST_CASE("a document without a weight_map object is refused") {
  for (const char* json : {"{}", R"({"weight_map":null})", R"({"weight_map":5})", R"({"weight_map":"a"})",
                           R"({"weight_map":[]})", R"({"weight_map":["a"]})",
                           R"({"metadata":{"weight_map":{}}})", "5", "null", "\"weight_map\""}) {
    CAPTURE(std::string(json));
    CHECK(refusal(json) == "model.safetensors.index.json: expected an object weight_map, found none");
  }
  CHECK(refusal("[]") == "model.safetensors.index.json: expected an object, found an array");
  CHECK(refusal(R"([{"weight_map":{}}])") ==
        "model.safetensors.index.json: expected an object, found an array");
}

TEST_CASE("a tensor named twice is refused with both of its files, as are sections that are read") {
  const auto twice = [](const std::string& entries) {
    return refusal(R"({"weight_map":{)" + entries + "}}");
  };
  const std::string where = "model.safetensors.index.json: ";
  CHECK(twice(R"("a":"2","b":"2","c":"1","a":"1")") ==
        where + R"("a": duplicate key: expected one file, found "1" and "2")");
  CHECK(twice(R"("a":"1","\u0061":"1")") ==
        where + R"("a": duplicate key: expected one file, found "1" and "1")");
  CHECK(twice(R"("a":"1","A":"1","a ":"1","":"1")").empty());
  CHECK(refusal(R"({"weight_map":{},"weight_map":{"a":"1"}})") == where + R"("weight_map": duplicate key)");
  CHECK(refusal(R"({"weight_map":null,"weight_map":{"a":"1"}})") == where + R"("weight_map": duplicate key)");
  CHECK(refusal(R"({"metadata":{},"weight_map":{},"metadata":5})") == where + R"("metadata": duplicate key)");
  CHECK(refusal(R"({"x":1,"x":2,"weight_map":{},"y":{"metadata":1,"metadata":2}})").empty());
}

TEST_CASE("a weight_map holds nothing but names of files") {
  const auto found = [](const char* value) {
    return refusal(R"({"weight_map":{"a":)" + std::string(value) + "}}");
  };
  const std::string where = "model.safetensors.index.json: \"a\": expected a file name, found ";
  CHECK(found("1") == where + "1");
  CHECK(found("-1") == where + "a negative number");
  CHECK(found("1.5") == where + "1.5");
  CHECK(found("null") == where + "null");
  CHECK(found("true") == where + "a boolean");
  CHECK(found(R"(["1.safetensors"])") == where + "an array");
  CHECK(found(R"({"file":"1.safetensors"})") == where + "an object");
}

TEST_CASE("a file name that leaves the directory is refused") {
  for (const char* name :
       {"", ".", "..", "../1.safetensors", "/etc/passwd", "a/1.safetensors", "./1.safetensors",
        "a/../1.safetensors", "1.safetensors/", "1\\u0000.safetensors"}) {
    CAPTURE(std::string(name));
    const std::string message = refusal(R"({"weight_map":{"t":")" + std::string(name) + R"("}})");
    CHECK(message.starts_with(
        "model.safetensors.index.json: \"t\": expected the name of a file in this directory, found"));
  }
  for (const char* name :
       {"1.safetensors", "..1.safetensors", "a..b", "...", "a b", "é.safetensors", "-rf"}) {
    CHECK_NOTHROW(check_file_name(kWhere, name));
  }
}

TEST_CASE("text that is not JSON is refused") {
  for (const std::string_view json :
       {""sv, "{"sv, R"({"weight_map":{"a":"1")"sv, R"({"weight_map":{}}x)"sv, "{\"weight_map\":{}}\0"sv,
        "{\"weight_map\":{}}\0junk"sv, "{\"weight_map\":{\"\xFF\":\"1\"}}"sv}) {
    CHECK(refusal(json).starts_with("model.safetensors.index.json: not JSON: error at byte "));
  }
  CHECK(refusal(R"({"metadata":{"total_size":1e999}})") ==
        "model.safetensors.index.json: not JSON: a number is too large");
}

TEST_CASE("depth is no danger") {
  CHECK(refusal(R"({"x":)" + std::string(100'000, '[')).find("not JSON") != std::string::npos);
  const std::string deep =
      R"({"x":)" + std::string(100'000, '[') + std::string(100'000, ']') + R"(,"weight_map":{}})";
  CHECK(parse_index_file(kWhere, deep).entries.empty());
}

}  // namespace index_file_test
