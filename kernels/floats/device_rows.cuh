#pragma once
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "kernels/device/ptx.cuh"
#include "kernels/floats/device_matrix.h"

/// Weights decoded in registers, and rows in shared memory that they are multiplied with.

namespace twofour::cuda {

/// Threads of a block that multiplies a row.
inline constexpr int kRowThreads = 256, kRowWarps = kRowThreads / 32;

__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

/// Eight E2M1 codes, the first in the low nibble, as floats times a scale.
__device__ __forceinline__ void decode_codes(uint32_t codes, float scale, float (&to)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t code = codes >> (4 * i);
    // Exponent and mantissa of E2M1 where FP16 has its own are the value times 2^-14, subnormals too.
    const __half half = __ushort_as_half(static_cast<unsigned short>((code & 7u) << 9 | (code & 8u) << 12));
    to[i] = __half2float(half) * scale;
  }
}

/// The same with their block scale as it is stored.
template <MatrixFormat kFormat>
__device__ __forceinline__ void scaled_codes(uint32_t codes, uint8_t byte, float (&to)[8]) {
  constexpr float kFromHalf = 16384.0f;
  if constexpr (kFormat == MatrixFormat::nvfp4) {
    // Positive: exponent and mantissa where FP16 has its own are the value times 2^-8.
    const __half half = __ushort_as_half(static_cast<unsigned short>(byte << 7));
    return decode_codes(codes, kFromHalf * 256.0f * __half2float(half), to);
  }
  const float scale = e8m0_to_float(byte);
  if (byte <= 200) return decode_codes(codes, kFromHalf * scale, to);
  // 2^14 times such a scale may be too large: one after the other.
  decode_codes(codes, kFromHalf, to);
#pragma unroll
  for (float& v : to) v *= scale;
}

/// Eight BF16 or FP16 numbers.
template <MatrixFormat kFormat>
__device__ __forceinline__ void decode_halves(const uint4& eight, float (&to)[8]) {
  const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kFormat == MatrixFormat::bf16) {
      to[2 * i] = bf16_low(pairs[i]);
      to[2 * i + 1] = bf16_high(pairs[i]);
    } else {
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
      to[2 * i] = both.x;
      to[2 * i + 1] = both.y;
    }
  }
}

