#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/half.h"
#include "kernels/numbers/quantize.h"

namespace quantize_rules_test {

// The rules by which block scales and global scales are chosen, against plain searches in this file.

using namespace twofour;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Quantized {
  std::vector<uint8_t> codes, scales;
  bool operator==(const Quantized&) const = default;
};

Quantized quantize(const QuantizeRule& rule, const GlobalScale& global, const std::vector<float>& weights) {
  Quantized out{std::vector<uint8_t>(weights.size() / 2), std::vector<uint8_t>(weights.size() / 16)};
  quantize_nvfp4(rule, global, weights, out.codes.data(), out.scales.data());
  return out;
}

std::vector<float> dequantize(Arithmetic arithmetic, float stored, const Quantized& q) {
  std::vector<float> weights(q.codes.size() * 2);
  dequantize_nvfp4(arithmetic, stored, q.codes.data(), q.scales.data(), weights);
  return weights;
}

/// Blocks of very different sizes, in BF16.
std::vector<float> some_weights(unsigned seed, size_t blocks) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> weights;
  for (size_t b = 0; b < blocks; ++b) {
    const float size = std::exp(4 * normal(random));
    for (int i = 0; i < 16; ++i) weights.push_back(bf16_to_float(bf16_from_float(normal(random) * size)));
  }
  return weights;
}

/// The squared error of a block if code 1.0 is worth `step`, added as quantize.h says.
float error_of(const float* x, float step) {
  std::array<float, 16> square;
  for (size_t i = 0; i < 16; ++i) {
    const float error = std::abs(x[i]) - e2m1_to_float(e2m1_from_float(std::abs(x[i]) / step)) * step;
    square[i] = error * error;
  }
  const auto pair = [&](size_t j) { return square[j] + square[j + 8]; };
  return ((pair(0) + pair(1)) + (pair(2) + pair(3))) + ((pair(4) + pair(5)) + (pair(6) + pair(7)));
}

double error_of(const std::vector<float>& weights, const std::vector<float>& found) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) sum += std::pow(double{weights[i]} - double{found[i]}, 2);
  return sum;
}

}  // namespace

TEST_CASE("ModelOpt's global scale is amax / 2688, and amax / 1536 for four over six") {
  CHECK(global_scale_of({}, 2688.0f).stored == 1.0f);
  CHECK(global_scale_of({}, 0.1f).stored == 0.1f / 2688.0f);
  CHECK(global_scale_of({.block_scale = BlockScale::mse}, 0.1f).stored == 0.1f / 2688.0f);
  CHECK(global_scale_of({.block_scale = BlockScale::four_over_six}, 0.1f).stored == 0.1f / 1536.0f);
  CHECK(global_scale_of({}, 0.0f).stored == 0.0f);
}

TEST_CASE("compressed-tensors' global scale rounds 1 / amax, then that times 2688, to the weights' type") {
  const auto stored = [](DType type, float amax) {
    return global_scale_of({.arithmetic = Arithmetic::compressed_tensors, .weight_type = type}, amax).stored;
  };
  CHECK(stored(DType::kBF16, 3.0f) == 896.0f);    // 0.333984375 * 2688 is 897.75; BF16 has 896 and 900
  CHECK(stored(DType::kBF16, 1.25f) == 2160.0f);  // 0.80078125 * 2688 is 2152.5; rounded once it were 2144
  CHECK(stored(DType::kF16, 3.0f) == 896.0f);     // 0.333251953125 * 2688 is 895.78; FP16 has 895.5 and 896
  CHECK(stored(DType::kF32, 3.0f) == (1.0f / 3.0f) * 2688.0f);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    CHECK(stored(type, 1.0f) == 2688.0f);
    CHECK(stored(type, 0.0f) == 1.0f);  // 1 / tiny * 2688 overflows
    CHECK(stored(type, kNan) == 1.0f);
    CHECK(stored(type, kInfinity) == 0.0f);
  }
  CHECK(stored(DType::kF16, 0.04f) == 1.0f);  // 67200 is beyond FP16
  CHECK(stored(DType::kF16, 0.0625f) == 43008.0f);
}

