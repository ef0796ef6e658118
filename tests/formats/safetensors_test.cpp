#include "formats/safetensors.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "formats/error.h"
#include "tests/support/message.h"
#include "tests/support/safetensors_file.h"

namespace safetensors_test {

using namespace twofour;
using namespace std::literals;

namespace {

SafetensorsHeader parse(std::string_view file) {
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(file.data()), file.size());
  const uint64_t length = parse_safetensors_prefix("m.safetensors", bytes, file.size());
  return parse_safetensors_header("m.safetensors", file.substr(kSafetensorsPrefix, length),
                                  file.size() - kSafetensorsPrefix - length);
}

TensorInfo tensor(std::string name, DType dtype, std::vector<int64_t> shape) {
  return {std::move(name), dtype, std::move(shape)};
}

void check_same(const TensorInfo& a, const TensorInfo& b) {
  CHECK(a.name == b.name);
  CHECK(a.dtype == b.dtype);
  CHECK(a.shape == b.shape);
  CHECK(a.begin == b.begin);
  CHECK(a.end == b.end);
}

}  // namespace

TEST_CASE(
    "a header is metadata, then tensors with wider types first, then by name, padded with spaces to 8") {
  std::vector<TensorInfo> tensors = {
      tensor("b", DType::kU8, {3}),      tensor("scale", DType::kF8E4M3, {2, 1}),
      tensor("a", DType::kU8, {}),       tensor("z.global", DType::kF32, {1}),
      tensor("norm", DType::kBF16, {2}),
  };
  CHECK(assign_offsets(tensors) == 14);
  const std::string json = R"({"__metadata__":{"format":"pt","twofour.layout":"v7"},)"
                           R"("z.global":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                           R"("norm":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},)"
                           R"("scale":{"dtype":"F8_E4M3","shape":[2,1],"data_offsets":[8,10]},)"
                           R"("a":{"dtype":"U8","shape":[],"data_offsets":[10,11]},)"
                           R"("b":{"dtype":"U8","shape":[3],"data_offsets":[11,14]}})";
  REQUIRE(json.size() == 342);  // 344 with its padding: 0x158
  CHECK(format_safetensors_header(tensors, {{"twofour.layout", "v7"}, {"format", "pt"}}) ==
        "\x58\x01\0\0\0\0\0\0"s + json + "  ");
}

TEST_CASE("a header without tensors is {} and six spaces") {
  CHECK(format_safetensors_header({}, {}) == "\x08\0\0\0\0\0\0\0{}      "s);
}

TEST_CASE("a header that fills its eights is not padded") {
  // {"__metadata__":{"a":"b"}} has 26 bytes; a value of 7 makes it 32.
  const std::string bytes = format_safetensors_header({}, {{"a", "1234567"}});
  CHECK(bytes == "\x20\0\0\0\0\0\0\0"s + R"({"__metadata__":{"a":"1234567"}})");
}

TEST_CASE("names and metadata are escaped as the reference writer does") {
  std::vector<TensorInfo> tensors = {tensor("q\"\\\n\x1f/é", DType::kU8, {0})};
  assign_offsets(tensors);
  const std::string bytes = format_safetensors_header(tensors, {{"k\t", "v\""}});
  CHECK(bytes.find(R"({"__metadata__":{"k\t":"v\""},"q\"\\\n\u001f/é":{"dtype")") == 8);
}

TEST_CASE("what is written reads back the same") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<TensorInfo> tensors;
    const size_t count = random() % 12;
    for (size_t i = 0; i < count; ++i) {
      std::vector<int64_t> shape;
      for (auto d = random() % 4; d > 0; --d) shape.push_back(random() % 5);
      auto dtype = static_cast<DType>(random() % 22);
      if (dtype_bits(dtype) % 8 != 0) shape.push_back(4);  // whole bytes
      tensors.push_back(
          tensor("name \"" + std::to_string(random() % 1000) + "." + std::to_string(i), dtype, shape));
    }
    std::map<std::string, std::string> metadata;
    for (auto i = random() % 3; i > 0; --i) metadata["key\n" + std::to_string(i)] = "värde";
    const uint64_t data = assign_offsets(tensors);
    const std::string head = format_safetensors_header(tensors, metadata);
    CHECK(head.size() % 8 == 0);
    const SafetensorsHeader back = parse(head + std::string(data, '\0'));
    CHECK(back.metadata == metadata);
    REQUIRE(back.tensors.size() == tensors.size());
    // Reading sorts by offsets; tensors without bytes share theirs.
    auto expected = tensors;
    std::stable_sort(expected.begin(), expected.end(), [](auto& a, auto& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    for (size_t i = 0; i < expected.size(); ++i) check_same(back.tensors[i], expected[i]);
    CHECK(format_safetensors_header(tensors, back.metadata) == head);
  }
}

TEST_CASE("offsets follow the order of writing and leave no hole") {
  std::vector<TensorInfo> tensors = {tensor("odd", DType::kU8, {5}),      tensor("codes", DType::kF4, {2, 3}),
                                     tensor("six", DType::kF6E2M3, {4}),  tensor("wide", DType::kI64, {2}),
                                     tensor("none", DType::kF32, {0, 7}), tensor("flag", DType::kBool, {1})};
  CHECK(assign_offsets(tensors) == 16 + 0 + 5 + 3 + 3 + 1);
  const std::vector<std::string> order = {"wide", "none", "odd", "six", "codes", "flag"};
  uint64_t position = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(tensors[i].name == order[i]);
    CHECK(tensors[i].begin == position);
    position = tensors[i].end;
  }
}

