#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/half.h"
#include "kernels/numbers/quantize.h"

namespace quantize_isa_test {

// Every instruction set gives the bytes of the portable loops, which other tests hold against the producers.

using namespace twofour;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Blocks that are hard in different ways, at sizes around `size`.
class Weights {
 public:
  Weights(unsigned seed, float size) : random_(seed), size_(size) {}

  std::vector<float> blocks(size_t count) {
    std::vector<float> weights;
    for (size_t b = 0; b < count; ++b) {
      const auto kind = static_cast<unsigned>(random_() % 16);
      const float unit = size_ * std::exp2(static_cast<float>(static_cast<int>(random_() % 9) - 4));
      for (size_t i = 0; i < 16; ++i) weights.push_back(weight(kind, unit));
      if (kind == 10) weights[weights.size() - 1 - random_() % 16] = 50 * unit;
    }
    return weights;
  }

  /// Any bits: NaN, infinities, subnormals.
  std::vector<float> bits(size_t count) {
    std::vector<float> weights(16 * count);
    for (float& x : weights) x = std::bit_cast<float>(static_cast<uint32_t>(random_()));
    return weights;
  }

 private:
  float weight(unsigned kind, float unit) {
    const float sign = random_() % 2 ? 1.0f : -1.0f;
    switch (kind) {
      case 0:
        return sign * 0.0f;
      case 1:  // what a step represents
        return e2m1_to_float(static_cast<unsigned>(random_() % 16)) * unit;
      case 2:  // ties of a step, and their neighbours
        return sign * next(0.25f * static_cast<float>(random_() % 25) * unit);
      case 3:
        return sign * unit;
      case 4:  // few weights that are not zero
        return random_() % 8 ? sign * 0.0f : normal_(random_) * unit;
      case 5:  // all of one octave
        return sign * unit * (1 + static_cast<float>(random_() % 1024) / 1024);
      case 6:  // two sizes far apart
        return sign * (random_() % 4 ? unit * 0x1p-9f : unit) *
               (1 + 0x1p-7f * static_cast<float>(random_() % 128));
      case 7:
        return sign * std::bit_cast<float>(static_cast<uint32_t>(random_() % 0x800000));
      case 8:
        return sign * unit * std::exp2(-static_cast<float>(random_() % 40));
      case 9:
        return random_() % 16 ? normal_(random_) * unit : random_() % 2 ? kNan : sign * kInfinity;
      case 11:
        return random_() % 20 ? sign * unit : sign * kNan;
      case 12:
        return normal_(random_) * unit;
      default:
        return bf16_to_float(bf16_from_float(normal_(random_) * unit));
    }
  }
  float next(float x) {
    const auto way = random_() % 3;
    return way == 0 ? x : std::nextafter(x, way == 1 ? 0.0f : kInfinity);
  }

  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  float size_;
};

std::vector<QuantizeRule> all_rules() {
  std::vector<QuantizeRule> rules;
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    for (const BlockScale by : {BlockScale::max, BlockScale::mse, BlockScale::four_over_six}) {
      for (const ZeroBlock zero : {ZeroBlock::producer, ZeroBlock::zero}) {
        for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
          if (arithmetic == Arithmetic::modelopt && type != DType::kF32) continue;
          rules.push_back({arithmetic, by, zero, type});
        }
      }
    }
  }
  return rules;
}

/// Codes and scales, with room after them that must stay as it is.
struct Quantized {
  std::vector<uint8_t> codes, scales;
  Quantized(const QuantizeRule& rule, const GlobalScale& global, const std::vector<float>& weights, Isa isa)
      : codes(weights.size() / 2 + 64, 0xA5), scales(weights.size() / 16 + 64, 0xA5) {
    quantize_nvfp4(rule, global, weights, codes.data(), scales.data(), isa);
  }
};

/// The smallest of the block scales with the least squared error, by trying them all.
unsigned best_of_all(const QuantizeRule& rule, const GlobalScale& global, const float* x) {
  unsigned best = 0;
  float least = kInfinity;
  for (unsigned byte = 1; byte < 0x7F; ++byte) {
    const float scale = e4m3_to_float(byte);
    const float step =
        rule.arithmetic == Arithmetic::modelopt ? scale / 448.0f * global.amax / 6.0f : scale / global.stored;
    float pair[8];
    for (size_t j = 0; j < 8; ++j) {
      float square[2];
      for (size_t half = 0; half < 2; ++half) {
        const float size = std::abs(x[j + 8 * half]);
        const float error = size - e2m1_to_float(e2m1_from_float(size / step)) * step;
        square[half] = error * error;
      }
      pair[j] = square[0] + square[1];
    }
    const float error =
        ((pair[0] + pair[1]) + (pair[2] + pair[3])) + ((pair[4] + pair[5]) + (pair[6] + pair[7]));
    if (error < least) least = error, best = byte;
  }
  return best;
}