TEST_CASE("a global scale that is given is kept, and tells the amax") {
  CHECK(global_scale_from({}, 0.5f).stored == 0.5f);
  CHECK(global_scale_from({}, 0.5f).amax == 1344.0f);
  CHECK(global_scale_from({.block_scale = BlockScale::four_over_six}, 0.5f).amax == 768.0f);
  CHECK(global_scale_from({.arithmetic = Arithmetic::compressed_tensors}, 2.0f).amax == 1344.0f);
}

TEST_CASE("the largest magnitude sees signs and NaN") {
  std::vector<float> weights(35, -0.5f);
  CHECK(largest_magnitude(weights) == 0.5f);
  weights[34] = -7.0f;
  CHECK(largest_magnitude(weights) == 7.0f);
  weights[1] = -kNan;
  CHECK(std::isnan(largest_magnitude(weights)));
  CHECK(largest_magnitude({}) == 0.0f);
}

TEST_CASE("a quotient that underflows has no sign") {
  std::vector<float> weights(16, -0x1p-149f);
  weights[0] = 6.0f * 448.0f * 1024.0f;
  CHECK(quantize({}, {1024.0f, 0.0f}, weights).codes == std::vector<uint8_t>{0x07, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("a dequantized weight is its code times the step, for every code and scale") {
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    for (unsigned scale = 0; scale < 0x7F; ++scale) {
      const Quantized q{{0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE}, {static_cast<uint8_t>(scale)}};
      const float value = e4m3_to_float(scale);
      const float step = arithmetic == Arithmetic::modelopt ? value * 0.3f : value / 0.3f;
      REQUIRE(step_of(arithmetic, q.scales[0], 0.3f) == step);
      const std::vector<float> weights = dequantize(arithmetic, 0.3f, q);
      for (unsigned code = 0; code < 16; ++code) {
        REQUIRE(std::bit_cast<uint32_t>(weights[code]) ==
                std::bit_cast<uint32_t>(e2m1_to_float(code) * step));
      }
    }
  }
}

TEST_CASE("mse takes the best of all 126 block scales, of equal ones the smallest") {
  const std::vector<float> weights = some_weights(5, 300);
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    const QuantizeRule rule{.arithmetic = arithmetic, .block_scale = BlockScale::mse};
    const GlobalScale global = global_scale_of(rule, largest_magnitude(weights));
    const Quantized q = quantize(rule, global, weights);
    for (size_t b = 0; b < q.scales.size(); ++b) {
      unsigned best = 0;
      float least = kInfinity;
      for (unsigned byte = 1; byte < 0x7F; ++byte) {
        const float value = e4m3_to_float(byte);
        const float step =
            arithmetic == Arithmetic::modelopt ? value / 448.0f * global.amax / 6.0f : value / global.stored;
        const float error = error_of(&weights[16 * b], step);
        if (error < least) least = error, best = byte;
      }
      REQUIRE(unsigned{q.scales[b]} == best);
    }
  }
}

TEST_CASE("mse errs no more than four over six, and that no more than max") {
  const std::vector<float> weights = some_weights(6, 300);
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    const auto error = [&](BlockScale by) {
      const QuantizeRule rule{.arithmetic = arithmetic, .block_scale = by};
      const GlobalScale global = global_scale_of(rule, largest_magnitude(weights));
      return error_of(weights, dequantize(arithmetic, global.stored, quantize(rule, global, weights)));
    };
    CHECK(error(BlockScale::mse) < error(BlockScale::four_over_six));
    CHECK(error(BlockScale::four_over_six) < error(BlockScale::max));
  }
}

TEST_CASE("four over six: a block of 4 and 3 becomes 4 and 3, a block of 6 and 5 stays 6") {
  // The third block sets the global scale to 1 / 4.
  std::vector<float> weights(48, 0.0f);
  weights[0] = 4, weights[1] = 3, weights[2] = -2, weights[3] = 1, weights[16] = 6, weights[17] = -3;
  weights[32] = 1536.0f / 4;
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    const QuantizeRule rule{.arithmetic = arithmetic, .block_scale = BlockScale::four_over_six};
    const GlobalScale global = global_scale_of(rule, 1536.0f / 4);
    const Quantized q = quantize(rule, global, weights);
    CHECK(q.scales == std::vector<uint8_t>{e4m3_from_float(4), e4m3_from_float(4), e4m3_from_float(256)});
    CHECK(q.codes[0] == 0x56);  // 4, 3
    CHECK(q.codes[1] == 0x2C);  // -2, 1
    CHECK(q.codes[8] == 0xD7);  // 6, -3
    CHECK(q.codes[16] == 0x07);
  }
}

