#pragma once
#include "formats/layouts/gate_up_interleaved8.h"
#include "kernels/device/ptx.cuh"
#include "kernels/multiply/bf16_codes.cuh"
#include "kernels/multiply/dense_launch.h"

/// What one warp of the dense multiplication does: steps of 16 stored rows by 256 k, m16n8k16. The order of k
/// within a step is free as long as both sides have it: of every 128 k, lane t of a quad (t = lane % 4) takes
/// 32 neighbours, 16 bytes of codes, and each 8 of them, a word, are two fragments. A word gives codes i and
/// i + 4 at once, so x has its 8 in the order 0, 4, 1, 5, 2, 6, 3, 7.

namespace twofour::cuda {

inline constexpr int kDenseStepK = 256, kDenseTileRows = 16;
inline constexpr int kDenseCodeBytes = kDenseTileRows * kDenseStepK / 2;
/// A stage holds 16 rows of codes, then of block scales.
inline constexpr int kDenseStageBytes = kDenseCodeBytes + kDenseTileRows * kDenseStepK / kGroup;
/// Of a row of x, a step.
inline constexpr int kDenseRowBytes = kDenseStepK * 2;

/// Eight BF16 along k, as two fragments take them.
__device__ __forceinline__ uint4 permuted_unit(const uint32_t* from) {
  const uint32_t x[4] = {from[0], from[1], from[2], from[3]};
  return {__byte_perm(x[0], x[2], 0x5410), __byte_perm(x[0], x[2], 0x7632), __byte_perm(x[1], x[3], 0x5410),
          __byte_perm(x[1], x[3], 0x7632)};
}

/// Where a value of gate times up goes as BF16: number i of a row whose next multiplication has `steps`
/// steps.
__device__ __forceinline__ int64_t active_place(int64_t row, int64_t steps, int i) {
  return (row * steps * 32 + unit_place(i / 8)) * 8 + i % 4 * 2 + i / 4 % 2;
}

/// Both sides of the tensor cores are halves: weights times 2^-14, x under a factor of its row.
struct HalfWeights {
  static constexpr float kFactor = 1;

  /// Block scales of two groups, for decode.
  __device__ static __forceinline__ uint2 scales_of(uint32_t pair) {
    const uint32_t halves = half2_of_e4m3(pair);
    return {halves & 0xFFFFu, halves >> 16};
  }
  /// Eight codes as pairs of codes i and i + 4.
  __device__ static __forceinline__ void decode(uint32_t w, uint32_t scale, uint32_t (&out)[4]) {
    out[0] = ((w << 12) & 0x80008000u) | ((w << 9) & 0x0E000E00u);
    out[1] = ((w << 8) & 0x80008000u) | ((w << 5) & 0x0E000E00u);
    out[2] = ((w << 4) & 0x80008000u) | ((w << 1) & 0x0E000E00u);
    out[3] = (w & 0x80008000u) | ((w >> 3) & 0x0E000E00u);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = multiply_low(out[i], scale);
  }
  __device__ static __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

/// Both sides are BF16: weights times 2^-7, x as it is.
struct Bf16Weights {
  static constexpr float kFactor = 0x1p7f;

  __device__ static __forceinline__ uint2 scales_of(uint32_t pair) {
    const uint32_t halves = half2_of_e4m3(pair);
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&halves));
    const float low = two.x * 0x1p119f, high = two.y * 0x1p119f;
    return {bfloat2_of(low, low), bfloat2_of(high, high)};
  }
  __device__ static __forceinline__ void decode(uint32_t w, uint32_t scale, uint32_t (&out)[4]) {
    out[0] = multiply_bf16(low_codes(w), scale), out[1] = multiply_bf16(high_codes(w), scale);
    out[2] = multiply_bf16(low_codes(w >> 8), scale), out[3] = multiply_bf16(high_codes(w >> 8), scale);
  }
  __device__ static __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

/// Offset of the scale of group `group` of stored row `row`.
__host__ __device__ __forceinline__ int64_t dense_scale_at(const DenseArgs& a, int e, int row, int group) {
  if (!a.g8) return (static_cast<int64_t>(e) * a.n + row) * (a.k / kGroup) + group;
  const Shape shape{a.e, a.n, a.k};
  const Stored s = GateUpInterleaved8::place(shape, {e, row, group, 8});
  const Part part = GateUpInterleaved8::part(1, shape);
  return (s.at.e * part.rows + s.at.row) * part.cols + s.at.col;
}

/// Where a lane puts its 16-byte chunk of a row's codes in a stage, and its four block scales: 8 lanes a row
/// of codes, chunks apart by row for the readers.
__device__ __forceinline__ int dense_code_place(int lane, int row) {
  return row * (kDenseStepK / 2) + (lane % 8 ^ (row % 2 * 4)) * 16;
}
__device__ __forceinline__ int dense_scale_place(int lane, int row) {
  return kDenseCodeBytes + row * 16 + lane % 4 * 4;
}

/// Copies a step of 16 rows into a stage. `codes` of row lane / 8 and `scales` of row lane / 4 are the lane's
/// own; `left` k are there, the rest becomes zero; `scale_rows` bytes are from a row's scales to those 8
/// further.
__device__ __forceinline__ void copy_dense_step(uint8_t* stage, int lane, const uint8_t* codes,
                                                const uint8_t* scales, int k, int left, int64_t scale_rows) {
  const uint32_t code_bytes = lane % 8 * 32 < left ? 16 : 0, scale_bytes = lane % 4 * 64 < left ? 4 : 0;
#pragma unroll
  for (int i = 0; i < 4; ++i, codes += 2 * k)  // four rows
    copy_async16_ahead(shared_address(stage + dense_code_place(lane, 4 * i + lane / 8)), codes, code_bytes);
#pragma unroll
  for (int i = 0; i < 2; ++i, scales += scale_rows)
    copy_async4(shared_address(stage + dense_scale_place(lane, 8 * i + lane / 4)), scales, scale_bytes);
}

/// Copies steps of a warp's 16 rows into stages. What is behind K becomes zero.
template <bool kAligned>
struct DenseLoader {
  const DenseArgs& a;
  int lane, e = 0, row0 = 0;
  const uint8_t *codes = nullptr, *scales = nullptr;  ///< of the first step, kAligned only