TEST_CASE("legal files that other writers make are accepted") {
  SUBCASE("no tensors") {
    CHECK(parse(safetensors_file("{}", "")).tensors.empty());
    CHECK(parse(safetensors_file(R"({"__metadata__":{}})", "")).metadata.empty());
  }
  SUBCASE("spaces behind the header and within") {
    CHECK(parse(safetensors_file("{}     ", "")).tensors.empty());
    const auto h = parse(safetensors_file(
        "{ \"a\" :\n{\"dtype\": \"U8\", \"shape\": [ 1 ], \"data_offsets\": [0, 1]} }\n", "x"));
    CHECK(h.tensors.at(0).name == "a");
  }
  SUBCASE("scalars, and tensors without elements in any place") {
    const auto h = parse(SafetensorsFile()
                             .add("first", DType::kF32, {0}, "")
                             .add("scalar", DType::kF32, {}, "abcd")
                             .add("middle", DType::kU8, {3, 0, 9'000'000'000}, "")
                             .add("one", DType::kU8, {1}, "x")
                             .add("last", DType::kBF16, {0, 0}, "")
                             .bytes());
    REQUIRE(h.tensors.size() == 5);
    for (const TensorInfo& t : h.tensors) {
      if (t.name == "scalar") CHECK(t.shape.empty());
      if (t.name == "scalar") CHECK(t.bytes() == 4);
      if (t.name == "first" || t.name == "middle" || t.name == "last") CHECK(t.bytes() == 0);
    }
  }
  SUBCASE("no elements although other dimensions overflow") {
    const auto h = parse(safetensors_file(
        R"({"a":{"dtype":"U8","shape":[1099511627776,1099511627776,0],"data_offsets":[0,0]}})", ""));
    CHECK(h.tensors.at(0).bytes() == 0);
  }
  SUBCASE("unaligned data in the order of names") {
    const auto h = parse(SafetensorsFile().add_u8("a", 3).add("b", DType::kF32, {1}, "abcd").bytes());
    CHECK(h.tensors.at(1).begin == 3);
  }
  SUBCASE("keys in another order than the data, and fields in any order") {
    const auto h = parse(safetensors_file(R"({"b":{"data_offsets":[1,3],"shape":[2],"dtype":"U8"},)"
                                          R"("__metadata__":{"x":"y"},)"
                                          R"("a":{"shape":[1],"data_offsets":[0,1],"dtype":"BOOL"}})",
                                          "xyz"));
    CHECK(h.tensors.at(0).name == "a");
    CHECK(h.tensors.at(1).name == "b");
    CHECK(h.metadata.at("x") == "y");
  }
  SUBCASE("names in Unicode, escaped or not, and strange ones") {
    const auto h =
        parse(safetensors_file(R"({"caf\u00e9":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                               R"("漢字":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                               R"("\ud83d\ude00\n\"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                               R"("":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                               ""));
    std::vector<std::string> names;
    for (const TensorInfo& t : h.tensors) names.push_back(t.name);
    CHECK(names == std::vector<std::string>{"", "café", "漢字", "😀\n\""});
  }
  SUBCASE("two codes to a byte, four six-bit numbers to three") {
    const auto h = parse(
        SafetensorsFile().add("a", DType::kF4, {3, 2}, "abc").add("b", DType::kF6E3M2, {4}, "abc").bytes());
    CHECK(h.tensors.at(0).bytes() == 3);
  }
  SUBCASE("a tensor called like the metadata's fields") {
    CHECK(parse(SafetensorsFile().add_u8("dtype", 1).add_u8("data_offsets", 1).bytes()).tensors.size() == 2);
  }
}

TEST_CASE("a header may have 100 million bytes and not one more, and must fit the file") {
  const auto prefix = [](uint64_t length) {
    std::vector<uint8_t> bytes;
    for (unsigned shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<uint8_t>(length >> shift));
    return bytes;
  };
  CHECK(parse_safetensors_prefix("m", prefix(100'000'000), 200'000'000) == 100'000'000);
  CHECK(parse_safetensors_prefix("m", prefix(92), 100) == 92);
  CHECK_THROWS_WITH_AS(parse_safetensors_prefix("m", prefix(100'000'001), 200'000'000),
                       "m: expected a header of at most 100000000 bytes, found one of 100000001", Error);
  CHECK_THROWS_WITH_AS(parse_safetensors_prefix("m", prefix(93), 100),
                       "m: expected a header of 93 bytes, found 92 bytes of file behind its length", Error);
  for (const uint64_t length : {~uint64_t{0}, ~uint64_t{0} - 7, uint64_t{1} << 63, uint64_t{1} << 32}) {
    CHECK_THROWS_WITH_AS(parse_safetensors_prefix("m", prefix(length), 100), doctest::Contains("at most"),
                         Error);
  }
  const std::vector<uint8_t> zeros = prefix(0);
  for (uint64_t size = 0; size < 8; ++size) {
    CHECK_THROWS_WITH_AS(parse_safetensors_prefix("m", std::span(zeros).first(size), size),
                         doctest::Contains("m: expected at least 8 bytes"), Error);
  }
}

TEST_CASE("files of other kinds are named by what they are") {
  const auto refusal = [](std::string text, size_t size = 4000) {
    text.resize(size, ' ');
    const std::span all(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    return message_of(
        [&] { parse_safetensors_prefix("m", all.first(std::min<size_t>(size, kSafetensorsHead)), size); });
  };
  const std::string is = "m: expected a safetensors file, found ";
  CHECK(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", 130) ==
        is + "a Git LFS pointer: run git lfs pull");
  for (const char* page : {"<!DOCTYPE html>\n<html>", "\n <!doctype HTML>", "<html lang=\"en\">"})
    CHECK(refusal(page).starts_with(is + "an HTML page"));
  CHECK(refusal("<?xml version=\"1.0\"?><Error>").starts_with(is + "an XML document"));
  CHECK(refusal({'\x1F', '\x8B', 8, 0, 0, 0, 0, 0, 2, 3}).starts_with(is + "a gzip archive"));
  CHECK(refusal({'P', 'K', 3, 4, 0, 0, 8, 8, 0, 0}).starts_with(is + "a zip archive"));
  CHECK(refusal({'\x80', 2, '\x8A', 10, 'l', '\xFC', '\x9C', 'F', '\xF9', ' '})
            .starts_with(is + "a Python pickle"));
  CHECK(refusal({'G', 'G', 'U', 'F', 3, 0, 0, 0, 5, 0}).starts_with(is + "a GGUF file"));
  CHECK(refusal("{\"error\": \"not found\"}").starts_with(is + "JSON without a length before it"));
  // Lengths that look like these are lengths where JSON follows.
  CHECK(refusal({'\x1F', '\x8B', 8, 0, 0, 0, 0, 0, '{', '}'}, 1'000'000).empty());
  CHECK(refusal({'\x80', 2, 0, 0, 0, 0, 0, 0, '{', '}'}).empty());
}

TEST_CASE("sizes are computed in bits and checked for overflow") {
  CHECK(tensor_bytes("t", DType::kF32, {}) == 4);
  CHECK(tensor_bytes("t", DType::kF4, std::vector<int64_t>{3, 2}) == 3);
  CHECK(tensor_bytes("t", DType::kU8, std::vector<int64_t>{int64_t{1} << 30, int64_t{1} << 30}) == uint64_t{1}
                                                                                                       << 60);
  CHECK_THROWS_WITH_AS(
      tensor_bytes("t", DType::kU8, std::vector<int64_t>{int64_t{1} << 31, int64_t{1} << 30}),
      "t: U8 [2147483648, 1073741824] overflows", Error);
  CHECK_THROWS_WITH_AS(tensor_bytes("t", DType::kF4, std::vector<int64_t>{3}),
                       "t: F4 [3] does not end on a whole byte", Error);
}

TEST_CASE("any one byte of a header may be anything: it is refused or valid, never trouble") {
  const std::string good = SafetensorsFile().add_u8("a", 2).add("b", DType::kF32, {1}, "abcd").bytes();
  REQUIRE(parse(good).tensors.size() == 2);
  for (size_t i = 0; i < good.size() - 6; ++i) {
    std::string bad = good;
    for (int value = 0; value < 256; ++value) {
      bad[i] = static_cast<char>(value);
      try {
        uint64_t position = 0;
        for (const TensorInfo& t : parse(bad).tensors) {
          CHECK(t.begin == position);
          position = t.end;
        }
        CHECK(position == 6);
      } catch (const Error& e) {
        CHECK(std::string(e.what()).starts_with("m.safetensors: "));
      }
    }
  }
}

}  // namespace safetensors_test