void check_equal(const QuantizeRule& rule, const GlobalScale& global, const std::vector<float>& weights) {
  const Quantized expected(rule, global, weights, Isa::portable);
  CHECK(std::all_of(expected.codes.end() - 64, expected.codes.end(), [](uint8_t b) { return b == 0xA5; }));
  for (const Isa isa : available_isas()) {
    const Quantized found(rule, global, weights, isa);
    const auto arithmetic = static_cast<int>(rule.arithmetic), by = static_cast<int>(rule.block_scale);
    const bool zero = rule.zero_block == ZeroBlock::zero;
    CAPTURE(isa_name(isa));
    CAPTURE(arithmetic);
    CAPTURE(by);
    CAPTURE(zero);
    CAPTURE(dtype_name(rule.weight_type));
    CAPTURE(global.stored);
    CAPTURE(global.amax);
    const auto scale =
        std::mismatch(expected.scales.begin(), expected.scales.end(), found.scales.begin()).first;
    const auto code = std::mismatch(expected.codes.begin(), expected.codes.end(), found.codes.begin()).first;
    CHECK(scale - expected.scales.begin() == static_cast<std::ptrdiff_t>(expected.scales.size()));
    CHECK(code - expected.codes.begin() == static_cast<std::ptrdiff_t>(expected.codes.size()));
  }
}

}  // namespace

TEST_CASE("every instruction set quantizes hard blocks to the same bytes, under their own global scale") {
  unsigned seed = 1;
  for (const QuantizeRule& rule : all_rules()) {
    for (const float size : {0.02f, 3.0f, 1e-6f, 1e-30f, 1e4f, 1e30f}) {
      Weights source(seed++, size);
      const std::vector<float> weights = source.blocks(147);
      float amax = 0;
      for (const float x : weights) amax = std::isfinite(x) ? std::max(amax, std::abs(x)) : amax;
      check_equal(rule, global_scale_of(rule, amax), weights);
    }
  }
}

TEST_CASE("mse leaves out no block scale that would have won: hard blocks, against trying all 126") {
  Weights source(41, 0.02f);
  std::vector<float> weights = source.blocks(1600);
  for (float& x : weights) x = std::isfinite(x) ? x : 0.01f;
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    const QuantizeRule rule{.arithmetic = arithmetic, .block_scale = BlockScale::mse};
    // The largest magnitude's own global scale, and two by which blocks fall off either end.
    for (const float amax : {largest_magnitude(weights), 0x1p-9f, 0x1p9f}) {
      const GlobalScale global = global_scale_of(rule, amax);
      std::vector<unsigned> expected;
      for (size_t at = 0; at < weights.size(); at += 16)
        expected.push_back(best_of_all(rule, global, &weights[at]));
      for (const Isa isa : available_isas()) {
        const Quantized found(rule, global, weights, isa);
        for (size_t b = 0; b < expected.size(); ++b) {
          if (std::all_of(&weights[16 * b], &weights[16 * b] + 16, [](float x) { return x == 0; })) continue;
          CAPTURE(isa_name(isa));
          CAPTURE(b);
          REQUIRE(unsigned{found.scales[b]} == expected[b]);
        }
      }
    }
  }
}

TEST_CASE("every instruction set quantizes to the same bytes under any global scale") {
  unsigned seed = 100;
  for (const QuantizeRule& rule : all_rules()) {
    for (const float stored : {1.0f, 0.3f, 1e-5f, 700.0f, 1e-20f, 1e20f, 1e-38f, 0x1p-149f, 3e38f, 0.0f,
                               -0.0f, -2.0f, kInfinity, kNan, -kNan}) {
      Weights source(seed++, 1.0f);
      check_equal(rule, global_scale_from(rule, stored), source.blocks(49));
      check_equal(rule, {stored, 3.0f}, source.bits(33));
      check_equal(rule, {1.0f, stored}, source.blocks(33));
    }
  }
}

TEST_CASE("every instruction set quantizes weights that FP16 cannot hold as the rule says") {
  for (const BlockScale by : {BlockScale::max, BlockScale::mse, BlockScale::four_over_six}) {
    const QuantizeRule rule{
        .arithmetic = Arithmetic::compressed_tensors, .block_scale = by, .weight_type = DType::kF16};
    // Quotients that round to zero.
    Weights source(13, 1e-8f);
    check_equal(rule, global_scale_from(rule, 0x1p30f), source.blocks(99));
    // Quotients around 65520, from where on they round to infinity.
    std::vector<float> weights(48 * 16, 100.0f);
    for (size_t b = 0; b < 48; ++b)
      weights[17 * b % 16 + 16 * b] = 6 * (65520.0f + 0.125f * (static_cast<float>(b) - 24));
    check_equal(rule, global_scale_from(rule, 1e-3f), weights);
  }
}

