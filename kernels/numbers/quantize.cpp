#include "kernels/numbers/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/half.h"
#include "kernels/device/check.h"
#include "kernels/numbers/quantize_ops.h"

namespace twofour {
namespace {

constexpr float kSmallestScale = 0x1p-9f;
constexpr uint8_t kLargestScaleByte = 0x7E;
/// For four_over_six, the largest block scale if the largest weight of a block becomes 6.
constexpr float kScaleMaxOfSix = 256.0f;

// The largest magnitude. Magnitudes sort like their bits, with NaN above all numbers, so a NaN weight makes
// the scale NaN.
float largest_of(const float* x, int64_t count, int32_t largest = 0) {
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  return std::bit_cast<float>(largest);
}

float round_to(DType type, float x) {
  switch (type) {
    case DType::kBF16:
      return bf16_to_float(bf16_from_float(x));
    case DType::kF16:
      return fp16_to_float(fp16_from_float(x));
    default:
      return x;
  }
}

float smallest_normal(DType type) { return type == DType::kF16 ? 0x1p-14f : 0x1p-126f; }

/// The largest block scale, if the largest weight of a block becomes 6.
float scale_max(const QuantizeRule& rule) {
  return rule.block_scale == BlockScale::four_over_six ? kScaleMaxOfSix : kE4m3Max;
}

/// Rounds a scale within the range of E4M3. NaN stays NaN.
uint8_t cast_scale(float scale) {
  if (scale < kSmallestScale) scale = kSmallestScale;
  return e4m3_from_float(scale);
}

/// Rounds |x| / step to a value of E2M1. `ratio` is not negative. Adding 1.5 * 2^23 units rounds to units.
float nearest_e2m1(float ratio) {
  const float magic = ratio < 2.0f ? 0x1.8p22f : ratio < 4.0f ? 0x1.8p23f : 0x1.8p24f;
  const float value = (ratio + magic) - magic;
  return value > kE2m1Max ? kE2m1Max : value;
}

/// The squared error of a block under a step that is not zero.
float squared_error(const float* x, float step) {
  float square[kGroup];
#pragma omp simd
  for (int i = 0; i < kGroup; ++i) {
    const float magnitude = std::fabs(x[i]);
    const float error = magnitude - nearest_e2m1(magnitude / step) * step;
    square[i] = error * error;
  }
#pragma omp simd
  for (int i = 0; i < 8; ++i) square[i] += square[i + 8];
  return ((square[0] + square[1]) + (square[2] + square[3])) +
         ((square[4] + square[5]) + (square[6] + square[7]));
}

/// The value of code 1.0 under each block scale. For positive block scales, it grows with the byte.
using Steps = std::array<float, kLargestScaleByte + 1>;

/// The block scale to store for each result of the sweep. Three spare bytes follow.
using Chosen = std::array<uint8_t, kLargestScaleByte + 4>;

/// The byte with the least squared error. If errors are equal, the smallest byte is chosen. The search begins
/// at `near`. A byte is skipped only if its error cannot be smaller.
uint8_t sweep(const float* x, float amax, int near, const Steps& steps) {
  const int start = std::clamp(near, 1, int{kLargestScaleByte});
  int best = start;
  float least = squared_error(x, steps[static_cast<size_t>(start)]);
  for (int byte = start - 1; byte >= 1; --byte) {
    const float step = steps[static_cast<size_t>(byte)], cut = amax - kE2m1Max * step;
    // The largest weight's error is the part that the largest code cuts off. Smaller steps cut off more.
    if (cut > 0 && cut * cut > least) break;
    const float error = squared_error(x, step);
    if (error <= least) least = error, best = byte;
  }
  for (int byte = start + 1; byte <= kLargestScaleByte; ++byte) {
    // Once all codes are zero, larger steps change nothing.
    if (amax <= 0.25f * steps[static_cast<size_t>(byte - 1)]) break;
    const float error = squared_error(x, steps[static_cast<size_t>(byte)]);
    if (error < least) least = error, best = byte;
  }
  return static_cast<uint8_t>(best);
}

/// The block scales of ModelOpt. Every line rounds as in the producer's code.
struct ModelOpt {
  const QuantizeRule& rule;
  float stored, global_amax;
  float six_g = kE2m1Max * stored;
  float sixth = global_amax / kE2m1Max;  ///< for a block with the largest weight, before the global scale
  // four_over_six tries scales that ModelOpt's fake quantization rounds in a different way.
  float tried_max = global_amax * (kE4m3Max / kScaleMaxOfSix) / kE2m1Max;
  float to_e4m3 = (1.0f / (tried_max <= 0x1p-24f ? 1.0f : tried_max)) * kE4m3Max;
  float from_e4m3 = 1.0f / to_e4m3;

  float step(uint8_t scale) const { return e4m3_to_float(scale) * stored; }

  /// The block scale before it is clamped and rounded.
  float ratio(float amax) const {
    return rule.block_scale == BlockScale::max ? amax / six_g : amax / kE2m1Max * scale_max(rule) / sixth;
  }

