#pragma once
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "kernels/device/ptx.cuh"
#include "kernels/floats/device_matrix.h"
#include "kernels/floats/input_row.cuh"

/// Multiplies weights, decoded in registers, by a row in shared memory.

namespace twofour::cuda {

__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

/// Decodes eight E2M1 codes to floats times a scale. The first code is in the low nibble.
__device__ __forceinline__ void decode_codes(uint32_t codes, float scale, float (&to)[8]) {
  // The exponent and mantissa of E2M1, put in FP16's place, give the value times 2^-14, including subnormals.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t two = codes >> (4 * i);  // codes i and i + 4
    const uint32_t halves = (two << 9 & 0x0E000E00u) | (two << 12 & 0x80008000u);
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&halves));
    to[i] = both.x * scale, to[i + 4] = both.y * scale;
  }
}

/// The factor of codes from decode_codes() for a positive block scale of NVFP4. The exponent and mantissa of
/// the scale, put in FP16's place, give the value times 2^-8.
__device__ __forceinline__ float scale_of_nvfp4(uint8_t byte) {
  constexpr float kFromHalf = 16384.0f * 256.0f;
  return kFromHalf * __half2float(__ushort_as_half(static_cast<unsigned short>(byte << 7)));
}

/// Decodes eight codes with their stored block scale.
template <MatrixFormat kFormat>
__device__ __forceinline__ void scaled_codes(uint32_t codes, uint8_t byte, float (&to)[8]) {
  constexpr float kFromHalf = 16384.0f;
  if constexpr (kFormat == MatrixFormat::nvfp4) return decode_codes(codes, scale_of_nvfp4(byte), to);
  const float scale = e8m0_to_float(byte);
  if (byte <= 200) return decode_codes(codes, kFromHalf * scale, to);
  // 2^14 times a scale of MXFP4 may overflow, so both factors are applied one after the other.
  decode_codes(codes, kFromHalf, to);
#pragma unroll
  for (float& v : to) v *= scale;
}

/// Decodes eight BF16 or FP16 numbers.
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

/// Loads weights [k, k + 8) of row n, without the global scale. Weights beyond K are 0. `wide` is true if K
/// is a multiple of 8.
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

/// Eight weights as they are stored.
template <MatrixFormat kFormat>
struct StoredEight {
  static constexpr bool kHasCodes = kFormat == MatrixFormat::nvfp4 || kFormat == MatrixFormat::mxfp4;
  static constexpr bool kHasHalves = kFormat == MatrixFormat::bf16 || kFormat == MatrixFormat::f16;
  /// The number of pieces of a row that a lane loads before it uses the first piece.
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

/// The beginning of a row of weights in registers. It is loaded ahead of its use.
template <MatrixFormat kFormat>
struct RowAhead {
  using Eight = StoredEight<kFormat>;
  Eight eights[Eight::kAhead];

