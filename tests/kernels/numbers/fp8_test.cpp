#include "kernels/numbers/casts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "formats/e4m3.h"
#include "formats/half.h"
#include "tests/support/weights/slow_float.h"

namespace fp8_test {

using namespace twofour;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr SlowFloat kE4m3{4, 3, 7, 0x7E};

/// By searching the values of E4M3.
uint8_t slow_byte(float x) {
  return std::isnan(x) ? kE4m3Nan : static_cast<uint8_t>(kE4m3.nearest(std::clamp(x, -1e6f, 1e6f)));
}

void check_encoded(const std::vector<float>& weights, float scale) {
  std::vector<uint8_t> expected(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) expected[i] = slow_byte(weights[i] / scale);
  for (const Isa isa : available_isas()) {
    std::vector<uint8_t> found(weights.size() + 1, 0xA5);
    encode_fp8(weights, scale, found.data(), isa);
    CAPTURE(isa_name(isa));
    CAPTURE(scale);
    const auto at = std::mismatch(expected.begin(), expected.end(), found.begin()).first - expected.begin();
    CHECK(at == static_cast<std::ptrdiff_t>(expected.size()));
    CHECK(found.back() == 0xA5);
  }
}

}  // namespace

TEST_CASE("the scale of FP8 brings the largest magnitude to 448") {
  CHECK(fp8_scale_of(448.0f) == 1.0f);
  CHECK(fp8_scale_of(0.1f) == 0.1f / 448.0f);
  CHECK(fp8_scale_of(0.0f) == 1.0f);
  CHECK(fp8_scale_of(0x1p-149f) == 1.0f);  // underflows
}

TEST_CASE("every BF16 number becomes the nearest E4M3, NaN 0x7F") {
  std::vector<float> weights;
  for (unsigned bits = 0; bits < 0x10000; ++bits)
    weights.push_back(bf16_to_float(static_cast<uint16_t>(bits)));
  for (const float scale : {1.0f, 0.37f, 0x1p-20f, 3e-5f}) check_encoded(weights, scale);
}

TEST_CASE("ties of E4M3 and the floats beside them") {
  std::vector<float> weights;
  for (unsigned byte = 0; byte < 0x7F; ++byte) {
    const auto tie = static_cast<float>((kE4m3.value(byte) + kE4m3.value(byte + 1)) / 2);
    for (const float x :
         {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, kInfinity), e4m3_to_float(byte)}) {
      weights.insert(weights.end(), {x, -x});
    }
  }
  check_encoded(weights, 1.0f);
  check_encoded(weights, -1.0f);
}

TEST_CASE("random floats of any size, and any number of them") {
  std::mt19937 random(5);
  std::vector<float> weights(100003);
  for (float& x : weights) x = std::bit_cast<float>(static_cast<uint32_t>(random()));
  check_encoded(weights, 1.0f);
  for (float& x : weights)
    x = std::normal_distribution<float>()(random) * std::exp2(-static_cast<float>(random() % 20));
  check_encoded(weights, fp8_scale_of(4.0f));
  for (size_t count = 0; count < 40; ++count)
    check_encoded({weights.begin(), weights.begin() + static_cast<int>(count)}, 0.01f);
}

TEST_CASE("every byte of E4M3 decodes to its value times the scale") {
  std::vector<uint8_t> bytes;
  for (unsigned i = 0; i < 300; ++i) bytes.push_back(static_cast<uint8_t>(i));
  for (const float scale : {1.0f, 0.3f, 1e-38f, 1e37f}) {
    for (const Isa isa : available_isas()) {
      std::vector<float> found(bytes.size());
      decode_fp8(bytes, scale, found.data(), isa);
      for (size_t i = 0; i < bytes.size(); ++i) {
        CAPTURE(isa_name(isa));
        CAPTURE(i);
        if (e4m3_is_nan(bytes[i])) {
          CHECK(std::isnan(found[i]));
        } else {
          CHECK(bits_of(found[i]) == bits_of(static_cast<float>(kE4m3.value(bytes[i])) * scale));
        }
      }
    }
  }
}

}  // namespace fp8_test
