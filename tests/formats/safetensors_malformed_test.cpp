#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "formats/error.h"
#include "formats/safetensors.h"
#include "tests/support/safetensors_file.h"

namespace safetensors_malformed_test {

using namespace twofour;
using namespace std::literals;

namespace {

/// One rule, broken by an otherwise sound file.
struct Lie {
  std::string what, header;
  size_t data_bytes;
  std::string message;  ///< what the Error must say
};

/// A tensor "a" of one byte with the given fields.
std::string with(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return std::string(R"({"a":{"dtype":)").append(dtype) + std::string(R"(,"shape":)").append(shape) +
         std::string(R"(,"data_offsets":)").append(offsets) + "}}";
}

/// One-byte tensors "a" and "b" at the given offsets.
std::string pair(std::string_view a, std::string_view b) {
  return std::string(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":)").append(a) +
         std::string(R"(},"b":{"dtype":"U8","shape":[1],"data_offsets":)").append(b) + "}}";
}

const std::string kGood = R"("dtype":"U8","shape":[1],"data_offsets":[0,1])";

std::vector<Lie> text_lies() {
  return {
      {"empty header", "", 0, "expected a header that begins with '{', found an empty one"},
      {"leading space", " {}", 0, "expected a header that begins with '{', found \" \""},
      {"byte order mark", "\xEF\xBB\xBF{}", 0, "begins with '{'"},
      {"array at the top", "[]", 0, "expected a header that begins with '{', found \"[\""},
      {"number at the top", "5", 0, "begins with '{'"},
      {"null at the top", "null", 0, "begins with '{'"},
      {"nothing but spaces", "        ", 0, "begins with '{'"},
      {"nothing but zero bytes", "\0\0\0\0\0\0\0\0"s, 0, "begins with '{'"},
      {"text that ends early", R"({"a":{)", 0, "header: not JSON"},
      {"no quotes", "{a:1}", 0, "header: not JSON"},
      {"two documents", "{}{}", 0, "header: not JSON"},
      {"text behind the object", "{} x", 0, "header: not JSON"},
      {"zero byte behind the object", "{}\0\0\0\0\0\0"s, 0, "header: not JSON"},
      {"text hidden behind a zero byte", "{}\0{\"a\":"s, 0, "header: not JSON"},
      {"zero byte within a name", "{\"a\0\":{"s + kGood + "}}", 1, "header: not JSON"},
      {"comma behind the last", R"({"a":{)" + kGood + "},}", 1, "header: not JSON"},
      {"comment", "{/* x */}", 0, "header: not JSON"},
      {"name not UTF-8", "{\"\xFF\":{" + kGood + "}}", 1, "header: not JSON"},
      {"name of overlong UTF-8", "{\"\xC0\xAF\":{" + kGood + "}}", 1, "header: not JSON"},
      {"name of surrogates in UTF-8", "{\"\xED\xA0\x80\":{" + kGood + "}}", 1, "header: not JSON"},
      {"name cut within a character", "{\"\xE6\xBC\":{" + kGood + "}}", 1, "header: not JSON"},
      {"half a surrogate pair", R"({"\ud83d":{)" + kGood + "}}", 1, "header: not JSON"},
      {"raw newline within a name", "{\"a\n\":{" + kGood + "}}", 1, "header: not JSON"},
      {"number too large for any type", with(R"("U8")", "[1e999]", "[0,1]"), 1, "header: not JSON"},
  };
}

std::vector<Lie> structure_lies() {
  return {
      {"number for a tensor", R"({"a":5})", 0, "\"a\": expected an object that describes a tensor, found 5"},
      {"string for a tensor", R"({"a":"b"})", 0,
       "\"a\": expected an object that describes a tensor, found \"b\""},
      {"null for a tensor", R"({"a":null})", 0,
       "\"a\": expected an object that describes a tensor, found null"},
      {"array for a tensor", R"({"a":[]})", 0,
       "\"a\": expected an object that describes a tensor, found an array"},
      {"empty object for a tensor", R"({"a":{}})", 0,
       "\"a\": expected dtype, shape and data_offsets, found fewer"},
      {"no dtype", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1,
       "\"a\": expected dtype, shape and data_offsets"},
      {"no shape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1,
       "\"a\": expected dtype, shape and data_offsets"},
      {"no data_offsets", R"({"a":{"dtype":"U8","shape":[1]}})", 1,
       "\"a\": expected dtype, shape and data_offsets"},
      {"unknown field", R"({"a":{)" + kGood + R"(,"strides":[1]}})", 1,
       "\"a\": expected dtype, shape and data_offsets, found key \"strides\""},
      {"tensor twice", R"({"a":{)" + kGood + R"(},"a":{)" + kGood + "}}", 1, "\"a\": duplicate key"},
      {"tensor twice, once escaped", R"({"a":{)" + kGood + R"(},"\u0061":{)" + kGood + "}}", 1,
       "\"a\": duplicate key"},
      {"tensor twice with other offsets",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "\"a\": duplicate key"},
      {"dtype twice", R"({"a":{"dtype":"U8",)" + kGood + "}}", 1, "\"a\": duplicate key 'dtype'"},
      {"shape twice", R"({"a":{"shape":[2],)" + kGood + "}}", 1, "\"a\": duplicate key 'shape'"},
      {"data_offsets twice", R"({"a":{"data_offsets":[0,9],)" + kGood + "}}", 1,
       "\"a\": duplicate key 'data_offsets'"},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "\"__metadata__\": duplicate key"},
      {"metadata key twice", R"({"__metadata__":{"x":"1","x":"1"}})", 0,
       "\"x\": duplicate key in __metadata__"},
      {"metadata a string", R"({"__metadata__":"pt"})", 0, "\"__metadata__\": expected an object"},
      {"metadata null", R"({"__metadata__":null})", 0, "\"__metadata__\": expected an object"},
      {"metadata of numbers", R"({"__metadata__":{"x":1}})", 0, "\"x\": expected a string, found 1"},
      {"metadata of booleans", R"({"__metadata__":{"x":true}})", 0,
       "\"x\": expected a string, found a boolean"},
      {"metadata of null", R"({"__metadata__":{"x":null}})", 0, "\"x\": expected a string, found null"},
      {"metadata of arrays", R"({"__metadata__":{"x":["y"]}})", 0,
       "\"x\": expected a string, found an array"},
      {"metadata of objects", R"({"__metadata__":{"x":{"y":"z"}}})", 0,
       "\"x\": expected a string, found an object"},
      {"metadata that describes a tensor", R"({"__metadata__":{)" + kGood + "}}", 1,
       "expected a string, found an array"},
      {"nested 100,000 arrays deep", R"({"a":{"shape":)" + std::string(100'000, '['), 0, "found an array"},
      {"nested 100,000 objects deep",
       "{" +
           [] {
             std::string deep;
             for (int i = 0; i < 100'000; ++i) deep += R"("a":{)";
             return deep;
           }(),
       0, "found key \"a\""},
  };
}

std::vector<Lie> field_lies() {
  return {
      {"unknown dtype", with(R"("F7")", "[1]", "[0,1]"), 1, "\"a\": unknown dtype \"F7\""},
      {"dtype in lower case", with(R"("u8")", "[1]", "[0,1]"), 1, "\"a\": unknown dtype \"u8\""},
      {"dtype empty", with(R"("")", "[1]", "[0,1]"), 1, "\"a\": unknown dtype \"\""},
      {"dtype a number", with("8", "[1]", "[0,1]"), 1,
       "\"a\": expected a dtype, shape or data_offsets, found 8"},
      {"dtype null", with("null", "[1]", "[0,1]"), 1, "found null"},
      {"dtype an array", with(R"(["U8"])", "[1]", "[0,1]"), 1, "found an array"},
      {"shape a number", with(R"("U8")", "1", "[0,1]"), 1, "found 1"},
      {"shape a string", with(R"("U8")", R"("[1]")", "[0,1]"), 1, "found \"[1]\""},
      {"shape null", with(R"("U8")", "null", "[0,1]"), 1, "found null"},
      {"shape an object", with(R"("U8")", "{}", "[0,1]"), 1, "found an object"},
      {"shape of arrays", with(R"("U8")", "[[1]]", "[0,1]"), 1,
       "expected an unsigned 63-bit integer, found an array"},
      {"shape of strings", with(R"("U8")", R"(["1"])", "[0,1]"), 1,
       "expected an unsigned 63-bit integer, found \"1\""},
      {"shape of booleans", with(R"("U8")", "[true]", "[0,1]"), 1,
       "expected an unsigned 63-bit integer, found a boolean"},
      {"shape of null", with(R"("U8")", "[null]", "[0,1]"), 1,
       "expected an unsigned 63-bit integer, found null"},
      {"shape of objects", with(R"("U8")", "[{}]", "[0,1]"), 1,
       "expected an unsigned 63-bit integer, found an object"},
      {"negative shape", with(R"("U8")", "[-1]", "[0,1]"), 1,
       "expected an unsigned 63-bit integer, found -1"},
      {"two negative dimensions", with(R"("U8")", "[-1,-1]", "[0,1]"), 1, "found -1"},
      {"float shape", with(R"("U8")", "[1.0]", "[0,1]"), 1, "expected an unsigned 63-bit integer, found 1.0"},
      {"exponent shape", with(R"("U8")", "[1e0]", "[0,1]"), 1,
       "expected an unsigned 63-bit integer, found 1e0"},
      {"dimension of 2^63", with(R"("U8")", "[9223372036854775808]", "[0,1]"), 1,
       "found 9223372036854775808"},
      {"dimension of 2^64", with(R"("U8")", "[18446744073709551616]", "[0,1]"), 1,
       "found 18446744073709551616"},
      {"dimension of 2^64 + 1", with(R"("U8")", "[18446744073709551617]", "[0,1]"), 1,
       "found 18446744073709551617"},
      {"2^40 x 2^40", with(R"("U8")", "[1099511627776,1099511627776]", "[0,1]"), 1,
       "U8 [1099511627776, 1099511627776] overflows"},
      {"2^32 x 2^32, which is 0 modulo 2^64", with(R"("U8")", "[4294967296,4294967296]", "[0,0]"), 0,
       "overflows"},
      {"2^61 bytes, whose bits are 0 modulo 2^64", with(R"("U8")", "[2305843009213693952]", "[0,0]"), 0,
       "overflows"},
      {"data_offsets with none", with(R"("U8")", "[1]", "[]"), 1,
       "\"a\": expected two data_offsets, found 0"},
      {"data_offsets with one", with(R"("U8")", "[1]", "[1]"), 1,
       "\"a\": expected two data_offsets, found 1"},
      {"data_offsets with three", with(R"("U8")", "[1]", "[0,1,1]"), 1,
       "\"a\": expected two data_offsets, found 3"},
      {"data_offsets a number", with(R"("U8")", "[1]", "1"), 1, "found 1"},
      {"data_offsets an object", with(R"("U8")", "[1]", R"({"0":1})"), 1, "found an object"},
      {"data_offsets of strings", with(R"("U8")", "[1]", R"(["0","1"])"), 1, "found \"0\""},
      {"data_offsets of arrays", with(R"("U8")", "[1]", "[[0,1]]"), 1, "found an array"},
      {"data_offsets of floats", with(R"("U8")", "[1]", "[0.0,1.0]"), 1, "found 0.0"},
      {"data_offsets of booleans", with(R"("U8")", "[1]", "[false,true]"), 1, "found a boolean"},
      {"negative data_offsets", with(R"("U8")", "[1]", "[-1,0]"), 1, "found -1"},
      {"huge data_offsets", with(R"("U8")", "[1]", "[0,18446744073709551615]"), 1,
       "found 18446744073709551615"},
  };
}

std::vector<Lie> coverage_lies() {
  return {
      {"backwards", with(R"("U8")", "[1]", "[1,0]"), 1, "\"a\": data_offsets run backwards: [1, 0]"},
      {"first not at 0", with(R"("U8")", "[1]", "[1,2]"), 2, "\"a\": expected data to begin at 0"},
      {"first not at 0, no bytes", with(R"("U8")", "[0]", "[1,1]"), 1, "\"a\": expected data to begin at 0"},
      {"hole", pair("[0,1]", "[2,3]"), 3,
       "\"b\": expected data to begin at 1, where the tensor before it ends, found 2 (hole)"},
      {"overlap", pair("[0,1]", "[0,1]"), 1,
       "\"b\": expected data to begin at 1, where the tensor before it ends, found 0 (overlap)"},
      {"no bytes within another tensor",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
       2, "\"b\": expected data to begin at 2"},
      {"no bytes behind the end",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("b":{"dtype":"U8","shape":[0],"data_offsets":[5,5]}})",
       1, "\"b\": expected data to begin at 1"},
      {"more bytes than the shape", with(R"("U8")", "[1]", "[0,2]"), 2,
       "\"a\": expected 1 bytes for U8 [1], found 2 between its data_offsets"},
      {"fewer bytes than the shape", with(R"("F32")", "[3]", "[0,8]"), 8,
       "\"a\": expected 12 bytes for F32 [3], found 8 between its data_offsets"},
      {"no bytes for a scalar", with(R"("F32")", "[]", "[0,0]"), 0,
       "\"a\": expected 4 bytes for F32 [], found 0"},
      {"bytes for no elements", with(R"("F32")", "[0]", "[0,4]"), 4,
       "\"a\": expected 0 bytes for F32 [0], found 4"},
      {"odd count of F4", with(R"("F4")", "[3]", "[0,2]"), 2, "\"a\": F4 [3] does not end on a whole byte"},
      {"two six-bit numbers", with(R"("F6_E2M3")", "[2]", "[0,2]"), 2, "does not end on a whole byte"},
      {"trailing bytes", with(R"("U8")", "[1]", "[0,1]"), 2,
       "expected 1 bytes of data (the header), found 2 in the file"},
      {"trailing bytes without tensors", "{}", 1,
       "expected 0 bytes of data (the header), found 1 in the file"},
      {"data cut", with(R"("U8")", "[4]", "[0,4]"), 3,
       "expected 4 bytes of data (the header), found 3 in the file"},
      {"no data", with(R"("U8")", "[4]", "[0,4]"), 0,
       "expected 4 bytes of data (the header), found 0 in the file"},
  };
}

/// Each must be refused with an Error that names the file and says what is wrong.
void check_refused(const std::vector<Lie>& lies) {
  for (const Lie& lie : lies) {
    CAPTURE(lie.what);
    std::string message = "accepted";
    try {
      parse_safetensors_header("m.safetensors", lie.header, lie.data_bytes);
    } catch (const Error& e) {
      message = e.what();
    }
    CHECK(message.starts_with("m.safetensors: "));
    CHECK_MESSAGE(message.find(lie.message) != std::string::npos, message);
  }
}

}  // namespace

TEST_CASE("what would take more memory than its header is refused, and the largest that is not is read") {
  const auto name = [](size_t size) { return "{\"" + std::string(size, 'n') + "\":{" + kGood + "}}"; };
  const auto rank = [](size_t size) {
    std::string shape = "[1";
    for (size_t i = 1; i < size; ++i) shape += ",1";
    return with(R"("U8")", shape + "]", "[0,1]");
  };
  const auto metadata = [](size_t size) {
    std::string text = R"({"__metadata__":{"0":"")";
    for (size_t i = 1; i < size; ++i) text += ",\"" + std::to_string(i) + R"(":"")";
    return text + "}}";
  };
  CHECK_NOTHROW(parse_safetensors_header("m", name(kSafetensorsMaxName), 1));
  CHECK_NOTHROW(parse_safetensors_header("m", rank(kSafetensorsMaxRank), 1));
  CHECK_NOTHROW(parse_safetensors_header("m", metadata(kSafetensorsMaxMetadata), 0));
  check_refused({
      {"name", name(kSafetensorsMaxName + 1), 1, "expected names of at most 4096 bytes, found \"nnn"},
      {"rank", rank(kSafetensorsMaxRank + 1), 1,
       "\"a\": expected at most 64 numbers in an array, found more"},
      {"metadata", metadata(kSafetensorsMaxMetadata + 1), 0,
       "\"65536\": expected at most 65536 entries of __metadata__, found more"},
  });
}

TEST_CASE("a message quotes no more than the beginning of what is wrong, and no control characters") {
  const std::string huge(1 << 20, 'x');
  for (const std::string& header :
       {"{\"" + huge + "\":5}", with('"' + huge + '"', "[1]", "[0,1]"),
        with(R"("U8")", '"' + huge + '"', "[0,1]"), "{\"a\":{\"" + huge + "\":1}}",
        with(R"("U8")", "[0." + std::string(1 << 20, '1') + "]", "[0,1]"),
        with(R"("\u001b[2J\n")", "[1]", "[0,1]")}) {
    std::string message;
    try {
      parse_safetensors_header("m", header, 1);
    } catch (const Error& e) {
      message = e.what();
    }
    CHECK(message.starts_with("m: "));
    CHECK(message.size() < 500);
    CHECK(message.find_first_of("\x1b\n") == std::string::npos);
  }
}

TEST_CASE("the file behind the lies is sound") {
  CHECK(parse_safetensors_header("m", with(R"("U8")", "[1]", "[0,1]"), 1).tensors.size() == 1);
  CHECK(parse_safetensors_header("m", pair("[0,1]", "[1,2]"), 2).tensors.size() == 2);
  CHECK(parse_safetensors_header("m", "{\"a\":{" + kGood + "}}", 1).tensors.size() == 1);
}

TEST_CASE("a header that is not one JSON object is refused") { check_refused(text_lies()); }
TEST_CASE("a header with the wrong structure is refused") { check_refused(structure_lies()); }
TEST_CASE("a field of the wrong type or range is refused") { check_refused(field_lies()); }
TEST_CASE("data that tensors do not cover exactly is refused") { check_refused(coverage_lies()); }

}  // namespace safetensors_malformed_test
