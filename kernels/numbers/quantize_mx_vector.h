#pragma once
#include "kernels/numbers/quantize_ops.h"
#include "kernels/numbers/quantize_vector.h"

// MXFP8 and MXFP4 for `V::kLanes` half blocks at once. Lanes 2i and 2i + 1 hold one block of 32. Files that
// are compiled for one instruction set include this file; see quantize_ops.h.

namespace twofour {

/// Lane i gets the value of lane i ^ 1.
template <class V>
[[gnu::always_inline]] inline typename V::I swap_neighbours(typename V::I x) {
  const auto odd = V::equal(V::quads(0, 1, 0, 1), V::all(1));
  return V::select(odd, V::template rotate_quads<3>(x), V::template rotate_quads<1>(x));
}

/// The byte of the scale for blocks whose largest magnitudes are `amax`.
template <class V>
[[gnu::always_inline]] inline typename V::I mx_scale(const MxPlan& plan, typename V::I amax) {
  using F = typename V::F;
  using I = typename V::I;
  if (!plan.compressed_tensors) {
    const F quotient = V::as_float(amax) / V::all(plan.largest);
    const I exponent = V::as_int(quotient) >> 23;
    const auto above = V::less(V::gather(plan.limits, exponent), quotient);
    return V::select(above, exponent + 1, exponent);
  }
  const I byte = V::max((((amax + 0x200000) >> 23) & 0xFF) - plan.offset, V::all(0));
  if (!plan.is_half) return byte;
  const I normal = V::select(V::greater(V::all(0x38800000), amax), V::all(113 - plan.offset), byte);
  return V::select(V::greater(V::all(0x38400000), amax), V::all(127), normal);
}

/// Loads sixteen weights into each lane, transposed. Returns the scales of their blocks.
template <class V>
[[gnu::always_inline]] inline typename V::I load_mx_blocks(const MxPlan& plan, const float* weights,
                                                           typename V::F (&x)[16]) {
  using I = typename V::I;
  load_blocks<V>(weights, x);
  I largest = V::as_int(x[0]) & INT32_MAX;
  for (int i = 1; i < 16; ++i) largest = V::max(largest, V::as_int(x[i]) & INT32_MAX);
  return mx_scale<V>(plan, V::max(largest, swap_neighbours<V>(largest)));
}

/// The eight E2M1 codes of each lane.
template <class V>
[[gnu::always_inline]] inline typename V::I mx_codes(const MxPlan& plan, const typename V::F* x,
                                                     typename V::F inverse) {
  using F = typename V::F;
  using I = typename V::I;
  I word = V::all(0);
  for (int i = 7; i >= 0; --i) {
    const F ratio = x[i] * inverse;
    const F size = V::min(V::as_float(V::as_int(ratio) & INT32_MAX), V::all(6.0f));
    // The addend rounds, as in codes_of().
    const F sum = size + V::by_exponent(size, 0x1p22f, 0x1p23f + 2, 0x1p24f + 8);
    I code = V::as_int(sum) & 7;
    if (plan.compressed_tensors) {
      code = V::or_if(V::less(ratio, V::all(-plan.smallest)), code, 8);
    } else {
      const auto up = V::either(V::either(V::equal(size, V::all(0.75f)), V::equal(size, V::all(1.75f))),
                                V::equal(size, V::all(3.5f)));
      code = V::or_if(V::less_equal(ratio, V::all(0.0f)), V::select(up, code - 1, code), 8);
    }
    word = (word << 4) | code;
  }
  return word;
}

/// Stores the scales of every second lane.
template <class V>
[[gnu::always_inline]] inline void store_mx_scales(uint8_t* scales, typename V::I byte) {
  uint8_t twice[V::kLanes];
  V::store_bytes(twice, byte);
  for (int i = 0; i < V::kLanes / 2; ++i) scales[i] = twice[2 * i];
}

template <class V>
int64_t quantize_mxfp4(const MxPlan& plan, const float* x, int64_t blocks, uint8_t* codes, uint8_t* scales) {
  using F = typename V::F;
  using I = typename V::I;
  constexpr int kBlocks = V::kLanes / 2;
  const int64_t whole = blocks / kBlocks * kBlocks;
  const MxPlan fixed = plan;  // keeps the plan in registers
  for (int64_t i = 0; i < whole; i += kBlocks) {
    F weights[16];
    const I byte = load_mx_blocks<V>(fixed, x + 32 * i, weights);
    const F inverse = V::as_float((V::all(254) - byte) << 23);
    const I low = mx_codes<V>(fixed, weights, inverse), high = mx_codes<V>(fixed, weights + 8, inverse);
    V::store_interleaved(codes + 16 * i, low, high);
    store_mx_scales<V>(scales + i, byte);
  }
  return whole;
}

/// The E4M3 byte of a ratio.
template <class V>
[[gnu::always_inline]] inline typename V::I mx_value(const MxPlan& plan, typename V::F ratio) {
  const auto byte = round_to_e4m3<V>(ratio).byte;
  if (!plan.compressed_tensors) return byte;
  const auto size = V::as_float(V::as_int(ratio) & INT32_MAX);
  return V::select(V::less(V::all(plan.smallest), size), byte, V::all(0));
}

template <class V>
int64_t quantize_mxfp8(const MxPlan& plan, const float* x, int64_t blocks, uint8_t* values, uint8_t* scales) {
  using F = typename V::F;
  using I = typename V::I;
  constexpr int kBlocks = V::kLanes / 2;
  const int64_t whole = blocks / kBlocks * kBlocks;
  const MxPlan fixed = plan;
  for (int64_t i = 0; i < whole; i += kBlocks) {
    F weights[16];
    const I byte = load_mx_blocks<V>(fixed, x + 32 * i, weights);
    float inverse[V::kLanes];
    V::store(inverse, V::as_float((V::all(254) - byte) << 23));
    store_mx_scales<V>(scales + i, byte);
    for (int half = 0; half < V::kLanes; ++half) {
      const int64_t at = 32 * i + 16 * half;
      for (int k = 0; k < 16; k += V::kLanes) {
        V::store_bytes(values + at + k, mx_value<V>(fixed, V::load(x + at + k) * V::all(inverse[half])));
      }
    }
  }
  return whole;
}

}  // namespace twofour
