#include "kernels/numbers/dequantize.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace dequantize_test {

using namespace twofour;

namespace {

constexpr double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

double scale_value(unsigned byte) {
  const int e = static_cast<int>(byte >> 3), m = static_cast<int>(byte & 7);
  return e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
}

/// The nearest BF16 of a float, found among its two neighbours.
uint16_t nearest_bf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  const auto value = [](uint32_t upper) {
    const uint32_t whole = upper << 16;
    float f = 0;
    std::memcpy(&f, &whole, sizeof(f));
    return static_cast<double>(f);
  };
  const uint32_t low = bits >> 16, high = low + 1;
  const double below = std::abs(static_cast<double>(x) - value(low)),
               above = std::abs(value(high) - static_cast<double>(x));
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<uint16_t>(up ? high : low);
}

}  // namespace

TEST_CASE("every code under every block scale is the float product rounded to the nearest BF16") {
  for (const float global : {1.0f, 0.1f, 3.0e-5f, 1.17e-38f, 7.25e30f}) {
    for (unsigned scale = 0; scale < 0x7F; ++scale) {
      const std::vector<uint8_t> codes{0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE};
      const auto byte = static_cast<uint8_t>(scale);
      uint16_t found[16], slow[16];
      dequantize_bf16({codes.data(), &byte, 1, 1}, global, reinterpret_cast<uint8_t*>(found));
      dequantize_bf16_reference({codes.data(), &byte, 1, 1}, global, reinterpret_cast<uint8_t*>(slow));
      for (unsigned code = 0; code < 16; ++code) {
        const double exact = (code & 8 ? -1 : 1) * kMagnitudes[code & 7] * scale_value(scale);
        const float product = static_cast<float>(exact * static_cast<double>(global));
        CAPTURE(code);
        CAPTURE(scale);
        CHECK(found[code] == nearest_bf16(product));
        CHECK(slow[code] == found[code]);
      }
    }
  }
}

TEST_CASE("blocks of odd shapes are dequantized as weight by weight") {
  std::mt19937 random(1);
  for (const int64_t blocks : {1, 2, 5}) {
    for (const int64_t n : {1, 2, 7, 8, 33}) {
      std::vector<uint8_t> codes(static_cast<size_t>(8 * blocks * n)),
          scales(static_cast<size_t>(blocks * n));
      for (uint8_t& b : codes) b = static_cast<uint8_t>(random());
      for (uint8_t& b : scales) b = static_cast<uint8_t>(random() % 0x7F);
      std::vector<uint8_t> fast(codes.size() * 4), slow(codes.size() * 4);
      dequantize_bf16({codes.data(), scales.data(), blocks, n}, 0.3f, fast.data());
      dequantize_bf16_reference({codes.data(), scales.data(), blocks, n}, 0.3f, slow.data());
      CHECK((fast == slow));
    }
  }
}

}  // namespace dequantize_test
