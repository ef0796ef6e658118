#include "kernels/numbers/quantize_mx.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/half.h"
#include "formats/weight_dialect.h"
#include "formats/weight_format.h"
#include "kernels/device/check.h"
#include "kernels/numbers/casts.h"
#include "kernels/numbers/quantize_ops.h"

namespace twofour {
namespace {

constexpr size_t kBlock = kMxGroup;

float next_up(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) + 1); }

/// The largest number, by exponent bits, whose float32 logarithm is not above the power of two's (2^-127 for
/// subnormal numbers).
std::array<float, 256> log_limits() {
  std::array<float, 256> limits{};
  for (unsigned exponent = 0; exponent < 255; ++exponent) {
    const auto power = static_cast<float>(static_cast<int>(exponent) - 127);
    float x = e8m0_to_float(exponent);
    const auto log_of = [](float of) { return static_cast<float>(std::log2(static_cast<double>(of))); };
    while (log_of(next_up(x)) <= power) x = next_up(x);
    limits[exponent] = x;
  }
  return limits;
}

const float* limits_of_logs() {
  static const std::array<float, 256> limits = log_limits();
  return limits.data();
}

MxPlan plan_of(const MxRule& rule, const CodeGrid& grid) {
  MxPlan plan{};
  plan.compressed_tensors = rule.arithmetic == Arithmetic::compressed_tensors;
  plan.is_half = rule.weight_type == DType::kF16;
  plan.largest = grid.largest;
  plan.limits = limits_of_logs();
  plan.offset = grid.top();
  plan.smallest = rule.weight_type == DType::kF16    ? 0x1p-25f
                  : rule.weight_type == DType::kBF16 ? 0x1p-134f
                                                     : 0;
  return plan;
}

/// `up` is the part of 2^23 that is added to the bits of `amax` before its mantissa is cut off.
uint8_t scale_of(const MxPlan& plan, float amax, uint32_t up) {
  if (!plan.compressed_tensors) {
    const float quotient = amax / plan.largest;
    const uint32_t exponent = std::bit_cast<uint32_t>(quotient) >> 23;
    return static_cast<uint8_t>(exponent + (quotient > plan.limits[exponent]));
  }
  if (plan.is_half && amax < 0x1p-14f) {
    const float smallest = 0x1p-14f - std::ldexp(static_cast<float>(up), -14 - 23);
    return static_cast<uint8_t>(amax < smallest ? 127 : 113 - plan.offset);
  }
  const uint32_t exponent = (std::bit_cast<uint32_t>(amax) + up) >> 23 & 0xFFu;
  return static_cast<uint8_t>(std::max(static_cast<int>(exponent) - plan.offset, 0));
}

uint8_t value_of(const MxPlan& plan, float ratio) {
  if (plan.compressed_tensors && !(std::fabs(ratio) > plan.smallest)) return 0;
  return e4m3_from_float(ratio);
}

unsigned code_of(const MxPlan& plan, float ratio) {
  if (plan.compressed_tensors) return (e2m1_from_float(ratio) & 7u) | (ratio < -plan.smallest ? 8u : 0u);
  const float size = std::fabs(ratio);
  const unsigned code = (size > 0.25f) + (size > 0.75f) + (size > 1.25f) + (size > 1.75f) + (size > 2.5f) +
                        (size > 3.5f) + (size > 5.0f);
  return code | (ratio > 0 ? 0u : 8u);
}

constexpr uint32_t kQuarter = 1u << 21, kSixteenth = 1u << 19;

/// Calls encode(block, inverse of its scale) for the blocks from `done` on, and stores their scales.
template <class F>
void for_each_block(const MxPlan& plan, std::span<const float> weights, size_t done, uint8_t* scales,
                    F&& encode, uint32_t up = kQuarter) {
  for (size_t b = done; b < weights.size() / kBlock; ++b) {
    int32_t largest = 0;
    for (const float x : weights.subspan(b * kBlock, kBlock)) {
      largest = std::max(largest, std::bit_cast<int32_t>(x) & INT32_MAX);
    }
    scales[b] = scale_of(plan, std::bit_cast<float>(largest), up);
    encode(b, std::bit_cast<float>((254u - scales[b]) << 23));
  }
}

}  // namespace

void quantize_mxfp8(const MxRule& rule, std::span<const float> weights, uint8_t* values, uint8_t* scales,
                    Isa isa) {
  check(weights.size() % kBlock == 0, "K a multiple of 32");
  const MxPlan plan = plan_of(rule, kE4m3Grid);
  const auto blocks = static_cast<int64_t>(weights.size() / kBlock);
  const QuantizeOps* ops = quantize_ops(isa);
  const int64_t done = ops == nullptr ? 0 : ops->quantize_mxfp8(plan, weights.data(), blocks, values, scales);
  for_each_block(plan, weights, static_cast<size_t>(done), scales, [&](size_t b, float inverse) {
    for (size_t i = b * kBlock; i < (b + 1) * kBlock; ++i) values[i] = value_of(plan, weights[i] * inverse);
  });
}

