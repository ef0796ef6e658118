#include "formats/e2m1.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <limits>

#include "tests/support/weights/slow_float.h"

namespace e2m1_test {

using namespace twofour;

namespace {

constexpr SlowFloat kFormat{2, 1, 1, 7};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("the eight magnitudes of E2M1 are 0, 0.5, 1, 1.5, 2, 3, 4 and 6") {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (unsigned code = 0; code < 8; ++code) {
    CHECK(e2m1_to_float(code) == kMagnitudes[code]);
    CHECK(e2m1_to_float(code | 8) == -kMagnitudes[code]);
  }
}

TEST_CASE("every E2M1 code decodes as its bits say, -0 included") {
  for (unsigned code = 0; code < 16; ++code) {
    CAPTURE(code);
    CHECK(bits_of(e2m1_to_float(code)) == bits_of(static_cast<float>(kFormat.value(code))));
    CHECK(e2m1_halves(code) == 2 * kFormat.value(code & 7));
  }
}

TEST_CASE("every E2M1 code survives decoding and encoding") {
  for (unsigned code = 0; code < 16; ++code) CHECK(e2m1_from_float(e2m1_to_float(code)) == code);
}

TEST_CASE("a tie between two E2M1 codes goes to the even one") {
  check_midpoints(kFormat, 7, e2m1_from_float);
}

TEST_CASE("E2M1 saturates at 6, infinities too") {
  for (const float x : {6.0f, 6.5f, 7.0f, 8.0f, 1e30f, std::numeric_limits<float>::max(), kInfinity}) {
    CHECK(e2m1_from_float(x) == 7);
    CHECK(e2m1_from_float(-x) == 15);
  }
}

TEST_CASE("what rounds to zero in E2M1 keeps its sign") {
  for (const float x : {0.0f, std::numeric_limits<float>::denorm_min(), 0x1p-126f, 0.1f, 0.25f}) {
    CHECK(e2m1_from_float(x) == 0);
    CHECK(e2m1_from_float(-x) == 8);
  }
}

TEST_CASE("NaN of either sign becomes E2M1 code 7") {
  for (const uint32_t bits : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFC00000u, 0xFFFFFFFFu}) {
    CHECK(e2m1_from_float(std::bit_cast<float>(bits)) == 7);
  }
}

TEST_CASE("E2M1 encoding picks the nearest code all over the floats") {
  for (uint64_t bits = 0; bits <= 0xFFFFFFFF; bits += 9973) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!std::isfinite(x)) continue;
    REQUIRE(e2m1_from_float(x) == kFormat.nearest(x));
  }
}

}  // namespace e2m1_test