  uint8_t max(float amax) const {
    float scale = amax / six_g;
    // The producer compares the quotient with zero, not the block.
    if (scale == 0.0f) scale = 1.0f;
    return cast_scale(scale);
  }

  /// The block scale for a calibrated largest magnitude.
  uint8_t static_scale(float amax) const {
    float scale = amax / kE2m1Max;
    if (scale == 0.0f) scale = 1.0f;
    return cast_scale(scale * scale_max(rule) / sixth);
  }

  /// The scales that the producer's sweep tries, as fractions of the largest scale.
  static float part(size_t byte) { return e4m3_to_float(static_cast<unsigned>(byte)) / kE4m3Max; }

  Steps tried_steps() const {
    Steps steps{};
    for (size_t byte = 1; byte < steps.size(); ++byte) {
      const float step = part(byte) * global_amax / kE2m1Max;
      steps[byte] = step == 0.0f ? 1.0f : step;
    }
    return steps;
  }

  uint8_t chosen(size_t byte) const { return static_scale(global_amax * part(byte)); }

  uint8_t mse(const float* x, float amax, const Steps& steps) const {
    return chosen(sweep(x, amax, cast_scale(ratio(amax)), steps));
  }

  float tried_error(const float* x, float amax) const {
    const float scaled = std::min(amax / kE2m1Max * to_e4m3, kE4m3Max);
    const float scale = e4m3_to_float(e4m3_from_float(scaled)) * from_e4m3;
    // If the scale is zero, all codes are zero, as under an infinite step. A step of 4 amax gives the same
    // result without overflow.
    return squared_error(x, scale == 0.0f ? 4.0f * amax : scale);
  }

  uint8_t four_over_six(const float* x, float amax) const {
    if (amax == 0.0f) return static_scale(amax);
    const float four = amax * 1.5f;
    return static_scale(tried_error(x, four) < tried_error(x, amax) ? four : amax);
  }
};

/// The block scales of compressed-tensors.
struct CompressedTensors {
  const QuantizeRule& rule;
  float stored;

  float step(uint8_t scale) const { return e4m3_to_float(scale) / stored; }
  float ratio(float amax) const { return stored * round_to(rule.weight_type, amax / kE2m1Max); }

  uint8_t max(float amax) const {
    const uint8_t scale = e4m3_from_float(ratio(amax));
    return scale == 0 ? 0x20 : scale;
  }

  Steps tried_steps() const {
    Steps steps{};
    for (size_t byte = 1; byte < steps.size(); ++byte) steps[byte] = step(static_cast<uint8_t>(byte));
    return steps;
  }

  static uint8_t chosen(size_t byte) { return static_cast<uint8_t>(byte); }

  uint8_t mse(const float* x, float amax, const Steps& steps) const {
    return amax == 0.0f ? max(amax) : sweep(x, amax, max(amax), steps);
  }

