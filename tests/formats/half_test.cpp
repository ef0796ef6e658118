#include "formats/half.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <limits>

#include "tests/support/weights/slow_float.h"

namespace half_test {

using namespace twofour;

namespace {

constexpr SlowFloat kBf16{8, 7, 127, 0x7F7F};
constexpr SlowFloat kFp16{5, 10, 15, 0x7BFF};

template <class Decode>
void check_decoding(const SlowFloat& format, Decode decode) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const unsigned magnitude = bits & 0x7FFF;
    const float value = decode(static_cast<uint16_t>(bits));
    CAPTURE(bits);
    CHECK(std::signbit(value) == (bits >= 0x8000));
    if (magnitude <= format.last) {
      CHECK(bits_of(value) == bits_of(static_cast<float>(format.value(bits))));
    } else {
      CHECK(std::isinf(value) == (magnitude == format.last + 1));
      CHECK(std::isnan(value) == (magnitude > format.last + 1));
    }
  }
}

template <class Decode, class Encode>
void check_round_trip(const SlowFloat& format, Decode decode, Encode encode) {
  const unsigned infinity = format.last + 1, quiet = 1u << (format.mantissa_bits - 1);
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const unsigned back = encode(decode(static_cast<uint16_t>(bits)));
    CAPTURE(bits);
    if ((bits & 0x7FFF) <= infinity) {
      CHECK(back == bits);
    } else {
      CHECK((back & 0x7FFF) > infinity);
      CHECK((back & quiet) != 0);
      CHECK((back & 0x8000) == (bits & 0x8000));
    }
  }
}

}  // namespace

TEST_CASE("each of the 65,536 BF16 patterns decodes as its bits say") {
  check_decoding(kBf16, bf16_to_float);
}

TEST_CASE("each of the 65,536 FP16 patterns decodes as its bits say") {
  check_decoding(kFp16, fp16_to_float);
}

TEST_CASE("each BF16 pattern survives decoding and encoding; NaN stays NaN and becomes quiet") {
  check_round_trip(kBf16, bf16_to_float, bf16_from_float);
}

TEST_CASE("each FP16 pattern survives decoding and encoding; NaN stays NaN and becomes quiet") {
  check_round_trip(kFp16, fp16_to_float, fp16_from_float);
}

// The last midpoint lies between the largest number and infinity.
TEST_CASE("a tie between two BF16 numbers goes to the even one, above the largest to infinity") {
  check_midpoints(kBf16, 0x7F80, bf16_from_float);
}

TEST_CASE("a tie between two FP16 numbers goes to the even one, above the largest to infinity") {
  check_midpoints(kFp16, 0x7C00, fp16_from_float);
}

TEST_CASE("far overflow of FP16 and BF16 gives infinity, underflow zero, both with their sign") {
  for (const float x :
       {65536.0f, 1e30f, std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity()}) {
    CHECK(fp16_from_float(x) == 0x7C00);
    CHECK(fp16_from_float(-x) == 0xFC00);
  }
  CHECK(bf16_from_float(std::numeric_limits<float>::max()) == 0x7F80);
  CHECK(bf16_from_float(-std::numeric_limits<float>::max()) == 0xFF80);
  for (const float x : {0.0f, 0x1p-126f, std::numeric_limits<float>::denorm_min()}) {
    CHECK(fp16_from_float(x) == 0x0000);
    CHECK(fp16_from_float(-x) == 0x8000);
  }
  CHECK(bf16_from_float(std::numeric_limits<float>::denorm_min()) == 0x0000);
  CHECK(bf16_from_float(-std::numeric_limits<float>::denorm_min()) == 0x8000);
}

}  // namespace half_test
