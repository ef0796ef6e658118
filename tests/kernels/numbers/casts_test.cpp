#include "kernels/numbers/casts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/half.h"
#include "kernels/numbers/quantize.h"
#include "tests/support/weights/slow_float.h"

namespace casts_test {

// Casts of four bits on every instruction set, against the numbers one by one.

using namespace twofour;

namespace {

constexpr SlowFloat kE4m3{4, 3, 7, 0x7E};
constexpr size_t kBlockBytes = 16;
constexpr int kShifts = Mxfp4Shift::kCount;

std::vector<uint8_t> random_bytes(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

unsigned code_of(const std::vector<uint8_t>& codes, size_t i) { return codes[i / 2] >> i % 2 * 4 & 15u; }

/// By searching the values of E4M3.
uint8_t slow_byte(unsigned code, int shift) {
  const double value = std::ldexp(double{e2m1_to_float(code & 7u)}, shift);
  return static_cast<uint8_t>(static_cast<unsigned>(kE4m3.nearest(value)) | (code & 8u) << 4);
}

}  // namespace

TEST_CASE("every code under every shift becomes the nearest E4M3, whatever the number of blocks") {
  for (const Isa isa : available_isas()) {
    CAPTURE(isa_name(isa));
    for (size_t blocks = 0; blocks < 70; ++blocks) {
      std::vector<uint8_t> codes = random_bytes(blocks * kBlockBytes, 1), shifts;
      for (size_t b = 0; b < blocks; ++b) shifts.push_back(static_cast<uint8_t>((b * 7 + 3) % kShifts));
      std::vector<uint8_t> found(codes.size() * 2 + 64, 0xA5);
      cast_mxfp4_codes(codes, shifts.data(), found.data(), isa);
      for (size_t i = 0; i < 2 * codes.size(); ++i) {
        const int shift = shifts[i / 32] + Mxfp4Shift::kLowest;
        REQUIRE(found[i] == slow_byte(code_of(codes, i), shift));
      }
      for (size_t i = 2 * codes.size(); i < found.size(); ++i) REQUIRE(found[i] == 0xA5);
    }
  }
  CHECK(slow_byte(15, Mxfp4Shift::kLowest) == 0x80);
  CHECK(slow_byte(15, Mxfp4Shift::kLowest + 1) == 0x81);  // no shift is cut that leaves something
}

TEST_CASE("shifts are by how much a scale is above the FP8 scale, within what matters") {
  std::vector<uint8_t> scales;
  for (unsigned byte = 0; byte < 255; ++byte) scales.push_back(static_cast<uint8_t>(byte));
  for (int exponent = -127; exponent <= 121; ++exponent) {
    std::vector<uint8_t> shifts(scales.size());
    mxfp4_shifts(scales, std::ldexp(1.0f, exponent), shifts.data());
    for (size_t i = 0; i < scales.size(); ++i) {
      const int shift = scales[i] - 127 - exponent;
      const int expected = std::min(std::max(shift, Mxfp4Shift::kLowest), Mxfp4Shift::kHighest);
      REQUIRE(shifts[i] == Mxfp4Shift::byte_of(expected));
    }
  }
}

TEST_CASE("a block is exact where each of its codes is") {
  for (int shift = Mxfp4Shift::kLowest; shift <= Mxfp4Shift::kHighest; ++shift) {
    const uint8_t byte = Mxfp4Shift::byte_of(shift);
    for (unsigned code = 0; code < 16; ++code) {
      const double value = std::ldexp(double{e2m1_to_float(code)}, shift);
      const bool expected = double{e4m3_to_float(slow_byte(code, shift))} == value;
      if (shift >= Mxfp4Shift::kExact) CHECK(expected);
      for (size_t at = 0; at < 2 * kBlockBytes; ++at) {
        std::vector<uint8_t> codes(2 * kBlockBytes, 0x80);
        codes[kBlockBytes + at / 2] = static_cast<uint8_t>(code << at % 2 * 4);
        const uint8_t shifts[] = {byte, byte};
        REQUIRE(is_exact_cast(codes, shifts) == expected);
      }
    }
  }
}

TEST_CASE("the exponents of a tile are those of its blocks with a code that is not zero") {
  for (size_t at = 0; at < 2 * kBlockBytes; ++at) {
    std::vector<uint8_t> codes(3 * kBlockBytes, 0x88);
    codes[kBlockBytes + at / 2] |= static_cast<uint8_t>(1 << at % 2 * 4);
    const std::vector<uint8_t> scales = {0, 130, 254};
    Mxfp4Range range;
    CHECK(range.add(codes, scales) == -1);
    CHECK(range.low == 3);
    CHECK(range.high == 3);
  }
}

TEST_CASE("NVFP4 decodes to code times block scale, times the global scale, rounded once") {
  std::vector<uint8_t> scales;
  for (unsigned i = 0; i < 0x7F * 5; ++i) scales.push_back(static_cast<uint8_t>(i % 0x7F));
  const std::vector<uint8_t> codes = random_bytes(scales.size() * 8, 2);
  for (const float global : {1.0f, 0.37f, 1e-3f, 3e-38f, 1e-44f, 1e34f}) {
    for (const Isa isa : available_isas()) {
      CAPTURE(isa_name(isa));
      CAPTURE(global);
      for (const size_t blocks : {size_t{0}, size_t{1}, size_t{7}, size_t{129}, scales.size()}) {
        std::vector<float> found(16 * blocks + 1, 5);
        decode_nvfp4(std::span(codes).first(8 * blocks), std::span(scales).first(blocks), global,
                     found.data(), isa);
        for (size_t i = 0; i < 16 * blocks; ++i) {
          const float value = e2m1_to_float(code_of(codes, i)) * e4m3_to_float(scales[i / 16]) * global;
          REQUIRE(std::bit_cast<uint32_t>(found[i]) == std::bit_cast<uint32_t>(value));
        }
        CHECK(found.back() == 5);
      }
    }
  }
}

TEST_CASE("the largest product of a tile is that of its numbers one by one") {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint8_t> codes(8 * (1 + random() % 5)), scales(codes.size() / 8);
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(random() % 0x7F);
    const auto below =
        static_cast<unsigned>(1 + random() % 8);  // few large codes, so that small ones decide as well
    float largest = 0;
    for (size_t i = 0; i < 2 * codes.size(); ++i) {
      const auto code = static_cast<unsigned>(random() % below | random() % 2 << 3);
      codes[i / 2] = static_cast<uint8_t>(codes[i / 2] | code << i % 2 * 4);
      largest = std::max(largest, std::abs(e2m1_to_float(code)) * e4m3_to_float(scales[i / 16]));
    }
    REQUIRE(largest_product(codes, scales) == largest);
  }
}

TEST_CASE("floats become the nearest BF16, ties to even, NaN stays NaN") {
  std::mt19937 random(4);
  std::vector<float> numbers;
  for (unsigned upper = 0; upper < 0x10000; ++upper) {
    for (const unsigned lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      numbers.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  for (int i = 0; i < 10007; ++i) numbers.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (const Isa isa : available_isas()) {
    CAPTURE(isa_name(isa));
    for (const size_t count : {size_t{0}, size_t{5}, size_t{31}, numbers.size()}) {
      std::vector<uint8_t> found(2 * count + 1, 0xA5);
      round_to_bf16(std::span(numbers).last(count), found.data(), isa);
      for (size_t i = 0; i < count; ++i) {
        const uint16_t expected = bf16_from_float(numbers[numbers.size() - count + i]);
        REQUIRE(found[2 * i] + 256 * found[2 * i + 1] == expected);
      }
      CHECK(found.back() == 0xA5);
    }
  }
}

TEST_CASE("INT4 decodes to code less zero point, times scale, for groups of any size") {
  for (const int64_t group : {1, 7, 8, 32, 48, 128, 1000}) {
    for (const size_t count : {size_t{0}, size_t{5}, size_t{32}, size_t{97}, size_t{1000}}) {
      std::vector<uint8_t> codes = random_bytes(count, 5);
      for (uint8_t& code : codes) code &= 15;
      std::mt19937 random(6);
      std::vector<float> zeros, scales;
      for (size_t g = 0; g <= count; ++g) {
        zeros.push_back(static_cast<float>(random() % 17));
        scales.push_back(std::normal_distribution<float>()(random) * 0.3f);
      }
      for (const Isa isa : available_isas()) {
        CAPTURE(isa_name(isa));
        std::vector<float> found(count + 1, 5);
        decode_int4(codes, group, zeros.data(), scales.data(), found.data(), isa);
        for (size_t k = 0; k < count; ++k) {
          const size_t g = k / static_cast<size_t>(group);
          const float expected = (static_cast<float>(codes[k]) - zeros[g]) * scales[g];
          REQUIRE(std::bit_cast<uint32_t>(found[k]) == std::bit_cast<uint32_t>(expected));
        }
        CHECK(found.back() == 5);
      }
    }
  }
}

TEST_CASE("a sum of squares is that of the errors, to the last bit") {
  std::mt19937 random(3);
  std::vector<float> weights(1003);
  for (float& x : weights) x = std::normal_distribution<float>()(random) * std::exp2(float(random() % 60));
  for (const Isa isa : available_isas()) {
    for (size_t count = 0; count < weights.size(); count += 1 + count / 9) {
      const auto some = std::span(weights).first(count);
      CHECK(sum_of_squares(some, isa) == quantize_error_of(some, some, Isa::portable).weights_squared);
    }
  }
}

}  // namespace casts_test
