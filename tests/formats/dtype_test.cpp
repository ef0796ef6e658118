#include "formats/dtype.h"

#include <doctest/doctest.h>

#include <string>

namespace dtype_test {

using namespace twofour;

namespace {

struct Row {
  const char* name;
  int bits;
};

// In the order of the reference writer. Source: huggingface/safetensors, tensor.rs.
constexpr Row kRows[] = {
    {"U64", 64},        {"I64", 64},    {"F64", 64},    {"C64", 64},    {"F32", 32}, {"U32", 32},
    {"I32", 32},        {"BF16", 16},   {"F16", 16},    {"U16", 16},    {"I16", 16}, {"F8_E5M2FNUZ", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E8M0", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"I8", 8},   {"U8", 8},
    {"F6_E3M2", 6},     {"F6_E2M3", 6}, {"F4", 4},      {"BOOL", 8},
};

}  // namespace

TEST_CASE("22 element types, each with its name, its bits and its place in the writer's order") {
  CHECK(std::size(kRows) == static_cast<size_t>(DType::kBool) + 1);
  for (size_t i = 0; i < std::size(kRows); ++i) {
    const auto dtype = dtype_from_name(kRows[i].name);
    REQUIRE(dtype);
    CHECK(static_cast<size_t>(*dtype) == i);
    CHECK(std::string(dtype_name(*dtype)) == kRows[i].name);
    CHECK(dtype_bits(*dtype) == kRows[i].bits);
  }
  CHECK(dtype_from_name("F32") == DType::kF32);
  CHECK(dtype_from_name("U8") == DType::kU8);
  CHECK(dtype_from_name("F4") == DType::kF4);
}

TEST_CASE("element types are called exactly so: no other case, no blanks, no prefixes") {
  for (const char* name : {"", "f32", "F32 ", " F32", "F3", "F322", "F8", "FLOAT32", "F8_E4M3FN", "uint8"}) {
    CHECK(!dtype_from_name(name));
  }
}

}  // namespace dtype_test