  uint8_t four_over_six(const float* x, float amax) const {
    const uint8_t six = max(amax), four = max(amax * 1.5f);
    return squared_error(x, step(four)) < squared_error(x, step(six)) ? four : six;
  }
};

template <class Producer, class Choose>
void quantize_portably(const Producer& producer, const Choose& choose, const float* weights, int64_t blocks,
                       uint8_t* codes, uint8_t* scales) {
  const bool keeps_zero = producer.rule.zero_block == ZeroBlock::zero;
  for (int64_t block = 0; block < blocks; ++block) {
    const float* x = weights + block * kGroup;
    uint8_t* out = codes + block * (kGroup / 2);
    const float amax = largest_of(x, kGroup);
    if (keeps_zero && (amax == 0.0f || e4m3_from_float(producer.ratio(amax)) == 0)) {
      std::fill_n(out, kGroup / 2, uint8_t{0});
      scales[block] = 0;
      continue;
    }
    const uint8_t scale = choose(x, amax);
    const float step = producer.step(scale);
    // Adding 0 only removes the sign of -0, because both producers take the sign from x / step < 0.
    unsigned code[kGroup];
#pragma omp simd
    for (int i = 0; i < kGroup; ++i) code[i] = e2m1_from_float(x[i] / step + 0.0f);
    for (int j = 0; j < kGroup / 2; ++j) out[j] = static_cast<uint8_t>(code[2 * j] | code[2 * j + 1] << 4);
    scales[block] = scale;
  }
}

/// The input and output of blocks.
struct Blocks {
  std::span<const float> weights;
  uint8_t *codes, *scales;
};

/// Quantizes blocks with vectors first, if vectors are available, and then the remaining blocks.
template <class Producer, class Choose>
void quantize_blocks(const Producer& producer, BlockScaleChoice plan, const QuantizeOps* ops,
                     const Blocks& blocks, const Choose& choose) {
  const auto portably = [&](const float* x, int64_t count, uint8_t* codes, uint8_t* scales) {
    quantize_portably(producer, choose, x, count, codes, scales);
  };
  const auto count = static_cast<int64_t>(blocks.weights.size()) / kGroup;
  int64_t done = 0;
  if (ops != nullptr) {
    plan.context = &portably;
    plan.one_block = [](const void* context, const float* x, uint8_t* codes, uint8_t* scale) {
      (*static_cast<decltype(&portably)>(context))(x, 1, codes, scale);
    };
    done = ops->quantize(plan, blocks.weights.data(), count, blocks.codes, blocks.scales);
  }
  portably(blocks.weights.data() + done * kGroup, count - done, blocks.codes + done * (kGroup / 2),
           blocks.scales + done);
}

template <class Producer>
void quantize_as(const Producer& producer, BlockScaleChoice plan, const QuantizeOps* ops,
                 const Blocks& blocks) {
  switch (producer.rule.block_scale) {
    case BlockScale::max:
      plan.choice = BlockScaleChoice::max;
      return quantize_blocks(producer, plan, ops, blocks,
                             [&](const float*, float amax) { return producer.max(amax); });
    case BlockScale::mse: {
      plan.choice = BlockScaleChoice::mse;
      const Steps steps = producer.tried_steps();
      Chosen chosen{};
      for (size_t byte = 1; byte < steps.size(); ++byte) chosen[byte] = producer.chosen(byte);
      plan.steps = steps.data();
      plan.chosen = chosen.data();
      // The range for which quantize_sweep.h is valid.
      const bool even = steps[1] >= 0x1p-60f && steps.back() <= 0x1p60f;
      return quantize_blocks(producer, plan, even ? ops : nullptr, blocks,
                             [&](const float* x, float amax) { return producer.mse(x, amax, steps); });
    }
    case BlockScale::four_over_six:
      plan.choice = BlockScaleChoice::four_over_six;
      return quantize_blocks(producer, plan, ops, blocks,
                             [&](const float* x, float amax) { return producer.four_over_six(x, amax); });
  }
}

RoundTo rounding_of(DType type) {
  return type == DType::kBF16 ? RoundTo::bf16 : type == DType::kF16 ? RoundTo::f16 : RoundTo::f32;
}

bool is_positive_finite(float x) { return x > 0.0f && std::isfinite(x); }

}  // namespace

float largest_magnitude(std::span<const float> weights, Isa isa) {
  const auto count = static_cast<int64_t>(weights.size());
  int32_t largest = 0;
  const QuantizeOps* ops = quantize_ops(isa);
  const int64_t done = ops == nullptr ? 0 : ops->largest_magnitude(weights.data(), count, largest);
  return largest_of(weights.data() + done, count - done, largest);
}

GlobalScale global_scale_of(const QuantizeRule& rule, float amax) {
  const float range = kE2m1Max * scale_max(rule);
  if (rule.arithmetic == Arithmetic::modelopt) return {amax / range, amax};
  const float known = amax < smallest_normal(rule.weight_type) ? smallest_normal(rule.weight_type) : amax;
  const float reciprocal = round_to(rule.weight_type, 1.0f / known);
  const float divisor = round_to(rule.weight_type, reciprocal * range);
  return {std::isfinite(divisor) ? divisor : 1.0f, amax};
}

GlobalScale global_scale_from(const QuantizeRule& rule, float stored) {
  const float range = kE2m1Max * scale_max(rule);
  return {stored, rule.arithmetic == Arithmetic::modelopt ? stored * range : range / stored};
}

float step_of(Arithmetic arithmetic, uint8_t block_scale, float stored_global_scale) {
  const float scale = e4m3_to_float(block_scale);
  return arithmetic == Arithmetic::modelopt ? scale * stored_global_scale : scale / stored_global_scale;
}

void quantize_nvfp4(const QuantizeRule& rule, const GlobalScale& global, std::span<const float> weights,
                    uint8_t* codes, uint8_t* scales, Isa isa) {
  check(weights.size() % kGroup == 0, "K a multiple of 16");
  const Blocks blocks{weights, codes, scales};
  // Under other global scales, only the portable loop gives the right signs of NaN.
  const bool usual = is_positive_finite(global.stored) && is_positive_finite(global.amax);
  const QuantizeOps* ops = usual ? quantize_ops(isa) : nullptr;
  BlockScaleChoice plan{};
  plan.keeps_zero = rule.zero_block == ZeroBlock::zero;
  plan.stored = global.stored;
  if (rule.arithmetic == Arithmetic::modelopt) {
    const ModelOpt producer{rule, global.stored, global.amax};
    plan.six_g = producer.six_g;
    plan.sixth = producer.sixth;
    plan.scale_max = scale_max(rule);
    plan.to_e4m3 = producer.to_e4m3;
    plan.from_e4m3 = producer.from_e4m3;
    quantize_as(producer, plan, ops, blocks);
  } else {
    plan.compressed_tensors = true;
    plan.quotient = rounding_of(rule.weight_type);
    quantize_as(CompressedTensors{rule, global.stored}, plan, ops, blocks);
  }
}

void quantize_nvfp4_row(const float* row, int64_t k, float global_scale, uint8_t* codes, uint8_t* scales) {
  check(k >= 0, "K not negative");
  const QuantizeRule rule;
  quantize_nvfp4(rule, global_scale_from(rule, global_scale), {row, static_cast<size_t>(k)}, codes, scales);
}

}  // namespace twofour