  __device__ __forceinline__ void fetch(const DeviceMatrix& m, int64_t n, int64_t first) {
    if (m.k % 8 == 0) return fetch_some(m, n, first, true);
    fetch_some(m, n, first, false);
  }
  __device__ __forceinline__ void fetch_some(const DeviceMatrix& m, int64_t n, int64_t first, bool wide) {
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

/// The product of row n of a matrix and a row, without the global scale. A warp computes it after it has
/// loaded the beginning of the row.
template <MatrixFormat kFormat>
__device__ __forceinline__ float dot_row(const DeviceMatrix& m, int64_t n, const SharedRow& x,
                                         RowAhead<kFormat>& ahead) {
  float sum = 0;
#pragma unroll 1
  for (int64_t k = threadIdx.x % 32 * 8;;) {
    sum += ahead.dot(m.k, k, x);
    k += StoredEight<kFormat>::kAhead * 256;
    if (k >= m.k) return sum;
    ahead.fetch(m, n, k);
  }
}

/// The product of row n of a matrix of any format and a row, without the global scale.
__device__ __forceinline__ float dot_any_row(const DeviceMatrix& m, int64_t n, const SharedRow& x) {
  return with_format(m.format, [&]<MatrixFormat kFormat>() {
    RowAhead<kFormat> ahead;
    ahead.fetch(m, n, threadIdx.x % 32 * 8);
    return sum_of_warp(dot_row(m, n, x, ahead));
  });
}

/// A stored piece of a row of weights, copied to a warp's part of shared memory. The code is short, because
/// it must be fetched each time: in a running model, weights evict it from the caches.
template <MatrixFormat kFormat>
struct RowPiece {
  static constexpr bool kHasCodes = kFormat == MatrixFormat::nvfp4 || kFormat == MatrixFormat::mxfp4;
  static constexpr bool kIsFp8 = kFormat == MatrixFormat::fp8;
  static_assert(kHasCodes || kIsFp8 || kFormat == MatrixFormat::bf16);
  static constexpr int kBits = kHasCodes ? 4 : kIsFp8 ? 8 : 16;
  static constexpr int kGroup = kFormat == MatrixFormat::nvfp4 ? 16 : 32;  ///< numbers of codes with a scale
  static constexpr int kSpan = kHasCodes ? 4096 : 2048;                    ///< numbers
  static constexpr int kLeastColumns = 32;  ///< the least number of columns of FP8 with a scale
  static constexpr int kWeights = kSpan * kBits / 8;
  static constexpr int kScales = kHasCodes ? kSpan / kGroup : kIsFp8 ? kSpan / kLeastColumns * 4 : 0;
  static constexpr int kBytes = kWeights + kScales;

  /// True if rows of `k` numbers can be read in pieces, so that each begins on a multiple of 16 bytes, and
  /// its scales on one of 4. `scale_cols` counts for FP8: no scale may begin before a piece and end in it.
  static bool takes(int64_t k, int64_t scale_cols) {
    if constexpr (kIsFp8) {
      const bool fits = scale_cols >= k || (scale_cols >= kLeastColumns && kSpan % scale_cols == 0);
      return k % 16 == 0 && fits;
    }
    return k % (kHasCodes ? 4 * kGroup : 8) == 0;
  }

  /// Starts the copies of numbers from `first` on. The caller commits them as a group.
  static __device__ __forceinline__ void copy(const DeviceMatrix& m, int64_t n, int64_t first, uint8_t* to) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int count = static_cast<int>(min(int64_t{kSpan}, m.k - first));
    const int bytes = count * kBits / 8;
    const char* from = static_cast<const char*>(m.weights) + (n * m.k + first) * kBits / 8;
#pragma unroll 1
    for (int i = lane * 16; i < bytes; i += 32 * 16) copy_async16_once(shared_address(to + i), from + i);
    if constexpr (kHasCodes) {
      const auto* scales = static_cast<const char*>(m.scales) + (n * m.k + first) / kGroup;
#pragma unroll 1
      for (int i = lane * 4; i < count / kGroup; i += 32 * 4)
        copy_async4(shared_address(to + kWeights + i), scales + i);
    }
    if constexpr (kIsFp8) {
      const int columns = static_cast<int>(min(m.scale_cols, m.k)), used = (count + columns - 1) / columns;
      const float* scales = static_cast<const float*>(m.scales) +
                            n / m.scale_rows * ((m.k + m.scale_cols - 1) / m.scale_cols) + first / columns;
#pragma unroll 1
      for (int i = lane; i < used; i += 32) copy_async4(shared_address(to + kWeights + 4 * i), scales + i);
    }
  }

  /// The sum of the products of a lane's weights with the corresponding numbers of x.
  static __device__ __forceinline__ float dot(int64_t k, int64_t scale_cols, int64_t first,
                                              const uint8_t* piece, const SharedRow& x) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int count = static_cast<int>(min(int64_t{kSpan}, k - first));
    // A divisor of kSpan is a power of two.
    [[maybe_unused]] const int shift = scale_cols < k ? __ffs(static_cast<int>(scale_cols)) - 1 : 31;
    float sum = 0;
#pragma unroll 2
    for (int i = lane * 8; i < count; i += 256) {
      float w[8];
      if constexpr (kHasCodes) {
        // All eight codes have the same scale, which multiplies their sum.
        decode_codes(*reinterpret_cast<const uint32_t*>(piece + i / 2), 1.0f, w);
        const uint8_t byte = piece[kWeights + i / kGroup];
        const float part = x.dot(first + i, w);
        if constexpr (kFormat == MatrixFormat::nvfp4) {
          sum += scale_of_nvfp4(byte) * part;
        } else {
          sum += 16384.0f * part * e8m0_to_float(byte);  // in this order, as 2^14 times a scale may overflow
        }
      } else if constexpr (kIsFp8) {
        const uint2 eight = *reinterpret_cast<const uint2*>(piece + i);
        const uint2 low = halves_of_e4m3(eight.x), high = halves_of_e4m3(eight.y);
        decode_halves<MatrixFormat::f16>(make_uint4(low.x, low.y, high.x, high.y), w);
        sum += reinterpret_cast<const float*>(piece + kWeights)[i >> shift] * x.dot(first + i, w);
      } else {
        decode_halves<kFormat>(*reinterpret_cast<const uint4*>(piece + 2 * i), w);
        sum += x.dot(first + i, w);
      }
    }
    return sum;
  }
};

}  // namespace twofour::cuda
