#include "formats/e8m0.h"

#include <doctest/doctest.h>

#include <cmath>
#include <initializer_list>
#include <limits>

namespace e8m0_test {

using namespace twofour;

TEST_CASE("every E8M0 code is a power of two, the smallest a subnormal float, 0xFF NaN") {
  for (unsigned code = 0; code < 255; ++code) {
    CHECK(e8m0_to_float(code) == std::ldexp(1.0f, static_cast<int>(code) - 127));
  }
  CHECK(std::isnan(e8m0_to_float(0xFF)));
}

TEST_CASE("every E8M0 code survives decoding and encoding, NaN included") {
  for (unsigned code = 0; code < 256; ++code) CHECK(e8m0_from_float(e8m0_to_float(code)) == code);
}

TEST_CASE("what is no power of two of E8M0's range is NaN, never rounded") {
  for (unsigned code = 0; code < 255; ++code) {
    const float power = e8m0_to_float(code);
    CHECK(e8m0_from_float(std::nextafter(power, 0.0f)) == kE8m0Nan);
    CHECK(e8m0_from_float(std::nextafter(power, std::numeric_limits<float>::infinity())) == kE8m0Nan);
    CHECK(e8m0_from_float(-power) == kE8m0Nan);
  }
  for (const float x : {0.0f, -0.0f, 0x1p-128f, std::numeric_limits<float>::denorm_min(),
                        std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(e8m0_from_float(x) == kE8m0Nan);
    CHECK(e8m0_from_float(-x) == kE8m0Nan);
  }
}

}  // namespace e8m0_test
