#pragma once
#include "kernels/numbers/quantize_ops.h"
#include "kernels/numbers/quantize_sweep.h"

// Files that are compiled for one instruction set include this file; see quantize_ops.h.

namespace twofour {

/// Loads and transposes `V::kLanes` blocks of sixteen weights. Register `weight[i]` holds weight i of each
/// block.
template <class V>
[[gnu::always_inline]] inline void load_blocks(const float* x, typename V::F (&weight)[16]) {
  using F = typename V::F;
  for (int k = 0; k < 16; k += 4) {
    const F a = V::load_quads(x + k), b = V::load_quads(x + k + 16), c = V::load_quads(x + k + 32),
            d = V::load_quads(x + k + 48);
    const F ab = V::unpack_low(a, b), cd = V::unpack_low(c, d);
    weight[k] = V::unpack_low_pairs(ab, cd);
    weight[k + 1] = V::unpack_high_pairs(ab, cd);
    const F ab_high = V::unpack_high(a, b), cd_high = V::unpack_high(c, d);
    weight[k + 2] = V::unpack_low_pairs(ab_high, cd_high);
    weight[k + 3] = V::unpack_high_pairs(ab_high, cd_high);
  }
}

/// A block scale as an E4M3 byte and its value.
template <class V>
struct ScaleOf {
  typename V::I byte;
  typename V::F value;  ///< the value of the byte
};

/// Rounds to E4M3 and back, like e4m3_from_float and e4m3_to_float.
template <class V>
[[gnu::always_inline]] inline ScaleOf<V> round_to_e4m3(typename V::F x) {
  using F = typename V::F;
  using I = typename V::I;
  const I bits = V::as_int(x), sign = bits & INT32_MIN, magnitude = bits & INT32_MAX;
  const I kept = V::min(magnitude, V::all(0x43E00000));  // 448
  const I rounded = kept + 0x7FFFF + ((kept >> 20) & 1);
  const F sum = V::as_float(kept) + V::all(0x1p14f);
  const auto subnormal = V::greater(V::all(0x3C800000), kept);  // below 2^-6
  const auto nan = V::greater(magnitude, V::all(0x7F800000));
  I byte = V::select(subnormal, V::as_int(sum) - 0x46800000, (rounded >> 20) - (120 << 3));
  byte = V::select(nan, V::all(0x7F), byte);
  F value = V::select(subnormal, sum - V::all(0x1p14f), V::as_float(rounded & ~0xFFFFF));
  value = V::select(nan, V::as_float(V::all(0x7FC00000)), value);
  return {byte | ((bits >> 24) & 0x80), V::as_float(V::as_int(value) | sign)};
}

/// Rounds a number that is not negative to BF16 or FP16 and back, like bf16_from_float or fp16_from_float.
template <class V>
[[gnu::always_inline]] inline typename V::F round_to_half(RoundTo type, typename V::F x) {
  using I = typename V::I;
  if (type == RoundTo::f32) return x;
  const I bits = V::min(V::as_int(x), V::all(0x7F800000));
  const auto nan = V::greater(V::as_int(x), bits);
  if (type == RoundTo::bf16) {
    const I rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & ~0xFFFF;
    return V::select(nan, x, V::as_float(rounded));
  }
  I rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF;
  const auto subnormal = V::greater(V::all(0x38800000), bits);  // below 2^-14
  rounded = V::select(subnormal, V::as_int((x + V::all(0.5f)) - V::all(0.5f)), rounded);
  rounded = V::select(V::greater(V::all(0x477FF000), bits), rounded, V::all(0x7F800000));  // 65520
  return V::select(nan, x, V::as_float(rounded));
}

/// The choice of block scales. Every line rounds as in quantize.cpp. F and I hold one block in each lane.
template <class V, BlockScaleChoice::Choice choice>
struct Producer {
  using F = typename V::F;
  using I = typename V::I;
  const BlockScaleChoice& plan;

