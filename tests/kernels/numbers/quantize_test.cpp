#include "kernels/numbers/quantize.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "formats/e2m1.h"
#include "formats/e4m3.h"

namespace quantize_test {

using namespace twofour;

namespace {

struct Block {
  std::array<uint8_t, 8> codes;
  uint8_t scale;
  bool operator==(const Block&) const = default;
};

Block quantize(const std::array<float, 16>& x, float global_scale) {
  Block block{};
  quantize_nvfp4_row(x.data(), 16, global_scale, block.codes.data(), &block.scale);
  return block;
}

/// The nearest of the values of codes 0..count-1, ties to the even code; finite magnitudes only.
template <class Decode>
unsigned nearest(double magnitude, unsigned count, Decode decode) {
  unsigned best = 0;
  for (unsigned code = 1; code < count; ++code) {
    const double here = std::abs(magnitude - decode(code)), there = std::abs(magnitude - decode(best));
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return best;
}

/// The formula of quantize.h, step by step in float32, rounding by search.
Block quantize_slowly(const std::array<float, 16>& x, float global_scale) {
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::abs(v));
  const float six_g = 6.0f * global_scale;
  float ratio = amax / six_g;
  if (ratio == 0) ratio = 1;
  ratio = std::min(std::max(ratio, std::ldexp(1.0f, -9)), 448.0f);
  Block block{};
  block.scale =
      static_cast<uint8_t>(nearest(ratio, 0x7F, [](unsigned c) { return double{e4m3_to_float(c)}; }));
  const float divisor = e4m3_to_float(block.scale) * global_scale;
  for (size_t k = 0; k < 16; ++k) {
    const float quotient = x[k] / divisor;
    const unsigned magnitude =
        nearest(std::min(std::abs(quotient), 6.0f), 8, [](unsigned c) { return double{e2m1_to_float(c)}; });
    const unsigned code = magnitude | (std::signbit(quotient) ? 8u : 0u);
    block.codes[k / 2] = static_cast<uint8_t>(block.codes[k / 2] | code << (k % 2 * 4));
  }
  return block;
}

}  // namespace

TEST_CASE("values of E2M1 under a scale of one are stored as they are") {
  const Block block = quantize({0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0f, -0.5, -1, -1.5, -2, -3, -4, -6}, 1);
  CHECK(block.scale == 0x38);
  CHECK(block.codes == std::array<uint8_t, 8>{0x10, 0x32, 0x54, 0x76, 0x90, 0xBA, 0xDC, 0xFE});
}

TEST_CASE("a weight midway between two values takes the even code, and keeps its sign when it becomes zero") {
  // 0.25 -> 0, 0.75 -> 1, 1.25 -> 1, 1.75 -> 2, 2.5 -> 2, 3.5 -> 4, 5 -> 4
  const Block block =
      quantize({0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6}, 1);
  CHECK(block.scale == 0x38);
  CHECK(block.codes == std::array<uint8_t, 8>{0x20, 0x42, 0x64, 0x76, 0xA8, 0xCA, 0xEC, 0xFE});
}

TEST_CASE("a block of zeros has the scale 1") {
  const Block block = quantize({}, 0.25f);
  CHECK(block.scale == 0x38);
  CHECK(block.codes == std::array<uint8_t, 8>{});
}

TEST_CASE("a block too small for E4M3 takes the smallest scale, not zero") {
  std::array<float, 16> x{};
  x[0] = 0x1p-10f;   // half of the smallest scale
  x[1] = -0x1p-12f;  // an eighth of it: rounds to -0
  const Block block = quantize(x, 1);
  CHECK(block.scale == 0x01);
  CHECK(block.codes[0] == 0x81);
}

TEST_CASE("an outlier beyond 448 * 6 saturates scale and code") {
  std::array<float, 16> x{};
  x[3] = -1e30f;
  x[4] = std::numeric_limits<float>::infinity();
  x[5] = 448.0f;
  const Block block = quantize(x, 1);
  CHECK(block.scale == 0x7E);
  CHECK(block.codes == std::array<uint8_t, 8>{0x00, 0xF0, 0x27, 0, 0, 0, 0, 0});
}

TEST_CASE("a weight that is NaN shows in the block scale") {
  std::array<float, 16> x{};
  x[7] = std::numeric_limits<float>::quiet_NaN();
  x[8] = 1e9f;
  CHECK(e4m3_is_nan(quantize(x, 1).scale));
}

TEST_CASE("what NVFP4 represents survives, whatever the scale") {
  for (const float global_scale : {1.0f, 0x1p-11f, 0x1p7f}) {
    for (unsigned scale = 1; scale < 0x7F; ++scale) {
      std::array<float, 16> x{};
      for (unsigned code = 0; code < 16; ++code)
        x[code] = e2m1_to_float(code) * e4m3_to_float(scale) * global_scale;
      const Block block = quantize(x, global_scale);
      REQUIRE(block.scale == scale);
      REQUIRE(block.codes == std::array<uint8_t, 8>{0x10, 0x32, 0x54, 0x76, 0x90, 0xBA, 0xDC, 0xFE});
    }
  }
}

TEST_CASE("a row equals the formula block by block, on weights of any size") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const float spread : {1e-7f, 1e-3f, 0.02f, 1.0f, 3e4f}) {
    for (const float global_scale : {7.3e-6f, 0.00123f, 0.8f}) {
      constexpr size_t kBlocks = 200;
      std::vector<float> row(16 * kBlocks);
      for (float& x : row) x = normal(random) * spread * std::exp(normal(random));
      std::vector<uint8_t> codes(8 * kBlocks), scales(kBlocks);
      quantize_nvfp4_row(row.data(), 16 * kBlocks, global_scale, codes.data(), scales.data());
      for (size_t b = 0; b < kBlocks; ++b) {
        std::array<float, 16> x;
        std::copy_n(row.begin() + static_cast<std::ptrdiff_t>(16 * b), 16, x.begin());
        Block block{{}, scales[b]};
        std::copy_n(codes.begin() + static_cast<std::ptrdiff_t>(8 * b), 8, block.codes.begin());
        REQUIRE(block == quantize_slowly(x, global_scale));
      }
    }
  }
}

}  // namespace quantize_test
