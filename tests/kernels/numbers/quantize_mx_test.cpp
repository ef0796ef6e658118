#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/half.h"
#include "formats/weight_format.h"
#include "kernels/numbers/quantize_mx.h"
#include "tests/support/weights/golden_quantize.h"

namespace quantize_mx_test {

using namespace twofour;

namespace {

/// The result in one of the two formats, with room behind it that must stay as it is.
struct Quantized {
  std::vector<uint8_t> codes, scales;
  Quantized(bool mxfp8, const MxRule& rule, const std::vector<float>& weights, Isa isa)
      : codes(weights.size() / (mxfp8 ? 1 : 2) + 64, 0xA5), scales(weights.size() / 32 + 64, 0xA5) {
    (mxfp8 ? quantize_mxfp8 : quantize_mxfp4)(rule, weights, codes.data(), scales.data(), isa);
    for (size_t i = 0; i < 64; ++i) {
      REQUIRE(codes[codes.size() - 1 - i] == 0xA5);
      REQUIRE(scales[scales.size() - 1 - i] == 0xA5);
    }
    codes.resize(codes.size() - 64);
    scales.resize(scales.size() - 64);
  }
};

/// Checks every byte of every case on every instruction set; returns how many cases there were.
int check_file(const std::string& name, bool mxfp8, Arithmetic arithmetic) {
  const GoldenQuantize golden(name);
  int count = 0;
  for (const std::string& key : golden.cases()) {
    CAPTURE(name);
    CAPTURE(key);
    const MxRule rule{arithmetic, golden.type(key + "weight")};
    const std::vector<float> weights = golden.weights(key + "weight");
    for (const Isa isa : available_isas()) {
      const Quantized found(mxfp8, rule, weights, isa);
      CHECK(differences(found.scales, golden.bytes(key + "block_scale")) == "");
      CHECK(differences(found.codes, golden.bytes(key + "codes")) == "");
    }
    ++count;
  }
  return count;
}

/// Numbers of a type with any bits, finite; or of one size, with zeros and ties.
std::vector<float> random_weights(DType type, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> weights(count);
  const float unit = std::exp2(static_cast<float>(static_cast<int>(seed % 60) - 30));
  for (size_t i = 0; i < count; ++i) {
    do {
      const auto bits = static_cast<uint32_t>(random());
      const auto half = static_cast<uint16_t>(bits);
      float& x = weights[i];
      if (i / 32 % 2 == 0) {
        x = type == DType::kF32    ? std::bit_cast<float>(bits)
            : type == DType::kBF16 ? bf16_to_float(half)
                                   : fp16_to_float(half);
      } else {
        x = unit * 0.25f * static_cast<float>(static_cast<int>(bits % 49) - 24) *
            (bits % 7 == 0 ? -0.0f : 1.0f);
        if (type == DType::kBF16) x = bf16_to_float(bf16_from_float(x));
        if (type == DType::kF16) x = fp16_to_float(fp16_from_float(x));
      }
    } while (!std::isfinite(weights[i]));
  }
  return weights;
}

}  // namespace

TEST_CASE("ModelOpt's own bytes of MXFP8 and MXFP4") {
  CHECK(check_file("modelopt_mxfp8", true, Arithmetic::modelopt) == 30);
  CHECK(check_file("modelopt_mxfp4", false, Arithmetic::modelopt) == 30);
}

TEST_CASE("compressed-tensors' own bytes of MXFP8 and MXFP4") {
  CHECK(check_file("compressed_tensors_mxfp8", true, Arithmetic::compressed_tensors) == 29);
  CHECK(check_file("compressed_tensors_mxfp4", false, Arithmetic::compressed_tensors) == 29);
}

TEST_CASE("compressed-tensors' own bytes of MXFP6, and its numbers") {
  const GoldenQuantize golden("compressed_tensors_mxfp6");
  int count = 0;
  for (const std::string& key : golden.cases()) {
    CAPTURE(key);
    const std::vector<float> weights = golden.weights(key + "weight");
    const MxRule rule{Arithmetic::compressed_tensors, golden.type(key + "weight")};
    std::vector<uint8_t> codes(weights.size() / 4 * 3), scales(weights.size() / 32);
    quantize_mx(WeightFormat::kMxfp6, rule, weights, codes.data(), scales.data());
    CHECK(differences(scales, golden.bytes(key + "block_scale")) == "");
    CHECK(differences(codes, golden.bytes(key + "codes")) == "");
    std::vector<float> back(weights.size());
    dequantize_mx(WeightFormat::kMxfp6, codes, scales, back.data());
    for (size_t i = 0; i < back.size(); ++i) {
      const size_t bit = 6 * i;
      const unsigned word = codes[bit / 8] | (bit / 8 + 1 < codes.size() ? codes[bit / 8 + 1] : 0u) << 8;
      REQUIRE(back[i] == e2m3_to_float(word >> bit % 8 & 63u) * e8m0_to_float(scales[i / 32]));
    }
    ++count;
  }
  CHECK(count == 32);
}

TEST_CASE("codes of a grid are its numbers, nearest, ties to the even code") {
  for (const CodeGrid& grid : {kE2m1Grid, kE2m3Grid, kE4m3Grid}) {
    const auto number = [&](unsigned code) {
      return grid.bits == 4   ? e2m1_to_float(code)
             : grid.bits == 6 ? e2m3_to_float(code)
                              : e4m3_to_float(code);
    };
    const unsigned last = grid == kE4m3Grid ? 126 : grid.sign() - 1;
    CHECK(number(last) == grid.largest);
    for (unsigned code = 0; code <= last; ++code) {
      for (const unsigned sign : {0u, grid.sign()})
        REQUIRE(code_from_float(grid, number(code | sign)) == (code | sign));
      if (code == last) break;
      const float middle = (number(code) + number(code + 1)) / 2;
      REQUIRE(code_from_float(grid, middle) == code + code % 2);
      REQUIRE(code_from_float(grid, std::nextafter(middle, 0.0f)) == code);
      REQUIRE(code_from_float(grid, std::nextafter(middle, 500.0f)) == code + 1);
    }
    CHECK(code_from_float(grid, INFINITY) == last);
    CHECK(code_from_float(grid, -1e30f) == (last | grid.sign()));
    CHECK(code_from_float(grid, -1e-30f) == grid.sign());
  }
}

TEST_CASE("MXFP8 and MXFP4 are the same bytes on every instruction set") {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
      for (unsigned seed = 0; seed < 60; ++seed) {
        const auto weights = random_weights(type, 32 * (1 + seed % 23), seed);
        for (const bool mxfp8 : {true, false}) {
          const Quantized expected(mxfp8, {arithmetic, type}, weights, Isa::portable);
          for (const Isa isa : available_isas()) {
            const Quantized found(mxfp8, {arithmetic, type}, weights, isa);
            REQUIRE(differences(found.scales, expected.scales) == "");
            REQUIRE(differences(found.codes, expected.codes) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("no block saturates under ModelOpt's scale but by float32's logarithm") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const auto weights = random_weights(DType::kF32, 32 * 8, seed);
    const Quantized mxfp8(true, {}, weights, best_isa()), mxfp4(false, {}, weights, best_isa());
    for (size_t i = 0; i < weights.size(); ++i) {
      const double size = std::fabs(double{weights[i]}), slack = 1 + 0x1p-17;
      REQUIRE(size <= 448 * std::ldexp(slack, mxfp8.scales[i / 32] - 127));
      REQUIRE(size <= 6 * std::ldexp(slack, mxfp4.scales[i / 32] - 127));
    }
  }
}

TEST_CASE("values of MXFP8 and MXFP4 are number times scale") {
  std::mt19937 random(5);
  std::vector<uint8_t> values(32 * 300), codes(16 * 300), scales(300);
  for (uint8_t& byte : values) byte = static_cast<uint8_t>(random() % 0x7F | (random() % 2 << 7));
  for (uint8_t& byte : codes) byte = static_cast<uint8_t>(random());
  for (uint8_t& byte : scales) byte = static_cast<uint8_t>(random() % 255);
  for (const Isa isa : available_isas()) {
    std::vector<float> from8(values.size()), from4(values.size());
    dequantize_mxfp8(values, scales, from8.data(), isa);
    dequantize_mxfp4(codes, scales, from4.data(), isa);
    for (size_t i = 0; i < values.size(); ++i) {
      const float unit = std::ldexp(1.0f, scales[i / 32] - 127);
      const unsigned code = codes[i / 2] >> i % 2 * 4 & 15u;
      REQUIRE(std::bit_cast<uint32_t>(from8[i]) == std::bit_cast<uint32_t>(e4m3_to_float(values[i]) * unit));
      REQUIRE(std::bit_cast<uint32_t>(from4[i]) == std::bit_cast<uint32_t>(e2m1_to_float(code) * unit));
    }
  }
}

}  // namespace quantize_mx_test