  __device__ __forceinline__ DenseLoader(const DenseArgs& args, int lane_) : a(args), lane(lane_) {}

  /// From now on steps are of rows [row, row + 16) of an expert.
  __device__ __forceinline__ void aim(int expert, int row) {
    e = expert, row0 = row;
    if (kAligned && row0 < a.n) {
      codes = a.codes + (static_cast<int64_t>(e) * a.n + row0 + lane / 8) * (a.k / 2) + lane % 8 * 16;
      scales = a.scales + dense_scale_at(a, e, row0 + lane / 4, lane % 4 * 4);
    }
  }

  __device__ __forceinline__ void fill(uint8_t* stage, int step) const {
    if constexpr (!kAligned) return fill_bytes(stage, step);
    copy_dense_step(stage, lane, codes + step * (kDenseStepK / 2),
                    scales + static_cast<int64_t>(step) * a.scale_step, a.k, a.k - step * kDenseStepK,
                    a.scale_rows);
  }

  /// For any shape and alignment.
  __device__ void fill_bytes(uint8_t* stage, int step) const {
    const int byte = step * (kDenseStepK / 2) + lane % 8 * 16, pitch = a.k / 2, groups = a.k / kGroup;
    for (int row = lane / 8; row < kDenseTileRows; row += 4) {
      const uint8_t* from = a.codes + (static_cast<int64_t>(e) * a.n + row0 + row) * pitch + byte;
      for (int b = 0; b < 16; ++b)
        stage[dense_code_place(lane, row) + b] = row0 + row < a.n && byte + b < pitch ? from[b] : 0;
    }
    for (int row = lane / 4; row < kDenseTileRows; row += 8) {
      for (int b = 0; b < 4; ++b) {
        const int group = step * (kDenseStepK / kGroup) + lane % 4 * 4 + b;
        stage[dense_scale_place(lane, row) + b] =
            row0 + row < a.n && group < groups ? a.scales[dense_scale_at(a, e, row0 + row, group)] : 0;
      }
    }
  }
};

/// The unit (k / 8) of a step that unit_place puts at `place`.
__device__ __forceinline__ int unit_at(int place) { return place / 16 * 16 + place % 4 * 4 + place / 4 % 4; }

/// The place of unit `place` (see unit_place) of a step of row `row` in shared memory, apart for rows that
/// lanes read together.
__device__ __forceinline__ int shared_unit(int row, int place) { return (place ^ (row % 2 * 4)) * 16; }

/// sums += a stage of weights times a step of `m` rows of x, kDenseRowBytes each. Products of the same sums
/// wait for each other: kChains of them do not.
template <class Weights, int kChains, int kTiles>
__device__ __forceinline__ void multiply_dense_step(const uint8_t* stage, const uint8_t* x, int m, int lane,
                                                    float (&sums)[kTiles][4]) {
  const int g = lane / 4, t = lane % 4;
  float chains[kChains][kTiles][4] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint4 codes[2];
    uint2 scale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = g + 8 * r;
      codes[r] = *reinterpret_cast<const uint4*>(stage + row * (kDenseStepK / 2) +
                                                 ((4 * h + t) ^ (row % 2 * 4)) * 16);
      scale[r] = Weights::scales_of(
          *reinterpret_cast<const uint16_t*>(stage + kDenseCodeBytes + row * 16 + 8 * h + 2 * t));
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const auto word = [&](const uint4& c) { return w == 0 ? c.x : w == 1 ? c.y : w == 2 ? c.z : c.w; };
      uint32_t upper[4], lower[4];
      Weights::decode(word(codes[0]), w < 2 ? scale[0].x : scale[0].y, upper);
      Weights::decode(word(codes[1]), w < 2 ? scale[1].x : scale[1].y, lower);
#pragma unroll
      for (int q = 0; q < kTiles; ++q) {
        const int row = min(8 * q + g, m - 1);
        const uint4 b =
            *reinterpret_cast<const uint4*>(x + row * kDenseRowBytes + shared_unit(row, (h * 4 + w) * 4 + t));
        float(&d)[4] = w % kChains > 0 ? chains[w % kChains][q] : sums[q];
        Weights::mma(d, upper[0], lower[0], upper[1], lower[1], b.x, b.y);
        Weights::mma(d, upper[2], lower[2], upper[3], lower[3], b.z, b.w);
      }
    }
  }
#pragma unroll
  for (int c = 1; c < kChains; ++c) {
#pragma unroll
    for (int q = 0; q < kTiles; ++q) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[q][i] += chains[c][q][i];
    }
  }
}

}  // namespace twofour::cuda