TEST_CASE("zero blocks: the producers' scales, or zero") {
  // +0, -0, a block half as large as the smallest scale's smallest code, one just large enough for that
  // scale.
  std::vector<float> weights(64, 0.0f);
  std::fill_n(weights.begin() + 16, 16, -0.0f);
  weights[32] = -6 * 0x1p-10f, weights[48] = 6 * 0x1.2p-10f;
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    for (const BlockScale by : {BlockScale::max, BlockScale::mse, BlockScale::four_over_six}) {
      QuantizeRule rule{.arithmetic = arithmetic, .block_scale = by};
      const GlobalScale global = global_scale_from(rule, 1.0f);
      rule.zero_block = ZeroBlock::zero;
      const Quantized zero = quantize(rule, global, weights);
      CHECK(zero.scales[0] == 0);
      CHECK(zero.scales[1] == 0);
      CHECK(zero.scales[2] == 0);
      CHECK(zero.scales[3] != 0);
      CHECK(std::count(zero.codes.begin(), zero.codes.begin() + 24, uint8_t{0}) == 24);

      rule.zero_block = ZeroBlock::producer;
      const Quantized producer = quantize(rule, global, weights);
      CHECK(std::count(producer.scales.begin(), producer.scales.end(), uint8_t{0}) == 0);
      CHECK(std::count(producer.codes.begin(), producer.codes.begin() + 16, uint8_t{0}) == 16);
      CHECK(producer.scales[3] == zero.scales[3]);
      if (by == BlockScale::max) {
        CHECK(unsigned{producer.scales[0]} == (arithmetic == Arithmetic::modelopt ? 0x38 : 0x20));
        CHECK(unsigned{producer.scales[2]} == (arithmetic == Arithmetic::modelopt ? 0x01 : 0x20));
      }
    }
  }
}

TEST_CASE("a matrix of zeros stays one where zero blocks are zero") {
  const std::vector<float> weights(32, 0.0f);
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    const QuantizeRule rule{.arithmetic = arithmetic, .zero_block = ZeroBlock::zero};
    const Quantized q = quantize(rule, global_scale_of(rule, 0.0f), weights);
    CHECK(q == Quantized{std::vector<uint8_t>(16), std::vector<uint8_t>(2)});
  }
}

TEST_CASE("dequantized weights and their own global scale give the same bytes, where blocks have a code 7") {
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    const std::vector<float> weights = some_weights(7, 300);
    const QuantizeRule rule{.arithmetic = arithmetic};
    const GlobalScale global = global_scale_of(rule, largest_magnitude(weights));
    const Quantized q = quantize(rule, global, weights);
    const std::vector<float> back = dequantize(arithmetic, global.stored, q);
    const Quantized again = quantize(rule, global_scale_from(rule, global.stored), back);
    size_t same = 0;
    for (size_t b = 0; b < q.scales.size(); ++b) {
      const auto codes = q.codes.begin() + static_cast<std::ptrdiff_t>(8 * b);
      const bool largest =
          std::any_of(codes, codes + 8, [](unsigned c) { return (c & 7) == 7 || (c & 0x70) == 0x70; });
      if (!largest) continue;
      REQUIRE(again.scales[b] == q.scales[b]);
      for (size_t j = 0; j < 16; ++j) {
        // A zero loses its sign.
        const auto code = [&](const Quantized& of) { return of.codes[8 * b + j / 2] >> j % 2 * 4 & 15; };
        REQUIRE(code(again) == (code(q) == 8 ? 0 : code(q)));
      }
      ++same;
    }
    CHECK(same > 150);
  }
}

}  // namespace quantize_rules_test