  [[gnu::always_inline]] F step(F scale) const {
    return plan.compressed_tensors ? scale / V::all(plan.stored) : scale * V::all(plan.stored);
  }
  [[gnu::always_inline]] F ratio(F amax) const {
    if (plan.compressed_tensors) {
      return V::all(plan.stored) * round_to_half<V>(plan.quotient, amax / V::all(6.0f));
    }
    if (choice == BlockScaleChoice::max) return amax / V::all(plan.six_g);
    return amax / V::all(6.0f) * V::all(plan.scale_max) / V::all(plan.sixth);
  }
  [[gnu::always_inline]] static F one_if_zero(F x) {
    return V::select(V::equal(x, V::all(0.0f)), V::all(1.0f), x);
  }
  [[gnu::always_inline]] static ScaleOf<V> cast_scale(F scale) {
    return round_to_e4m3<V>(V::select(V::less(scale, V::all(0x1p-9f)), V::all(0x1p-9f), scale));
  }
  [[gnu::always_inline]] ScaleOf<V> max(F amax) const {
    if (!plan.compressed_tensors) return cast_scale(one_if_zero(amax / V::all(plan.six_g)));
    ScaleOf<V> scale = round_to_e4m3<V>(ratio(amax));
    const auto zero = V::greater(V::all(1), scale.byte);
    scale.byte = V::select(zero, V::all(0x20), scale.byte);
    scale.value = V::select(zero, V::all(0.125f), scale.value);
    return scale;
  }
  [[gnu::always_inline]] ScaleOf<V> static_scale(F amax) const {
    const F scale = one_if_zero(amax / V::all(6.0f));
    return cast_scale(scale * V::all(plan.scale_max) / V::all(plan.sixth));
  }
  [[gnu::always_inline]] F tried_step(F amax) const {
    const F scaled = V::min(V::all(448.0f), amax / V::all(6.0f) * V::all(plan.to_e4m3));
    const F scale = round_to_e4m3<V>(scaled).value * V::all(plan.from_e4m3);
    return V::select(V::equal(scale, V::all(0.0f)), V::all(4.0f) * amax, scale);
  }
  [[gnu::always_inline]] ScaleOf<V> four_over_six(const F (&x)[16], F amax) const {
    const F wide = amax * V::all(1.5f);
    if (!plan.compressed_tensors) {
      const auto four = V::less(squared_error<V>(x, tried_step(wide)), squared_error<V>(x, tried_step(amax)));
      // The error of a block of zeros is NaN, so such a block takes its own largest magnitude.
      return static_scale(V::select(four, wide, amax));
    }
    const ScaleOf<V> of_four = max(wide), of_six = max(amax);
    const auto four =
        V::less(squared_error<V>(x, step(of_four.value)), squared_error<V>(x, step(of_six.value)));
    return {V::select(four, of_four.byte, of_six.byte), V::select(four, of_four.value, of_six.value)};
  }
};

/// Eight codes of each block: e2m1_from_float(x / step + 0).
template <class V>
[[gnu::always_inline]] inline typename V::I codes_of(const typename V::F* x, typename V::F step) {
  using F = typename V::F;
  using I = typename V::I;
  I word = V::all(0);
  for (int i = 7; i >= 0; --i) {
    const F ratio = x[i] / step;
    // NaN becomes 6, because min returns its second operand.
    const F size = V::min(V::as_float(V::as_int(ratio) & INT32_MAX), V::all(6.0f));
    // The addend rounds to units. Its low part makes the last bits equal to the code: 2 size for sizes up to
    // 2, size + 2 up to 4, and size / 2 + 4 above. The low part is even, so ties stay ties.
    const F sum = size + V::by_exponent(size, 0x1p22f, 0x1p23f + 2, 0x1p24f + 8);
    const I code = V::as_int(sum) & 7;
    word = (word << 4) | V::or_if(V::less(ratio, V::all(0.0f)), code, 8);
  }
  return word;
}

template <class V, BlockScaleChoice::Choice choice>
[[gnu::always_inline]] inline void quantize_batch(const BlockScaleChoice& plan, const float* weights,
                                                  uint8_t* codes, uint8_t* scales) {
  using F = typename V::F;
  using I = typename V::I;
  const Producer<V, choice> producer{plan};
  F x[16];
  load_blocks<V>(weights, x);
  I largest = V::as_int(x[0]) & INT32_MAX;
  for (int i = 1; i < 16; ++i) largest = V::max(largest, V::as_int(x[i]) & INT32_MAX);
  const F amax = V::as_float(largest);

  // Choose
  ScaleOf<V> scale;
  uint32_t left_out = 0;
  if constexpr (choice == BlockScaleChoice::max) {
    scale = producer.max(amax);
  } else if constexpr (choice == BlockScaleChoice::four_over_six) {
    scale = producer.four_over_six(x, amax);
  } else {
    const auto swept = sweepable<V>(amax, plan.steps);
    left_out = V::bits(swept) ^ V::kAllBits;
    const I near = producer.cast_scale(producer.ratio(amax)).byte;
    scale.byte = V::gather_bytes(plan.chosen, sweep<V>(x, amax, near, plan.steps, swept));
    scale.value = value_of<V>(scale.byte);
  }

  // Encode
  const F step = producer.step(scale.value);
  I low = codes_of<V>(x, step), high = codes_of<V>(x + 8, step);
  if (plan.keeps_zero) {
    const auto rounds_to_zero = V::equal(round_to_e4m3<V>(producer.ratio(amax)).byte, V::all(0));
    const auto zero = V::either(rounds_to_zero, V::equal(largest, V::all(0)));
    low = V::select(zero, V::all(0), low);
    high = V::select(zero, V::all(0), high);
    scale.byte = V::select(zero, V::all(0), scale.byte);
  }
  V::store_interleaved(codes, low, high);
  V::store_bytes(scales, scale.byte);
  for (; left_out != 0; left_out &= left_out - 1) {
    const int block = __builtin_ctz(left_out);
    plan.one_block(plan.context, weights + 16 * block, codes + 8 * block, scales + block);
  }
}

template <class V, BlockScaleChoice::Choice choice>
[[gnu::always_inline]] inline int64_t quantize_batches(const BlockScaleChoice& plan, const float* x,
                                                       int64_t blocks, uint8_t* codes, uint8_t* scales) {
  const int64_t whole = blocks / V::kLanes * V::kLanes;
  const BlockScaleChoice fixed = plan;  // in registers, because stored bytes may alias the original
  for (int64_t i = 0; i < whole; i += V::kLanes) {
    quantize_batch<V, choice>(fixed, x + 16 * i, codes + 8 * i, scales + i);
  }
  return whole;
}

template <class V>
int64_t quantize_vectors(const BlockScaleChoice& plan, const float* x, int64_t blocks, uint8_t* codes,
                         uint8_t* scales) {
  switch (plan.choice) {
    case BlockScaleChoice::max:
      return quantize_batches<V, BlockScaleChoice::max>(plan, x, blocks, codes, scales);
    case BlockScaleChoice::mse:
      return quantize_batches<V, BlockScaleChoice::mse>(plan, x, blocks, codes, scales);
    case BlockScaleChoice::four_over_six:
      return quantize_batches<V, BlockScaleChoice::four_over_six>(plan, x, blocks, codes, scales);
  }
  return 0;
}

}  // namespace twofour