TEST_CASE("every instruction set quantizes any number of blocks, at any address") {
  Weights source(7, 0.1f);
  const std::vector<float> weights = source.blocks(40);
  for (const BlockScale by : {BlockScale::max, BlockScale::mse, BlockScale::four_over_six}) {
    const QuantizeRule rule{.block_scale = by};
    for (size_t count = 0; count <= 40; ++count) {
      check_equal(rule, global_scale_of(rule, 3.0f),
                  {weights.begin(), weights.begin() + static_cast<int>(16 * count)});
    }
    std::vector<float> moved(weights.size() + 1);
    for (size_t shift : {0, 1}) {
      std::copy(weights.begin(), weights.end(), moved.begin() + static_cast<int>(shift));
      std::vector<uint8_t> codes(321), scales(41);
      quantize_nvfp4(rule, global_scale_of(rule, 3.0f), {moved.data() + shift, weights.size()},
                     codes.data() + shift, scales.data() + shift);
      const Quantized expected(rule, global_scale_of(rule, 3.0f), weights, Isa::portable);
      CHECK(std::equal(codes.begin() + static_cast<int>(shift), codes.begin() + static_cast<int>(shift) + 320,
                       expected.codes.begin()));
    }
  }
}

TEST_CASE("every instruction set finds the largest magnitude, NaN above all") {
  std::mt19937 random(11);
  for (const size_t count : {0, 1, 15, 16, 63, 64, 65, 127, 1000}) {
    std::vector<float> weights(count);
    for (float& x : weights) x = std::normal_distribution<float>()(random);
    for (const float odd : {1.0f, -100.0f, kInfinity, -kNan, std::bit_cast<float>(0x7F800001u)}) {
      if (count > 0) weights[random() % count] = odd;
      const uint32_t expected = std::bit_cast<uint32_t>(largest_magnitude(weights, Isa::portable));
      uint32_t largest = 0;
      for (const float x : weights) largest = std::max(largest, std::bit_cast<uint32_t>(x) & 0x7FFFFFFF);
      CHECK(expected == largest);
      for (const Isa isa : available_isas()) {
        CHECK(std::bit_cast<uint32_t>(largest_magnitude(weights, isa)) == expected);
      }
    }
  }
}

TEST_CASE("every instruction set dequantizes every code under every scale byte to the same value") {
  std::vector<uint8_t> codes, scales;
  for (unsigned scale = 0; scale < 256; ++scale) {
    scales.push_back(static_cast<uint8_t>(scale));
    for (unsigned j = 0; j < 8; ++j) codes.push_back(static_cast<uint8_t>(j * 0x22 + 0x10 + 8 * (scale % 2)));
  }
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    for (const float stored : {0.3f, 1e-38f, 1e38f}) {
      for (const Isa isa : available_isas()) {
        std::vector<float> found(4096);
        dequantize_nvfp4(arithmetic, stored, codes.data(), scales.data(), found, isa);
        for (size_t i = 0; i < found.size(); ++i) {
          const float expected = e2m1_to_float((codes[i / 2] >> 4 * (i % 2)) & 15u) *
                                 step_of(arithmetic, scales[i / 16], stored);
          // The sign of NaN is the compiler's choice.
          if (std::isnan(expected)) {
            REQUIRE(std::isnan(found[i]));
          } else {
            REQUIRE(std::bit_cast<uint32_t>(found[i]) == std::bit_cast<uint32_t>(expected));
          }
        }
      }
    }
  }
}

TEST_CASE("the sums of errors are the same for every instruction set, and what they should be") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const size_t count : {0, 1, 15, 16, 17, 160, 4099}) {
    std::vector<float> weights(count), values(count);
    std::vector<double> lanes[3];
    for (auto& sums : lanes) sums.resize(16);
    long double squares = 0;
    double largest = 0;
    for (size_t i = 0; i < count; ++i) {
      weights[i] = normal(random) * std::exp(5 * normal(random));
      values[i] = weights[i] * (1 + 0.1f * normal(random));
      const double w = weights[i], q = values[i];
      lanes[0][i % 16] += w * w;
      lanes[1][i % 16] += (w - q) * (w - q);
      lanes[2][i % 16] += w * q;
      largest = std::max(largest, std::abs(w - q));
      squares += static_cast<long double>(w) * w;
    }
    const auto sum = [](const std::vector<double>& x) {
      double half[4];
      for (size_t j = 0; j < 4; ++j) half[j] = (x[j] + x[j + 8]) + (x[j + 4] + x[j + 12]);
      return (half[0] + half[2]) + (half[1] + half[3]);
    };
    for (const Isa isa : available_isas()) {
      const QuantizeError error = quantize_error_of(weights, values, isa);
      CHECK(error.weights_squared == sum(lanes[0]));
      CHECK(error.errors_squared == sum(lanes[1]));
      CHECK(error.products == sum(lanes[2]));
      CHECK(error.largest == largest);
      CHECK(error.weights_squared == doctest::Approx(static_cast<double>(squares)).epsilon(1e-12));
    }
  }
  QuantizeError total{1, 2, 3, 4};
  total += {10, 20, 30, 3};
  CHECK(total.weights_squared == 11);
  CHECK(total.errors_squared == 22);
  CHECK(total.products == 33);
  CHECK(total.largest == 4);
}

}  // namespace quantize_isa_test
