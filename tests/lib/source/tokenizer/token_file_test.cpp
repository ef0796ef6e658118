#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/io/file.h"
#include "lib/source/tokenizer/token_file.h"
#include "tests/support/message.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/scratch.h"

namespace token_file_test {

using namespace twofour;

namespace {

template <class T>
std::string bytes_of(const std::vector<T>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(T)};
}

std::string npy(const std::string& header, const std::string& data, int version = 1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) file += static_cast<char>(header.size() >> 8 * i & 0xFF);
  return file + header + data;
}

std::string npy_header(const std::string& type, const std::string& shape,
                       const std::string& fortran = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

TokenWindows read(const std::string& bytes, int64_t vocabulary_size = 100) {
  const Scratch folder;
  write_text(folder / "tokens", bytes);
  return read_token_file(folder / "tokens", vocabulary_size);
}

std::string refused(const std::string& bytes) {
  return message_of([&] { read(bytes); });
}

const std::vector<int32_t> kIds = {1, 2, 3, 40, 50, 99};

}  // namespace

TEST_CASE("ids of both formats and widths are read as windows") {
  const std::vector<int64_t> wide(kIds.begin(), kIds.end());
  const std::string files[] = {
      SafetensorsFile().add("tokens", DType::kI32, {2, 3}, bytes_of(kIds)).bytes(),
      SafetensorsFile().add("input_ids", DType::kI64, {2, 3}, bytes_of(wide)).bytes(),
      npy(npy_header("<i4", "(2, 3)"), bytes_of(kIds)), npy(npy_header("<i8", "(2, 3)"), bytes_of(wide)),
      npy(npy_header("<i4", "(2, 3)"), bytes_of(kIds), 2)};
  for (const std::string& file : files) {
    const TokenWindows windows = read(file);
    CHECK(windows.count == 2);
    CHECK(windows.width == 3);
    CHECK(windows.ids == kIds);
    CHECK(windows.window(1)[0] == 40);
  }
}

TEST_CASE("more ids than are read at once keep their order") {
  std::vector<int64_t> ids(400'000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 31 % 50'000);
  const TokenWindows windows = read(npy(npy_header("<i8", "(400, 1000)"), bytes_of(ids)), 50'000);
  CHECK(std::equal(ids.begin(), ids.end(), windows.ids.begin(), windows.ids.end()));
}

TEST_CASE("an id that the vocabulary has not is an error with row and column") {
  const auto with = [](int64_t id) {
    return refused(npy(npy_header("<i8", "(2, 3)"), bytes_of(std::vector<int64_t>{1, 2, 3, 4, id, 6})));
  };
  CHECK(contains(with(100), "row 1, column 1: expected an id below 100, found 100"));
  CHECK(contains(with(-1), "row 1, column 1: expected an id below 100, found -1"));
  CHECK(contains(with(int64_t{1} << 32), "found 4294967296"));
  CHECK(contains(refused(npy(npy_header("<i4", "(1, 1)"), "\xFF\xFF\xFF\xFF")),
                 "row 0, column 0: expected an id below 100, found -1"));
}

TEST_CASE("files of anything else are refused") {
  CHECK(contains(refused(SafetensorsFile().add("t", DType::kF32, {2, 3}, bytes_of(kIds)).bytes()),
                 "t: expected I32 or I64 [W, T], found F32 [2, 3]"));
  CHECK(contains(refused(SafetensorsFile().add("t", DType::kI32, {6}, bytes_of(kIds)).bytes()),
                 "expected I32 or I64 [W, T], found I32 [6]"));
  CHECK(contains(refused(SafetensorsFile().add_u8("a", 1).add_u8("b", 1).bytes()),
                 "expected one tensor of tokens, found 2"));
  CHECK(
      contains(refused(SafetensorsFile().add("t", DType::kI32, {0, 3}, "").bytes()), "tokens, found [0, 3]"));
  CHECK(contains(refused("{\"ids\": [1, 2]}"), "tokens: "));
  CHECK(contains(refused(""), "tokens: "));
  CHECK(
      contains(refused("A text in place of ids."), "tokens: expected ids of tokens in safetensors or .npy"));
  CHECK(contains(refused("[[1, 2], [3, 4]]"), "tokens: expected ids of tokens in safetensors or .npy"));
  const std::string data = bytes_of(kIds);
  for (const char* type : {"<u4", ">i4", "<f4", "|i1", "<i2"}) {
    CAPTURE(type);
    CHECK(contains(refused(npy(npy_header(type, "(2, 3)"), data)),
                   "expected 'descr': '<i4' or '<i8' in the header"));
  }
  CHECK(contains(refused(npy(npy_header("<i4", "(2, 3)", "True"), data)),
                 "expected 'fortran_order': False in the header"));
  for (const char* shape :
       {"(6,)", "(1, 2, 3)", "()", "(2, -3)", "(2, 3", "6", "(2.0, 3)", "(2, 99999999999999999999)"}) {
    CAPTURE(shape);
    CHECK(contains(refused(npy(npy_header("<i4", shape), data)), "expected 'shape': (W, T) in the header"));
  }
  CHECK(contains(refused(npy(npy_header("<i4", "(2, 4)"), data)),
                 "expected 32 bytes of tokens [2, 4], found 24"));
  CHECK(contains(refused(npy(npy_header("<i4", "(2, 2)"), data)),
                 "expected 16 bytes of tokens [2, 2], found 24"));
  CHECK(contains(refused(npy(npy_header("<i4", "(0, 3)"), "")), "tokens, found [0, 3]"));
  CHECK(contains(refused(npy(npy_header("<i4", "(4611686018427387904, 4)"), data)), "expected 1 to"));
  CHECK(contains(refused(npy(npy_header("<i4", "(2, 3)"), data, 3)),
                 "expected .npy of version 1 or 2, found 3"));
  const std::string whole = npy(npy_header("<i4", "(2, 3)"), data);
  for (size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(refused(whole.substr(0, size)).empty());
  }
}

}  // namespace token_file_test
