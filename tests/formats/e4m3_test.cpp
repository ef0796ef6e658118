#include "formats/e4m3.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <limits>

#include "tests/support/weights/slow_float.h"

namespace e4m3_test {

using namespace twofour;

namespace {

constexpr SlowFloat kFormat{4, 3, 7, 0x7E};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("landmarks of E4M3: 1 is 0x38, 448 is 0x7E, 2^-6 is 0x08, 2^-9 is 0x01") {
  CHECK(e4m3_to_float(0x38) == 1.0f);
  CHECK(e4m3_to_float(0x7E) == 448.0f);
  CHECK(e4m3_to_float(0x08) == 0x1p-6f);
  CHECK(e4m3_to_float(0x01) == 0x1p-9f);
  CHECK(e4m3_to_float(0xB8) == -1.0f);
}

TEST_CASE("every E4M3 code but NaN decodes as its bits say, -0 included") {
  for (unsigned code = 0; code < 256; ++code) {
    CAPTURE(code);
    if (code == 0x7F || code == 0xFF) continue;
    CHECK(bits_of(e4m3_to_float(code)) == bits_of(static_cast<float>(kFormat.value(code))));
    CHECK(e4m3_units(code & 0x7F) == std::ldexp(kFormat.value(code & 0x7F), 9));
  }
}

TEST_CASE("E4M3 has two NaN codes, 0x7F and 0xFF, and no infinity") {
  for (unsigned code = 0; code < 256; ++code) {
    const bool nan = code == 0x7F || code == 0xFF;
    CHECK(e4m3_is_nan(code) == nan);
    CHECK(std::isnan(e4m3_to_float(code)) == nan);
    CHECK(!std::isinf(e4m3_to_float(code)));
  }
}

TEST_CASE("a block scale is neither NaN nor negative, and -0 counts as negative") {
  for (unsigned code = 0; code < 256; ++code) {
    const bool allowed = !(code & 0x80) && code != 0x7F;
    CHECK(e4m3_is_block_scale(code) == allowed);
  }
}

TEST_CASE("every E4M3 code survives decoding and encoding, both NaN included") {
  for (unsigned code = 0; code < 256; ++code) CHECK(e4m3_from_float(e4m3_to_float(code)) == code);
}

TEST_CASE("a tie between two E4M3 codes goes to the even one, subnormals included") {
  check_midpoints(kFormat, 0x7E, e4m3_from_float);
}

TEST_CASE("E4M3 saturates at 448, infinities too, and never rounds a number to NaN") {
  for (const float x :
       {448.0f, 463.9f, 464.0f, 464.1f, 480.0f, 1e30f, std::numeric_limits<float>::max(), kInfinity}) {
    CHECK(e4m3_from_float(x) == 0x7E);
    CHECK(e4m3_from_float(-x) == 0xFE);
  }
}

TEST_CASE("what rounds to zero in E4M3 keeps its sign") {
  for (const float x : {0.0f, std::numeric_limits<float>::denorm_min(), 0x1p-126f, 0x1p-11f, 0x1p-10f}) {
    CHECK(e4m3_from_float(x) == 0x00);
    CHECK(e4m3_from_float(-x) == 0x80);
  }
}

TEST_CASE("NaN stays NaN in E4M3 and keeps its sign") {
  for (const uint32_t bits : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu}) {
    CHECK(e4m3_from_float(std::bit_cast<float>(bits)) == 0x7F);
    CHECK(e4m3_from_float(std::bit_cast<float>(bits | 0x80000000u)) == 0xFF);
  }
}

TEST_CASE("E4M3 encoding picks the nearest code all over the floats") {
  for (uint64_t bits = 0; bits <= 0xFFFFFFFF; bits += 99991) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!std::isfinite(x)) continue;
    REQUIRE(e4m3_from_float(x) == kFormat.nearest(x));
  }
}

}  // namespace e4m3_test