void quantize_mxfp4(const MxRule& rule, std::span<const float> weights, uint8_t* codes, uint8_t* scales,
                    Isa isa) {
  check(weights.size() % kBlock == 0, "K a multiple of 32");
  const MxPlan plan = plan_of(rule, kE2m1Grid);
  const auto blocks = static_cast<int64_t>(weights.size() / kBlock);
  const QuantizeOps* ops = quantize_ops(isa);
  const int64_t done = ops == nullptr ? 0 : ops->quantize_mxfp4(plan, weights.data(), blocks, codes, scales);
  for_each_block(plan, weights, static_cast<size_t>(done), scales, [&](size_t b, float inverse) {
    for (size_t i = b * kBlock; i < (b + 1) * kBlock; i += 2) {
      const unsigned low = code_of(plan, weights[i] * inverse),
                     high = code_of(plan, weights[i + 1] * inverse);
      codes[i / 2] = static_cast<uint8_t>(low | high << 4);
    }
  });
}

void quantize_mxfp6(const MxRule& rule, std::span<const float> weights, uint8_t* codes, uint8_t* scales) {
  check(weights.size() % kBlock == 0, "K a multiple of 32");
  check(rule.arithmetic == Arithmetic::compressed_tensors, "the arithmetic of compressed-tensors for MXFP6");
  const auto encode = [&](size_t b, float inverse) {
    uint8_t block[kBlock];
    for (size_t i = 0; i < kBlock; ++i)
      block[i] = static_cast<uint8_t>(code_from_float(kE2m3Grid, weights[b * kBlock + i] * inverse));
    pack_codes(kE2m3Grid, block, codes + b * kBlock / 4 * 3);
  };
  for_each_block(plan_of(rule, kE2m3Grid), weights, 0, scales, encode, kSixteenth);
}

void pack_codes(const CodeGrid& grid, std::span<const uint8_t> codes, uint8_t* out) {
  uint32_t word = 0;
  int held = 0;
  for (const uint8_t code : codes) {
    word |= uint32_t{code} << held;
    for (held += grid.bits; held >= 8; held -= 8, word >>= 8) *out++ = static_cast<uint8_t>(word);
  }
  check(held == 0, "whole bytes of codes");
}

uint64_t count_lost_mx(const MxRule& rule, std::span<const float> weights, std::span<const float> back) {
  check(weights.size() % kBlock == 0 && back.size() == weights.size(), "K a multiple of 32");
  if (rule.arithmetic != Arithmetic::compressed_tensors || rule.weight_type != DType::kF16) return 0;
  uint64_t lost = 0;
  for (size_t b = 0; b < weights.size(); b += kBlock) {
    const auto block = weights.subspan(b, kBlock);
    if (std::any_of(block.begin(), block.end(), [](float w) { return std::fabs(w) >= 0x1p-14f; })) continue;
    for (size_t i = 0; i < kBlock; ++i) lost += block[i] != 0 && back[b + i] == 0;
  }
  return lost;
}

void dequantize_mxfp8(std::span<const uint8_t> values, std::span<const uint8_t> scales, float* out, Isa isa) {
  check(values.size() == scales.size() * kBlock, "a scale for 32 numbers");
  for (size_t b = 0; b < scales.size(); ++b) {
    decode_fp8(values.subspan(b * kBlock, kBlock), e8m0_to_float(scales[b]), out + b * kBlock, isa);
  }
}

void dequantize_mxfp6(std::span<const uint8_t> codes, std::span<const uint8_t> scales, float* out) {
  check(codes.size() == scales.size() * kBlock / 4 * 3, "a scale for 32 numbers");
  static const auto numbers = [] {
    std::array<float, 64> all{};
    for (unsigned code = 0; code < all.size(); ++code) all[code] = e2m3_to_float(code);
    return all;
  }();
  for (size_t b = 0; b < scales.size(); ++b) {
    const float scale = e8m0_to_float(scales[b]);
    for (size_t i = b * kBlock; i < (b + 1) * kBlock; i += 4) {
      const uint8_t* from = &codes[i / 4 * 3];
      const uint32_t word = from[0] | uint32_t{from[1]} << 8 | uint32_t{from[2]} << 16;
      for (size_t j = 0; j < 4; ++j) out[i + j] = numbers[word >> 6 * j & 0x3F] * scale;
    }
  }
}

void dequantize_mxfp4(std::span<const uint8_t> codes, std::span<const uint8_t> scales, float* out, Isa isa) {
  check(codes.size() * 2 == scales.size() * kBlock, "a scale for 32 numbers");
  static const auto steps = [] {
    std::array<float, 256> all{};
    for (unsigned byte = 0; byte < all.size(); ++byte) all[byte] = e8m0_to_float(byte);
    return all;
  }();
  const QuantizeOps* ops = quantize_ops(isa);
  constexpr size_t kAtOnce = 128;
  for (size_t b = 0; b < scales.size(); b += kAtOnce) {
    const size_t count = std::min(kAtOnce, scales.size() - b);
    uint8_t twice[2 * kAtOnce];  // of sixteen each
    for (size_t i = 0; i < count; ++i) twice[2 * i] = twice[2 * i + 1] = scales[b + i];
    const uint8_t* own = &codes[b * kBlock / 2];
    float* to = out + b * kBlock;
    size_t done = 0;
    if (ops != nullptr) {
      done =
          static_cast<size_t>(ops->dequantize(steps.data(), own, twice, static_cast<int64_t>(2 * count), to));
    }
    for (size_t i = done * kGroup; i < count * kBlock; ++i) {
      to[i] = e2m1_to_float(own[i / 2] >> i % 2 * 4 & 15u) * steps[twice[i / kGroup]];
    }
  }
}

}  // namespace twofour
