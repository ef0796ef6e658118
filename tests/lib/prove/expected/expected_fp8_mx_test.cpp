#include "lib/prove/expected/expected_fp8_mx.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <random>

#include "formats/error.h"
#include "kernels/numbers/casts.h"
#include "tests/support/weights/golden_quantize.h"

namespace expected_fp8_mx_test {

using namespace twofour;

namespace {

/// Holds what validate derives against the producers' own bytes; returns how many cases there were.
int check_file(const std::string& name, const std::string& to, const char* arithmetic) {
  const GoldenQuantize golden(name);
  const ExpectedMx format = *expected_mx(to);
  int count = 0;
  for (const std::string& key : golden.cases()) {
    CAPTURE(name);
    CAPTURE(key);
    const std::vector<float> weights = golden.weights(key + "weight");
    std::vector<uint8_t> codes(weights.size()), scales(weights.size() / 32);
    for (size_t b = 0; b < scales.size(); ++b) {
      scales[b] =
          expect_mx_block(format, arithmetic, golden.type(key + "weight"),
                          std::span(weights).subspan(32 * b, 32), std::span(codes).subspan(32 * b, 32));
    }
    if (format == ExpectedMx::kMxfp4) {
      for (size_t i = 0; i < codes.size() / 2; ++i) {
        codes[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
      }
      codes.resize(codes.size() / 2);
    } else if (format == ExpectedMx::kMxfp6) {
      for (size_t i = 0; i < codes.size(); i += 4) {
        const int word = codes[i] + codes[i + 1] * 64 + codes[i + 2] * 4096 + codes[i + 3] * 262144;
        for (size_t j = 0; j < 3; ++j) codes[i / 4 * 3 + j] = static_cast<uint8_t>(word >> 8 * j);
      }
      codes.resize(codes.size() / 4 * 3);
    }
    CHECK(differences(scales, golden.bytes(key + "block_scale")) == "");
    CHECK(differences(codes, golden.bytes(key + "codes")) == "");
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("the proof's MXFP8, MXFP6 and MXFP4 are the producers' own bytes") {
  CHECK(check_file("modelopt_mxfp8", "mxfp8", "modelopt") == 30);
  CHECK(check_file("modelopt_mxfp4", "mxfp4", "modelopt") == 30);
  CHECK(check_file("compressed_tensors_mxfp8", "mxfp8", "compressed-tensors") == 29);
  CHECK(check_file("compressed_tensors_mxfp4", "mxfp4", "compressed-tensors") == 29);
  CHECK(check_file("compressed_tensors_mxfp6", "mxfp6", "compressed-tensors") == 32);
}

TEST_CASE("the proof's FP8 scales and bytes agree with the encoder's") {
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    const auto bits = static_cast<uint32_t>(random()) & 0x7FFFFFFF;
    const float amax = std::bit_cast<float>(i % 4 == 0 ? bits & 0x7FFFFF : bits);
    if (!std::isfinite(amax)) continue;
    for (const char* word : {"f32", "bf16", "e8m0"}) {
      const DType type = expected_scale_type(word);
      const float scale = expected_fp8_scale(type, amax);
      REQUIRE(scale == round_scale(type, fp8_scale_of(amax)));
      uint8_t stored[4] = {};
      store_scales(type, {&scale, 1}, stored);
      uint32_t found = 0;
      std::memcpy(&found, stored, sizeof(found));
      REQUIRE(found == expected_scale_bits(type, scale));
      const float weight = amax * (1 - 0x1p-20f * static_cast<float>(random() % 0x100000));
      uint8_t byte = 0;
      encode_fp8({&weight, 1}, scale, &byte);
      REQUIRE(byte == expected_fp8(weight, scale));
    }
  }
  CHECK(expected_fp8_scale(DType::kF8E8M0, 448) == 1);
  CHECK(expected_fp8_scale(DType::kF8E8M0, std::nextafter(448.0f, 1000.0f)) == 2);
  CHECK(expected_fp8_scale(DType::kF8E8M0, 0) == 1);
}

TEST_CASE("the proof's scales of tiles agree with the encoder's") {
  std::mt19937 random(9);
  for (int round = 0; round < 5000; ++round) {
    std::vector<uint8_t> codes(64), fours(4), eights(8);
    for (uint8_t& byte : codes) byte = static_cast<uint8_t>(random() % (round % 7 == 0 ? 1 : 256));
    for (uint8_t& byte : fours) byte = static_cast<uint8_t>(random() % 255);
    for (uint8_t& byte : eights) byte = static_cast<uint8_t>(random() % 0x7F);
    ExpectedProducts mxfp4, nvfp4;
    Mxfp4Range range;
    range.add(codes, fours);
    for (size_t b = 0; b < 4; ++b) mxfp4.add_mxfp4(std::span(codes).subspan(16 * b, 16), fours[b]);
    for (size_t b = 0; b < 8; ++b) nvfp4.add_nvfp4(std::span(codes).subspan(8 * b, 8), eights[b]);
    const auto power = static_cast<int>(random() % 250) - 125;
    const float global = std::ldexp(round % 2 ? 1.0f : 1.37f, power);
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF8E8M0}) {
      REQUIRE(expected_mxfp4_tile(type, mxfp4) == mxfp4_tile_scale(type, range));
      const float scale = nvfp4_tile_scale(type, largest_product(codes, eights), global);
      REQUIRE(expected_nvfp4_tile(type, nvfp4, global).value_or(0) == scale);
    }
  }
}

TEST_CASE("words without a proof are refused") {
  CHECK(!expected_mx("fp8"));
  CHECK(expected_block("tensor", "", 5, 300).rows == 5);
  CHECK(expected_block("row", "", 5, 300).rows == 1);
  CHECK(expected_block("row", "", 5, 300).width == 300);
  CHECK(expected_block("block", "128x128", 5, 300).rows == 128);
  CHECK(expected_block("block", "1x128", 5, 300).rows == 1);
  CHECK(expected_block("block", "32x32", 5, 300).width == 32);
  CHECK_THROWS_AS(expected_block("column", "", 5, 300), Error);
  CHECK_THROWS_AS(expected_block("block", "64x64", 5, 300), Error);
  CHECK_THROWS_AS(expected_scale_type("f16"), Error);
  std::vector<float> weights(32);
  std::vector<uint8_t> codes(32);
  CHECK_THROWS_AS(expect_mx_block(ExpectedMx::kMxfp8, "", DType::kF32, weights, codes), Error);
}

}  // namespace expected_fp8_mx_test
