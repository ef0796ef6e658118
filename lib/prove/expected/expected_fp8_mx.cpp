#include "lib/prove/expected/expected_fp8_mx.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/error.h"
#include "formats/half.h"
#include "formats/weight_format.h"

namespace twofour {
namespace {

[[noreturn]] void refuse(const char* what, const char* expected, std::string_view found) {
  throw Error(fmt::format("{}: expected {}, found '{}', for which there is no proof", what, expected, found));
}

/// ModelOpt's exponent. It is the exponent of the smallest power of two that is at least largest / range. The
/// logarithm is in float32.
int modelopt_exponent(float largest, float range) {
  const float quotient = largest / range;
  if (quotient == 0) return -127;
  const auto logarithm = static_cast<float>(std::log2(double{quotient}));
  return static_cast<int>(std::max(std::ceil(logarithm), -127.0f));
}

/// compressed-tensors' exponent. It is the exponent of the power of two below the largest weight, or above it
/// if the weight is at least 2 * `up` times the lower power, minus the exponent of the format's largest
/// number.
int compressed_tensors_exponent(float largest, DType type, int of_format, double up) {
  const bool half = type == DType::kF16;
  const int smallest = half ? -14 : -126;
  int exponent = 0;
  const double fraction = std::frexp(double{largest}, &exponent);  // the fraction is in [0.5, 1)
  int power = fraction >= up ? exponent : exponent - 1;
  if (largest < std::ldexp(1.0, smallest)) {
    // A subnormal number becomes the smallest normal number or zero.
    if (largest < std::ldexp(2 * up - 1, smallest)) return half ? 0 : -127;
    power = smallest;
  }
  return std::max(power - of_format, -127);
}

/// Ties go to the smaller magnitude, and zeros are negative.
uint8_t modelopt_code(double ratio) {
  int code = 0;
  for (const double bound : {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0}) code += std::fabs(ratio) > bound;
  return static_cast<uint8_t>(ratio > 0 ? code : code + 8);
}

/// The code of E2M3 nearest to a ratio, by comparison with all of its numbers. Ties go to the even code.
uint8_t e2m3_code(float ratio) {
  const double size = std::min(std::fabs(double{ratio}), 7.5);
  unsigned best = 0;
  double least = size;
  for (unsigned code = 1; code < 32; ++code) {
    const double distance = std::fabs(double{e2m3_to_float(code)} - size);
    if (distance < least || (distance == least && code % 2 == 0)) least = distance, best = code;
  }
  return static_cast<uint8_t>(std::signbit(ratio) ? best + 32 : best);
}

/// A quotient, rounded to the weights' type.
double quotient_in(DType type, double x) {
  const auto single = static_cast<float>(x);
  if (type == DType::kBF16) return double{bf16_to_float(bf16_from_float(single))};
  if (type == DType::kF16) return double{fp16_to_float(fp16_from_float(single))};
  return double{single};
}

bool is_power(DType type) { return type == DType::kF8E8M0 || type == DType::kU8; }

/// The logarithm to base 2 of the smallest power of two that is at least x.
int power_above(double x) {
  int exponent = static_cast<int>(std::floor(std::log2(x))) - 1;
  while (std::ldexp(1.0, exponent) < x) ++exponent;
  return exponent;
}

}  // namespace

std::optional<ExpectedMx> expected_mx(std::string_view to) {
  if (to == "mxfp8") return ExpectedMx::kMxfp8;
  if (to == "mxfp6") return ExpectedMx::kMxfp6;
  if (to == "mxfp4") return ExpectedMx::kMxfp4;
  return std::nullopt;
}

uint8_t expect_mx_block(ExpectedMx format, std::string_view arithmetic, DType type,
                        std::span<const float> weights, std::span<uint8_t> codes) {
  const bool fp8 = format == ExpectedMx::kMxfp8, six = format == ExpectedMx::kMxfp6,
             modelopt = arithmetic == "modelopt" && !six;
  if (!modelopt && arithmetic != "compressed-tensors")
    refuse("arithmetic", six ? "compressed-tensors" : "modelopt or compressed-tensors", arithmetic);
  float largest = 0;
  for (const float w : weights) largest = std::max(largest, std::fabs(w));
  const int exponent = modelopt
                           ? modelopt_exponent(largest, fp8 ? 448.0f : 6.0f)
                           : compressed_tensors_exponent(largest, type, fp8 ? 8 : 2, six ? 0.96875 : 0.875);
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = std::ldexp(double{weights[i]}, -exponent);
    if (modelopt) {
      const auto ratio = static_cast<float>(exact);
      codes[i] = fp8 ? e4m3_from_float(ratio) : modelopt_code(double{ratio});
      continue;
    }
    const auto ratio = static_cast<float>(quotient_in(type, exact));
    if (six) {
      codes[i] = e2m3_code(ratio);
      continue;
    }
    const unsigned code = fp8 ? e4m3_from_float(ratio) : e2m1_from_float(ratio);
    codes[i] = static_cast<uint8_t>(ratio == 0 ? 0 : code);  // zeros lose their sign
  }
  return static_cast<uint8_t>(exponent + 127);
}