/// Weights [k, k + 8) of row n, without the global scale; those behind K are 0. `wide`: K is a multiple of 8.
template <MatrixFormat kFormat>
__device__ __forceinline__ void load_weights(const DeviceMatrix& m, int64_t n, int64_t k, bool wide,
                                             float (&to)[8]) {
  const int64_t at = n * m.k + k;
  if constexpr (kFormat == MatrixFormat::nvfp4 || kFormat == MatrixFormat::mxfp4) {
    const int group = kFormat == MatrixFormat::nvfp4 ? 16 : 32;
    const uint32_t codes = __ldg(reinterpret_cast<const uint32_t*>(m.weights) + at / 8);
    const uint8_t byte = __ldg(static_cast<const uint8_t*>(m.scales) + n * (m.k / group) + k / group);
    return scaled_codes<kFormat>(codes, byte, to);
  } else if constexpr (kFormat == MatrixFormat::fp8) {
    const auto* codes = static_cast<const uint8_t*>(m.weights) + at;
    const float* scales =
        static_cast<const float*>(m.scales) + n / m.scale_rows * ((m.k + m.scale_cols - 1) / m.scale_cols);
    if (wide && m.scale_cols % 8 == 0) {
      const uint2 eight = __ldg(reinterpret_cast<const uint2*>(codes));
      const float scale = __ldg(scales + k / m.scale_cols);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        to[i] = e4m3_to_float((i < 4 ? eight.x : eight.y) >> (8 * (i % 4)) & 255u) * scale;
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      to[i] = k + i < m.k ? e4m3_to_float(codes[i]) * scales[(k + i) / m.scale_cols] : 0.0f;
  } else if constexpr (kFormat == MatrixFormat::f32) {
    const float* from = static_cast<const float*>(m.weights) + at;
    if (wide) {
      const float4 a = __ldg(reinterpret_cast<const float4*>(from));
      const float4 b = __ldg(reinterpret_cast<const float4*>(from) + 1);
      to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
      to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = k + i < m.k ? from[i] : 0.0f;
  } else {
    constexpr bool kIsBf16 = kFormat == MatrixFormat::bf16;
    const auto* from = static_cast<const uint16_t*>(m.weights) + at;
    if (wide) {
      decode_halves<kFormat>(__ldg(reinterpret_cast<const uint4*>(from)), to);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t bits = k + i < m.k ? from[i] : 0u;
      to[i] = kIsBf16 ? bf16_low(bits) : __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    }
  }
}

/// Calls `f.template operator()<format>()`.
template <class F>
__device__ __forceinline__ auto with_format(MatrixFormat format, F&& f) {
  switch (format) {
    case MatrixFormat::bf16:
      return f.template operator()<MatrixFormat::bf16>();
    case MatrixFormat::f16:
      return f.template operator()<MatrixFormat::f16>();
    case MatrixFormat::fp8:
      return f.template operator()<MatrixFormat::fp8>();
    case MatrixFormat::mxfp4:
      return f.template operator()<MatrixFormat::mxfp4>();
    case MatrixFormat::nvfp4:
      return f.template operator()<MatrixFormat::nvfp4>();
    case MatrixFormat::f32:
      break;
  }
  return f.template operator()<MatrixFormat::f32>();
}

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}

/// A row in shared memory: of every eight numbers the first four, and then the other four of all, so that
/// neighbouring lanes read neighbouring 16 bytes. Zeros up to a multiple of 8.
struct SharedRow {
  float* data;
  int64_t half;  ///< floats

  __device__ float& at(int64_t k) const { return data[(k >> 2 & 1) * half + (k >> 3) * 4 + (k & 3)]; }
  __device__ float dot(int64_t k, const float (&w)[8]) const {
    const float4 a = *reinterpret_cast<const float4*>(data + (k >> 1));
    const float4 b = *reinterpret_cast<const float4*>(data + half + (k >> 1));
    return w[0] * a.x + w[1] * a.y + w[2] * a.z + w[3] * a.w + w[4] * b.x + w[5] * b.y + w[6] * b.z +
           w[7] * b.w;
  }
};

__device__ __forceinline__ float gate_unit(float gate, float up, const GateUnits& g) {
  if (g.limit > 0) {
    gate = fminf(gate, g.limit);
    up = fminf(fmaxf(up, -g.limit), g.limit);
  }
  return gate / (1.0f + expf(-g.slope * gate)) * (up + g.offset);
}

/// Four numbers of a row, those behind it 0.
__device__ __forceinline__ float4 load_four(const float* x, int64_t i, int64_t k, bool wide) {
  if (wide) return i < k ? *reinterpret_cast<const float4*>(x + i) : make_float4(0, 0, 0, 0);
  const auto one = [&](int64_t at) { return at < k ? x[at] : 0.0f; };
  return make_float4(one(i), one(i + 1), one(i + 2), one(i + 3));
}
__device__ __forceinline__ float4 add_fours(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ void scale_four(float4& x, float factor, const float4& by) {
  x.x = x.x * factor * by.x, x.y = x.y * factor * by.y;
  x.z = x.z * factor * by.z, x.w = x.w * factor * by.w;
}

/// Brings the input into shared memory, as it is to be multiplied. All loads of a thread are under way before
/// the first is used.
__device__ inline void load_input(const RowInput& in, int64_t row, int64_t k, const SharedRow& to) {
  constexpr int kFours = 2, kStep = kRowThreads * 4;
  auto* sums = reinterpret_cast<double*>(to.data + 2 * to.half);  // [kRowWarps], behind the row
  const float *x = in.x + row * in.stride, *up = in.up != nullptr ? in.up + row * in.stride : nullptr;
  float* sum_out = blockIdx.x == 0 && blockIdx.y == 0 ? in.sum : nullptr;
  const auto is_wide = [&](const float* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  const bool wide = k % 4 == 0 && is_wide(x) && is_wide(in.more) && is_wide(up) && is_wide(in.norm);
  const auto place = [&](int64_t i) { return reinterpret_cast<float4*>(&to.at(i)); };
  const int64_t padded = to.half * 2, first = threadIdx.x * int64_t{4};
  double sum = 0;
  float4 norms[kFours];
  for (int64_t base = first; base < padded; base += kFours * kStep) {
    float4 values[kFours], others[kFours];
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const int64_t i = base + j * kStep;
      values[j] = load_four(x, i, k, wide);
      if (in.more != nullptr) others[j] = load_four(in.more, i, k, wide);
      if (up != nullptr) others[j] = load_four(up, i, k, wide);
      if (in.norm != nullptr && base == first) norms[j] = load_four(in.norm, i, k, wide);
    }
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const int64_t i = base + j * kStep;
      if (i >= padded) break;
      float4& v = values[j];
      if (in.more != nullptr) v = add_fours(v, others[j]);
      if (sum_out != nullptr) {
        const float all[4] = {v.x, v.y, v.z, v.w};
        for (int l = 0; l < 4 && i + l < k; ++l) sum_out[i + l] = all[l];
      }
      if (up != nullptr) {
        v = make_float4(gate_unit(v.x, others[j].x, in.gate), gate_unit(v.y, others[j].y, in.gate),
                        gate_unit(v.z, others[j].z, in.gate), gate_unit(v.w, others[j].w, in.gate));
      }
      sum += static_cast<double>(v.x) * static_cast<double>(v.x) +
             static_cast<double>(v.y) * static_cast<double>(v.y) +
             static_cast<double>(v.z) * static_cast<double>(v.z) +
             static_cast<double>(v.w) * static_cast<double>(v.w);
      *place(i) = v;
    }
  }
  if (in.norm != nullptr) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < kRowWarps; ++i) sum += sums[i];
    const auto factor =
        1.0f / sqrtf(static_cast<float>(sum) / static_cast<float>(k) + static_cast<float>(in.epsilon));
    for (int64_t base = first; base < padded; base += kFours * kStep) {
#pragma unroll
      for (int j = 0; j < kFours; ++j) {
        const int64_t i = base + j * kStep;
        if (i >= padded) break;
        if (base != first) norms[j] = load_four(in.norm, i, k, wide);
        scale_four(*place(i), factor, norms[j]);
      }
    }
  }
  __syncthreads();
}

