#include "lib/prove/expected/expected_quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/atom.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/half.h"

namespace twofour {
namespace {

constexpr uint8_t kLastScale = 0x7E;              // 448
constexpr uint8_t kCompressedTensorsZero = 0x20;  // 0.125
constexpr float kFourOverSixScale = 256, kMaxScale = 448;

float rounded_to(DType type, float x) {
  if (type == DType::kBF16) return bf16_to_float(bf16_from_float(x));
  if (type == DType::kF16) return fp16_to_float(fp16_from_float(x));
  return x;
}

constexpr auto kValues = [] {
  std::array<float, 16> values{};
  for (unsigned code = 0; code < 16; ++code) values[code] = e2m1_to_float(code);
  return values;
}();

/// The block scale of a block whose largest weight becomes 6, which is the largest block scale.
float largest_scale_of(const ExpectedRule& rule) {
  return rule.choice == ExpectedRule::Choice::kFourOverSix ? kFourOverSixScale : kMaxScale;
}

/// ModelOpt limits a block scale from below; E4M3 saturates above.
uint8_t clamped_scale(float scale) { return e4m3_from_float(scale < 0x1p-9f ? 0x1p-9f : scale); }

/// The value of the code to which |x| / step is rounded, by the decision points of E2M1. Ties go to the even
/// code.
float nearest_value(float ratio) {
  const int below_2 = (ratio > 0.25f) + (ratio >= 0.75f) + (ratio > 1.25f) + (ratio >= 1.75f);
  const int below_4 = (ratio > 2.5f) + (ratio >= 3.5f), six = ratio > 5.0f;
  return 0.5f * static_cast<float>(below_2 + 2 * below_4 + 4 * six);
}

/// Sums in the order of the producers: first weights that are eight apart, then neighbours.
float sum_of(const float (&squares)[kGroup]) {
  float sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = squares[i] + squares[i + 8];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

float error_under(std::span<const float, 16> x, float step) {
  float squares[kGroup];
#pragma omp simd
  for (size_t i = 0; i < kGroup; ++i) {
    const float magnitude = std::fabs(x[i]), error = magnitude - nearest_value(magnitude / step) * step;
    squares[i] = error * error;
  }
  return sum_of(squares);
}

/// Returns for each of four magnitudes true if it stays. It stays if fewer than two others are ahead of it.
template <class T>
std::array<bool, 4> largest_two(const std::array<T, 4>& m) {
  const int beaten0 = (m[1] > m[0]) + (m[2] > m[0]) + (m[3] > m[0]);
  const int beaten1 = (m[0] >= m[1]) + (m[2] > m[1]) + (m[3] > m[1]);
  const int beaten2 = (m[0] >= m[2]) + (m[1] >= m[2]) + (m[3] > m[2]);
  const int beaten3 = (m[0] >= m[3]) + (m[1] >= m[3]) + (m[2] >= m[3]);
  return {beaten0 < 2, beaten1 < 2, beaten2 < 2, beaten3 < 2};
}

unsigned code_at(std::span<const uint8_t> codes, size_t i) { return codes[i / 2] >> 4 * (i % 2) & 15u; }

[[noreturn]] void refuse_word(const char* what, const char* expected, std::string_view found) {
  throw Error(fmt::format("{}: expected {}, found '{}': no proof of it is known", what, expected, found));
}

}  // namespace

ExpectedRule expected_rule(std::string_view arithmetic, std::string_view block_scale,
                           std::string_view zero_block) {
  ExpectedRule rule;
  rule.compressed_tensors = arithmetic == "compressed-tensors";
  if (!rule.compressed_tensors && arithmetic != "modelopt")
    refuse_word("arithmetic", "modelopt or compressed-tensors", arithmetic);
  if (block_scale == "mse") {
    rule.choice = ExpectedRule::Choice::kMse;
  } else if (block_scale == "four-over-six") {
    rule.choice = ExpectedRule::Choice::kFourOverSix;
  } else if (block_scale != "max") {
    refuse_word("block_scale", "max, mse or four-over-six", block_scale);
  }
  rule.keeps_zero = zero_block == "zero";
  if (!rule.keeps_zero && zero_block != "producer") refuse_word("zero_block", "producer or zero", zero_block);
  return rule;
}

bool expects_2_4(std::string_view pattern) {
  if (pattern.empty()) return false;
  if (pattern != "2:4") refuse_word("pattern", "2:4 or none", pattern);
  return true;
}

ExpectedGlobal producer_global(const ExpectedRule& rule, float amax) {
  const float range = kE2m1Max * largest_scale_of(rule);
  if (!rule.compressed_tensors) return {amax / range, amax, amax / range};
  // Both 1 / a and its product with the range are rounded to the weights' type.
  const float smallest = rule.weight_type == DType::kF16 ? 0x1p-14f : 0x1p-126f;
  const float reciprocal = rounded_to(rule.weight_type, 1.0f / std::max(amax, smallest));
  float divisor = rounded_to(rule.weight_type, reciprocal * range);
  if (!std::isfinite(divisor)) divisor = 1;
  return {divisor, amax, divisor};
}

ExpectedGlobal expected_global(const ExpectedRule& rule, float amax, bool divides) {
  if (amax == 0) return {1, 1, 1, true};
  ExpectedGlobal global = producer_global(rule, amax);
  if (divides != rule.compressed_tensors) global.written = 1.0f / global.scale;
  return global;
}

ExpectedGlobal kept_global(const ExpectedRule& rule, float stored, bool stored_divides, bool divides) {
  const float reciprocal = 1.0f / stored, range = kE2m1Max * largest_scale_of(rule);
  const float scale = stored_divides == rule.compressed_tensors ? stored : reciprocal;
  return {scale, rule.compressed_tensors ? range / scale : scale * range,
          stored_divides == divides ? stored : reciprocal, false, true};
}

ExpectedNvfp4::ExpectedNvfp4(const ExpectedRule& rule, const ExpectedGlobal& global)
    : rule_(rule), global_(global), largest_scale_(largest_scale_of(rule)) {
  if (rule.choice != ExpectedRule::Choice::kMse) return;
  for (uint8_t byte = 1; byte <= kLastScale; ++byte) {
    if (rule.compressed_tensors) {
      tried_[byte] = step(byte);
      stored_[byte] = byte;
    } else {
      // The sweep tries a largest magnitude for the block, which is a part of the largest magnitude of the
      // matrix.
      const float part = e4m3_to_float(byte) / kMaxScale, tried = part * global.amax / kE2m1Max;
      tried_[byte] = tried == 0 ? 1 : tried;
      stored_[byte] = static_scale(global.amax * part);
    }
  }
  rising_ =
      std::is_sorted(tried_.begin() + 1, tried_.end()) && tried_[1] >= 0x1p-100f && tried_.back() <= 0x1p100f;
}

/// The value of code 1.0 under a block scale.
float ExpectedNvfp4::step(uint8_t scale) const {
  return rule_.compressed_tensors ? e4m3_to_float(scale) / global_.scale
                                  : e4m3_to_float(scale) * global_.scale;
}

/// The block scale that maps `amax` to 6, before it is limited and rounded.
float ExpectedNvfp4::unrounded(float amax) const {
  if (rule_.compressed_tensors) return global_.scale * rounded_to(rule_.weight_type, amax / kE2m1Max);
  if (rule_.choice == ExpectedRule::Choice::kMax) return amax / (kE2m1Max * global_.scale);
  return amax / kE2m1Max * largest_scale_ / (global_.amax / kE2m1Max);
}

/// The block scale for the largest magnitude, as each producer stores it.
uint8_t ExpectedNvfp4::scale_of(float amax) const {
  if (rule_.compressed_tensors) {
    const uint8_t scale = e4m3_from_float(unrounded(amax));
    return scale == 0 ? kCompressedTensorsZero : scale;
  }
  const float scale = unrounded(amax);
  return clamped_scale(scale == 0 ? 1.0f : scale);
}

/// The block scale that ModelOpt exports for a calibrated largest magnitude.
uint8_t ExpectedNvfp4::static_scale(float amax) const {
  const float sixth = amax / kE2m1Max;
  return clamped_scale((sixth == 0 ? 1.0f : sixth) * largest_scale_ / (global_.amax / kE2m1Max));
}

/// The block scale with the least squared error. On a tie, the smallest scale is taken.
uint8_t ExpectedNvfp4::sweep(Block x, float amax) const {
  int byte = kLastScale;
  // If the step is 4 amax or more, all codes are zero and all errors are equal. So the smallest such step is
  // enough.
  if (rising_)
    byte = static_cast<int>(std::lower_bound(tried_.begin() + 1, tried_.end(), 4 * amax) - tried_.begin());
  byte = std::min(byte, int{kLastScale});
  int best = byte;
  float least = error_under(x, tried_[static_cast<size_t>(byte)]);
  for (--byte; byte >= 1; --byte) {
    const float step = tried_[static_cast<size_t>(byte)], cut = amax - kE2m1Max * step;
    // The error includes the clipped part of the largest weight, and smaller steps clip more.
    if (rising_ && cut > 0 && cut * cut > least) break;
    const float error = error_under(x, step);
    if (!(error <= least)) continue;
    least = error;
    best = byte;
  }
  return stored_[static_cast<size_t>(best)];
}

/// The error if `amax` becomes 6, for ModelOpt's four over six. Scales are rounded as in ModelOpt's fake
/// quantization.
float ExpectedNvfp4::error_of_mapping(Block x, float amax) const {
  const float largest = global_.amax * (kMaxScale / kFourOverSixScale) / kE2m1Max;
  const float to_e4m3 = 1.0f / (largest <= 0x1p-24f ? 1.0f : largest) * kMaxScale;
  const float scale = std::min(amax / kE2m1Max * to_e4m3, kMaxScale);
  const float step = e4m3_to_float(e4m3_from_float(scale)) * (1.0f / to_e4m3);
  if (step != 0) return error_under(x, step);
  float squares[kGroup];  // all codes are zero
  for (size_t i = 0; i < kGroup; ++i) squares[i] = x[i] * x[i];
  return sum_of(squares);
}

uint8_t ExpectedNvfp4::choose(Block x, float amax) const {
  switch (rule_.choice) {
    case ExpectedRule::Choice::kMax:
      return scale_of(amax);
    case ExpectedRule::Choice::kMse:
      return rule_.compressed_tensors && amax == 0 ? scale_of(amax) : sweep(x, amax);
    case ExpectedRule::Choice::kFourOverSix:
      break;
  }
  const float four = amax * 1.5f;
  if (rule_.compressed_tensors) {
    const uint8_t as_six = scale_of(amax), as_four = scale_of(four);
    return error_under(x, step(as_four)) < error_under(x, step(as_six)) ? as_four : as_six;
  }
  if (amax == 0) return static_scale(amax);
  return static_scale(error_of_mapping(x, four) < error_of_mapping(x, amax) ? four : amax);
}

void ExpectedNvfp4::quantize(std::span<const float> weights, std::span<uint8_t> codes,
                             std::span<uint8_t> scales) const {
  for (size_t block = 0; block < scales.size(); ++block) {
    const Block x(&weights[block * kGroup], kGroup);
    float amax = 0;
#pragma omp simd reduction(max : amax)
    for (size_t i = 0; i < kGroup; ++i) amax = std::max(amax, std::fabs(x[i]));
    const bool is_zero =
        global_.all_zero || (rule_.keeps_zero && (amax == 0 || e4m3_from_float(unrounded(amax)) == 0));
    const uint8_t scale = is_zero ? 0 : choose(x, amax);
    const float unit = step(scale);
    unsigned code[kGroup] = {};
    if (!is_zero) {
#pragma omp simd
      for (size_t i = 0; i < kGroup; ++i) {
        const float ratio = x[i] / unit;
        code[i] = e2m1_from_float(std::fabs(ratio)) | (ratio < 0 ? 8u : 0u);
      }
    }
    if (global_.keeps_negative) {
      for (size_t i = 0; i < kGroup; ++i) code[i] |= x[i] == 0 && std::signbit(x[i]) ? 8u : 0u;
    }
    scales[block] = scale;
    for (size_t i = 0; i < kGroup; i += 2) {
      codes[(block * kGroup + i) / 2] = static_cast<uint8_t>(code[i] | code[i + 1] << 4);
    }
  }
}

void expected_values(std::span<const uint8_t> codes, std::span<const uint8_t> scales, float written,
                     bool divides, std::span<float> values) {
  for (size_t block = 0; block < scales.size(); ++block) {
    const float scale = e4m3_to_float(scales[block]), unit = divides ? scale / written : scale * written;
    float value[16];
    for (unsigned code = 0; code < 16; ++code) value[code] = kValues[code] * unit;
    for (size_t i = block * kGroup; i < (block + 1) * kGroup; ++i) values[i] = value[code_at(codes, i)];
  }
}

void expect_2_4(std::span<float> weights) {
  for (size_t quad = 0; quad < weights.size(); quad += 4) {
    std::array<float, 4> magnitudes;
    for (size_t i = 0; i < 4; ++i) magnitudes[i] = std::fabs(weights[quad + i]);
    const std::array<bool, 4> stays = largest_two(magnitudes);
    for (size_t i = 0; i < 4; ++i) {
      weights[quad + i] = stays[i] ? weights[quad + i] : 0;
    }
  }
}

void expect_2_4(std::span<uint8_t> codes) {
  for (size_t quad = 0; quad < 2 * codes.size(); quad += 4) {
    std::array<unsigned, 4> magnitudes;
    for (size_t i = 0; i < 4; ++i) magnitudes[i] = code_at(codes, quad + i) & 7u;
    const std::array<bool, 4> stays = largest_two(magnitudes);
    for (size_t i = 0; i < 4; ++i) {
      if (!stays[i]) codes[(quad + i) / 2] &= i % 2 == 0 ? 0xF0 : 0x0F;
    }
  }
}

void CastRange::add(std::span<const uint8_t> codes, std::span<const uint8_t> scales) {
  for (size_t block = 0; block < scales.size(); ++block) {
    const auto own = codes.subspan(block * 16, 16);
    if (std::all_of(own.begin(), own.end(), [](uint8_t byte) { return (byte & 0x77) == 0; })) continue;
    low = std::min(low, scales[block] - 127);
    high = std::max(high, scales[block] - 127);
  }
}

void CastRange::add(const CastRange& other) {
  low = std::min(low, other.low);
  high = std::max(high, other.high);
}

int CastRange::exponent() const { return high < low ? 0 : std::clamp(high - 8, -126, 126); }

bool CastRange::is_exact() const { return high < low || low >= exponent() - 9; }

unsigned expected_cast_code(unsigned code, uint8_t e8m0, int exponent) {
  const int power = e8m0 - 127 - exponent;
  if (power >= -9) return code;
  const double magnitude = std::ldexp(std::fabs(double{e2m1_to_float(code)}), power + 9);
  unsigned nearest = 0;
  for (unsigned other = 1; other < 8; ++other) {
    const double off = std::fabs(double{e2m1_to_float(other)} - magnitude),
                 best = std::fabs(double{e2m1_to_float(nearest)} - magnitude);
    if (off < best || (off == best && other % 2 == 0)) nearest = other;
  }
  return nearest | (code & 8u);
}

uint8_t expected_cast_scale(uint8_t e8m0, int exponent) {
  return e4m3_from_float(std::exp2(static_cast<float>(std::clamp(e8m0 - 127 - exponent, -9, 8))));
}

RowError row_error(std::span<const float> weights, std::span<const float> values) {
  constexpr size_t kSums = 16;
  double energy[kSums] = {}, error[kSums] = {};
  const auto add = [&](size_t j, size_t i) {
    const double w = weights[i], off = w - static_cast<double>(values[i]);
    energy[j] += w * w;
    error[j] += off * off;
  };
  const size_t whole = weights.size() / kSums * kSums;
  for (size_t i = 0; i < whole; i += kSums) {
    for (size_t j = 0; j < kSums; ++j) add(j, i + j);
  }
  for (size_t i = whole; i < weights.size(); ++i) add(i - whole, i);
  for (int width = 8; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) {
      energy[j] += energy[j + width];
      error[j] += error[j + width];
    }
  }
  return {energy[0], error[0]};
}

}  // namespace twofour
