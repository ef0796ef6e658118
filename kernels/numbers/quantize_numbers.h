#pragma once
#include "kernels/numbers/quantize_mx_vector.h"
#include "kernels/numbers/quantize_ops.h"
#include "kernels/numbers/quantize_vector.h"

// Operations on single numbers. `V` is as in quantize_vector.h. Files that are compiled for one instruction
// set include this file; see quantize_ops.h.

namespace twofour {

template <class V>
int64_t widen_bf16(const uint8_t* bytes, int64_t count, float* out) {
  const int64_t whole = count / V::kLanes * V::kLanes;
  for (int64_t i = 0; i < whole; i += V::kLanes) {
    V::store(out + i, V::as_float(V::load_u16(bytes + 2 * i) << 16));
  }
  return whole;
}

template <class V>
int64_t widen_f16(const uint8_t* bytes, int64_t count, float* out) {
  using I = typename V::I;
  const int64_t whole = count / V::kLanes * V::kLanes;
  for (int64_t i = 0; i < whole; i += V::kLanes) {
    const I half = V::load_u16(bytes + 2 * i), magnitude = half & 0x7FFF;
    const I normal = (magnitude << 13) + (112 << 23);
    // The sum has 2^-24 as its last place. Then the addend is subtracted.
    const I subnormal = V::as_int(V::as_float((magnitude << 13) + (113 << 23)) - V::all(0x1p-14f));
    I bits = V::select(V::greater(V::all(0x400), magnitude), subnormal, normal);
    bits = V::select(V::greater(magnitude, V::all(0x7BFF)), bits | 0x7F800000, bits);
    V::store(out + i, V::as_float(bits | ((half & 0x8000) << 16)));
  }
  return whole;
}

template <class V>
int64_t round_to_bf16(const float* x, int64_t count, uint8_t* out) {
  using I = typename V::I;
  const int64_t whole = count / V::kLanes * V::kLanes;
  for (int64_t i = 0; i < whole; i += V::kLanes) {
    const I bits = V::as_int(V::load(x + i)), upper = (bits >> 16) & 0xFFFF;
    const auto nan = V::greater(bits & INT32_MAX, V::all(0x7F800000));
    // Computes the carry of only the lower half, because the sum of all bits may overflow.
    const I rounded = upper + (((bits & 0xFFFF) + 0x7FFF + (upper & 1)) >> 16);
    V::store_u16(out + 2 * i, V::select(nan, upper | 0x40, rounded));
  }
  return whole;
}

template <class V>
int64_t decode_int4(const uint8_t* codes, int64_t count, int64_t group, const float* zero_points,
                    const float* scales, float* out) {
  if (group % V::kLanes != 0) return 0;
  const int64_t whole = count / group * group;
  for (int64_t i = 0; i < whole; ++zero_points, ++scales) {
    const typename V::F zero_point = V::all(*zero_points), scale = V::all(*scales);
    for (const int64_t end = i + group; i < end; i += V::kLanes) {
      const auto code = __builtin_convertvector(V::load_u8(codes + i), typename V::F);
      V::store(out + i, (code - zero_point) * scale);
    }
  }
  return whole;
}

template <class V>
int64_t largest_magnitude(const float* x, int64_t count, int32_t& largest) {
  using I = typename V::I;
  constexpr int kAtOnce = 4;
  const int64_t whole = count / (kAtOnce * V::kLanes) * (kAtOnce * V::kLanes);
  I most[kAtOnce] = {V::all(0), V::all(0), V::all(0), V::all(0)};
  for (int64_t i = 0; i < whole; i += kAtOnce * V::kLanes) {
    for (int j = 0; j < kAtOnce; ++j) {
      most[j] = V::max(most[j], V::as_int(V::load(x + i + j * V::kLanes)) & INT32_MAX);
    }
  }
  const I all = V::max(V::max(most[0], most[1]), V::max(most[2], most[3]));
  for (int lane = 0; lane < V::kLanes; ++lane) largest = all[lane] > largest ? all[lane] : largest;
  return whole;
}

template <class V>
int64_t encode_fp8(const float* x, int64_t count, float scale, uint8_t* out) {
  using I = typename V::I;
  const int64_t whole = count / V::kLanes * V::kLanes;
  for (int64_t i = 0; i < whole; i += V::kLanes) {
    const I byte = round_to_e4m3<V>(V::load(x + i) / V::all(scale)).byte;
    V::store_bytes(out + i, V::select(V::equal(byte, V::all(0xFF)), V::all(0x7F), byte));
  }
  return whole;
}

template <class V>
int64_t decode_fp8(const uint8_t* bytes, int64_t count, float scale, float* out) {
  using I = typename V::I;
  const int64_t whole = count / V::kLanes * V::kLanes;
  for (int64_t i = 0; i < whole; i += V::kLanes) {
    const I byte = V::load_u8(bytes + i), magnitude = byte & 0x7F;
    I bits = V::as_int(value_of<V>(magnitude));
    bits = V::select(V::equal(magnitude, V::all(0x7F)), V::all(0x7FC00000), bits);
    V::store(out + i, V::as_float(bits | ((byte & 0x80) << 24)) * V::all(scale));
  }
  return whole;
}

template <class V>
int64_t dequantize_blocks(const float* step, const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                          float* out) {
  for (int64_t i = 0; i < blocks; ++i) {
    const typename V::F unit = V::all(step[scales[i]]);
    for (int k = 0; k < 16; k += V::kLanes) {
      V::store(out + 16 * i + k, V::e2m1_values(codes + 8 * i + k / 2) * unit);
    }
  }
  return blocks;
}

/// Sets lane i of a quad to zero if two other lanes beat it. A higher lane beats it if its magnitude is
/// larger; a lower lane beats it if its magnitude is at least as large.
template <class V>
int64_t prune_2_4(float* x, int64_t count) {
  using I = typename V::I;
  const int64_t whole = count / V::kLanes * V::kLanes;
  // A lane has 1 if the lane 1, 2 or 3 places further wraps around to a lower lane of the quad.
  const I wraps1 = V::quads(0, 0, 0, 1), wraps2 = V::quads(0, 0, 1, 1), wraps3 = V::quads(0, 1, 1, 1);
  for (int64_t i = 0; i < whole; i += V::kLanes) {
    const I bits = V::as_int(V::load(x + i)), size = bits & INT32_MAX;
    const auto a = V::greater(V::template rotate_quads<1>(size), size - wraps1);
    const auto b = V::greater(V::template rotate_quads<2>(size), size - wraps2);
    const auto c = V::greater(V::template rotate_quads<3>(size), size - wraps3);
    const auto goes = V::either(V::both(a, b), V::both(c, V::either(a, b)));
    V::store(x + i, V::as_float(V::select(goes, V::all(0), bits)));
  }
  return whole;
}

/// A product of floats is exact in double, so fusing it with the addition changes nothing.
template <class V>
int64_t add_errors(const float* weights, const float* values, int64_t count, ErrorLanes& sums) {
  using D = typename V::D;
  constexpr int kParts = 16 / V::kDoubles;
  const int64_t whole = count / 16 * 16;
  D weight[kParts], error[kParts], product[kParts], largest[kParts];
  for (int p = 0; p < kParts; ++p) {
    weight[p] = V::load_doubles(sums.weights + p * V::kDoubles);
    error[p] = V::load_doubles(sums.errors + p * V::kDoubles);
    product[p] = V::load_doubles(sums.products + p * V::kDoubles);
    largest[p] = V::load_doubles(sums.largest + p * V::kDoubles);
  }
  for (int64_t i = 0; i < whole; i += 16) {
    for (int p = 0; p < kParts; ++p) {
      const D w = V::load_as_doubles(weights + i + p * V::kDoubles);
      const D q = V::load_as_doubles(values + i + p * V::kDoubles);
      const D off = w - q;
      weight[p] += w * w;
      error[p] += off * off;
      product[p] += w * q;
      largest[p] = V::max(V::magnitude(off), largest[p]);
    }
  }
  for (int p = 0; p < kParts; ++p) {
    V::store_doubles(sums.weights + p * V::kDoubles, weight[p]);
    V::store_doubles(sums.errors + p * V::kDoubles, error[p]);
    V::store_doubles(sums.products + p * V::kDoubles, product[p]);
    V::store_doubles(sums.largest + p * V::kDoubles, largest[p]);
  }
  return whole;
}

template <class V>
int64_t add_squares(const float* weights, int64_t count, double* sums) {
  using D = typename V::D;
  constexpr int kParts = 16 / V::kDoubles;
  const int64_t whole = count / 16 * 16;
  D square[kParts];
  for (int p = 0; p < kParts; ++p) square[p] = V::load_doubles(sums + p * V::kDoubles);
  for (int64_t i = 0; i < whole; i += 16) {
    for (int p = 0; p < kParts; ++p) {
      const D w = V::load_as_doubles(weights + i + p * V::kDoubles);
      square[p] += w * w;
    }
  }
  for (int p = 0; p < kParts; ++p) V::store_doubles(sums + p * V::kDoubles, square[p]);
  return whole;
}

template <class V>
int64_t look_up_codes(const uint8_t* tables, const uint8_t* codes, const uint8_t* which, int64_t blocks,
                      uint8_t* out) {
  for (int64_t b = 0; b < blocks; ++b) V::look_up_codes(tables + 16 * which[b], codes + 16 * b, out + 32 * b);
  return blocks;
}

template <class V>
inline constexpr QuantizeOps kQuantizeOps = {
    widen_bf16<V>,       widen_f16<V>,         round_to_bf16<V>, decode_int4<V>,    largest_magnitude<V>,
    quantize_vectors<V>, dequantize_blocks<V>, add_errors<V>,    add_squares<V>,    encode_fp8<V>,
    decode_fp8<V>,       look_up_codes<V>,     prune_2_4<V>,     quantize_mxfp8<V>, quantize_mxfp4<V>,
};

}  // namespace twofour