uint64_t expected_lost_mx(std::string_view arithmetic, DType type, std::span<const float> weights,
                          std::span<const float> back) {
  double largest = 0;
  uint64_t lost = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    largest = std::max(largest, std::fabs(double{weights[i]}));
    lost += weights[i] != 0 && back[i] == 0;
  }
  const bool has_rule = arithmetic == "compressed-tensors" && type == DType::kF16;
  return has_rule && largest < std::ldexp(1.0, -14) ? lost : 0;
}

DType expected_scale_type(std::string_view word) {
  if (word == "f32") return DType::kF32;
  if (word == "bf16") return DType::kBF16;
  if (word == "e8m0") return DType::kF8E8M0;
  refuse("scale_dtype", "f32, bf16 or e8m0", word);
}

ExpectedBlock expected_block(std::string_view granularity, std::string_view block, int64_t rows, int64_t k) {
  if (granularity == "tensor") return {rows, k};
  if (granularity == "row") return {1, k};
  if (granularity != "block") refuse("granularity", "tensor, row or block", granularity);
  if (block == "128x128") return {128, 128};
  if (block == "32x32") return {32, 32};
  if (block == "1x128") return {1, 128};
  refuse("block", "128x128, 32x32 or 1x128", block);
}

float expected_fp8_scale(DType type, float amax) {
  float scale = amax / kE4m3Max;
  if (scale != 0 && is_power(type)) scale = std::ldexp(1.0f, std::max(power_above(double{scale}), -127));
  if (type == DType::kBF16) scale = bf16_to_float(bf16_from_float(scale));
  return scale == 0 ? 1 : scale;
}

uint8_t expected_fp8(float weight, float scale) { return e4m3_from_float(weight / scale); }

void ExpectedProducts::add_nvfp4(std::span<const uint8_t> codes, uint8_t scale) {
  for (const uint8_t byte : codes) {
    for (const unsigned code : {byte & 7u, byte >> 4 & 7u}) {
      largest = std::max(largest, double{e2m1_to_float(code)} * double{e4m3_to_float(scale)});
    }
  }
}

void ExpectedProducts::add_mxfp4(std::span<const uint8_t> codes, uint8_t scale) {
  const auto is_zero = [](uint8_t byte) { return (byte & 0x77) == 0; };
  if (std::all_of(codes.begin(), codes.end(), is_zero)) return;
  exponent = std::max(exponent, scale - 127);
}

float expected_mxfp4_tile(DType type, const ExpectedProducts& tile) {
  if (tile.exponent < -127) return 1;
  return static_cast<float>(std::exp2(std::max(tile.exponent - 6, is_power(type) ? -127 : -126)));
}

std::optional<float> expected_nvfp4_tile(DType type, const ExpectedProducts& tile, float global) {
  if (tile.largest == 0) return 1;
  const double exact = std::ldexp(double{global}, power_above(tile.largest / 448));
  const auto scale = static_cast<float>(exact);
  if (double{scale} != exact || !(scale >= 0x1p-126f) || !std::isfinite(scale)) return std::nullopt;
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  if (is_power(type) && (bits & 0x7FFFFF) != 0) return std::nullopt;
  if (type == DType::kBF16 && (bits & 0xFFFF) != 0) return std::nullopt;
  return scale;
}

uint32_t expected_scale_bits(DType type, float scale) {
  if (type == DType::kBF16) return bf16_from_float(scale);
  if (is_power(type)) return e8m0_from_float(scale);
  return std::bit_cast<uint32_t>(scale);
}

}  // namespace twofour