/// Eight weights as they are stored.
template <MatrixFormat kFormat>
struct StoredEight {
  static constexpr bool kHasCodes = kFormat == MatrixFormat::nvfp4 || kFormat == MatrixFormat::mxfp4;
  static constexpr bool kHasHalves = kFormat == MatrixFormat::bf16 || kFormat == MatrixFormat::f16;
  /// Pieces of a row that a lane asks for before it uses the first.
  static constexpr int kAhead = kHasCodes ? 16 : kHasHalves ? 8 : 2;

  uint4 halves;
  uint32_t codes;
  uint8_t scale;
  float decoded[8];

  __device__ __forceinline__ void fetch(const DeviceMatrix& m, int64_t n, int64_t k, bool wide) {
    if constexpr (kHasCodes) {
      constexpr int kGroup = kFormat == MatrixFormat::nvfp4 ? 16 : 32;
      codes = __ldg(reinterpret_cast<const uint32_t*>(m.weights) + (n * m.k + k) / 8);
      scale = __ldg(static_cast<const uint8_t*>(m.scales) + n * (m.k / kGroup) + k / kGroup);
    } else if constexpr (kHasHalves) {
      const auto* from = static_cast<const uint16_t*>(m.weights) + n * m.k + k;
      if (wide) {
        halves = __ldg(reinterpret_cast<const uint4*>(from));
        return;
      }
      const auto pair = [&](int i) {
        const uint32_t low = k + i < m.k ? from[i] : 0u, high = k + i + 1 < m.k ? from[i + 1] : 0u;
        return low | high << 16;
      };
      halves = make_uint4(pair(0), pair(2), pair(4), pair(6));
    } else {
      load_weights<kFormat>(m, n, k, wide, decoded);
    }
  }
  __device__ __forceinline__ void decode(float (&to)[8]) const {
    if constexpr (kHasCodes) {
      scaled_codes<kFormat>(codes, scale, to);
    } else if constexpr (kHasHalves) {
      decode_halves<kFormat>(halves, to);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) to[i] = decoded[i];
    }
  }
};

/// The beginning of a row of weights in registers, asked for ahead of its use.
template <MatrixFormat kFormat>
struct RowAhead {
  using Eight = StoredEight<kFormat>;
  Eight eights[Eight::kAhead];

  __device__ __forceinline__ void fetch(const DeviceMatrix& m, int64_t n, int64_t first) {
    const bool wide = m.k % 8 == 0;
#pragma unroll
    for (int i = 0; i < Eight::kAhead; ++i) {
      if (first + i * 256 < m.k) eights[i].fetch(m, n, first + i * 256, wide);
    }
  }
  __device__ __forceinline__ float dot(int64_t k, int64_t first, const SharedRow& x) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Eight::kAhead; ++i) {
      if (first + i * 256 >= k) continue;
      float w[8];
      eights[i].decode(w);
      sum += x.dot(first + i * 256, w);
    }
    return sum;
  }
};

/// Row n of a matrix times a row, without the global scale: by a warp, which has fetched its beginning.
template <MatrixFormat kFormat>
__device__ __forceinline__ float dot_row(const DeviceMatrix& m, int64_t n, const SharedRow& x,
                                         RowAhead<kFormat>& ahead) {
  const int64_t lane = threadIdx.x % 32 * 8;
  float sum = ahead.dot(m.k, lane, x);
  for (int64_t k = lane + StoredEight<kFormat>::kAhead * 256; k < m.k;
       k += StoredEight<kFormat>::kAhead * 256) {
    ahead.fetch(m, n, k);
    sum += ahead.dot(m.k, k, x);
  }
  return sum;
}

/// The same of any format.
__device__ __forceinline__ float dot_any_row(const DeviceMatrix& m, int64_t n, const SharedRow& x) {
  return with_format(m.format, [&]<MatrixFormat kFormat>() {
    RowAhead<kFormat> ahead;
    ahead.fetch(m, n, threadIdx.x % 32 * 8);
    return sum_of_warp(dot_row(m, n, x, ahead));
  });
}

/// Shared memory that load_input() takes for rows of `k` numbers, bytes.
constexpr size_t row_shared(int64_t k) {
  return static_cast<size_t>((k + 7) / 8 * 8) * sizeof(float) + kRowWarps * sizeof(double);
}

}  // namespace twofour::cuda
