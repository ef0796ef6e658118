#pragma once
#include "formats/layouts/gate_up_interleaved8.h"
#include "kernels/device/ptx.cuh"
#include "kernels/multiply/dense_launch.h"
#include "kernels/numbers/bf16_codes.cuh"

/// The work of one warp of the dense multiplication: steps of 16 stored rows by 256 k, with m16n8k16. The
/// order of k within a step does not matter as long as weights and x have the same order. Lane t of a quad (t
/// = lane % 4) reads 64 adjacent k, two chunks of 16 bytes of codes. Each 8 k form a word, which makes two
/// fragments. A word gives codes i and i + 4 at once, so the 8 numbers of x have the order 0, 4, 1, 5, 2, 6,
/// 3, 7.

namespace twofour::cuda {

inline constexpr int kDenseStepK = 256, kDenseTileRows = 16;
inline constexpr int kDenseCodeBytes = kDenseTileRows * kDenseStepK / 2;
/// The bytes of a stage. It holds the codes of 16 rows, followed by their block scales.
inline constexpr int kDenseStageBytes = kDenseCodeBytes + kDenseTileRows * kDenseStepK / kGroup;
/// The bytes of one step of a row of x.
inline constexpr int kDenseRowBytes = kDenseStepK * 2;

/// Reorders eight BF16 along k into the order of two fragments.
__device__ __forceinline__ uint4 permuted_unit(const uint4& x) {
  return {__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632), __byte_perm(x.y, x.w, 0x5410),
          __byte_perm(x.y, x.w, 0x7632)};
}
__device__ __forceinline__ uint4 permuted_unit(const uint32_t* from) {
  return permuted_unit(uint4{from[0], from[1], from[2], from[3]});
}

/// The place of number i of gate times up, as BF16. Its row is the input of the next multiplication, which
/// has `steps` steps.
__device__ __forceinline__ int64_t active_place(int64_t row, int64_t steps, int i) {
  return (row * steps * 32 + unit_place(i / 8)) * 8 + i % 4 * 2 + i / 4 % 2;
}

/// Both operands of the tensor cores are FP16: weights times 2^-14, and x times a factor of its row.
struct HalfWeights {
  static constexpr float kFactor = 1;

  /// The block scales of two groups, in the form that decode reads.
  __device__ static __forceinline__ uint2 scales_of(uint32_t pair) {
    const uint32_t halves = half2_of_e4m3(pair);
    return {halves & 0xFFFFu, halves >> 16};
  }
  /// Decodes eight codes as pairs of codes i and i + 4.
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

/// Both operands are BF16: weights times 2^-7, and x unchanged.
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

/// The offset of the scale of group `group` in stored row `row`.
__host__ __device__ __forceinline__ int64_t dense_scale_at(const DenseArgs& a, int e, int row, int group) {
  if (!a.g8) return (static_cast<int64_t>(e) * a.n + row) * (a.k / kGroup) + group;
  const Shape shape{a.e, a.n, a.k};
  const Stored s = GateUpInterleaved8::place(shape, {e, row, group, 8});
  const Part part = GateUpInterleaved8::part(1, shape);
  return (s.at.e * part.rows + s.at.row) * part.cols + s.at.col;
}

/// The number of tiles of an expert.
TWOFOUR_HD constexpr int dense_tiles(int n, bool g8) {
  if (!g8) return (n + kDenseTileRows - 1) / kDenseTileRows;
  const int rest = n % 128;
  return n / 128 * 8 + (rest == 0 ? 0 : rest <= 16 ? 4 : 8);
}

/// The access to stored weights: with wide reads of rows as in a checkpoint, with wide reads of g8, or byte
/// by byte.
enum class DenseAccess { rows, g8, bytes };

/// True if weights are g8. This is a compile-time constant unless kAccess is bytes.
template <DenseAccess kAccess>
__device__ __forceinline__ bool is_g8(const DenseArgs& a) {
  return kAccess == DenseAccess::bytes ? a.g8 : kAccess == DenseAccess::g8;
}

/// The 16 stored rows of a tile, as rows of a fragment. Gate and up are rows g and g + 8. In g8, four rows of
/// a tile are 32 rows apart, so their block scales of four groups are 16 adjacent bytes. If N ends within 128
/// rows, some rows of a tile are beyond N.
struct DenseTile {
  int first, apart;

  __device__ __forceinline__ DenseTile(int tile, bool g8)
      : first(g8 ? tile / 8 * 128 + tile / 4 % 2 * 16 + tile % 4 * 2 : tile * kDenseTileRows),
        apart(g8 ? 32 : 2) {}
  __device__ __forceinline__ int row(int g) const { return first + g / 2 % 4 * apart + g / 8 * 8 + g % 2; }
};

/// The place of row `g` of a fragment in a stage. The stage has the rows in the order 0, 1, 8, 9, 2, 3, 10,
/// 11 and so on. Rows take 128 bytes.
__device__ __forceinline__ int stage_row(int g) { return g / 2 % 4 * 4 + g / 8 * 2 + g % 2; }
/// The row of a fragment that is at place `i` of a stage.
__device__ __forceinline__ int row_of_stage(int i) { return i / 4 * 2 + i / 2 % 2 * 8 + i % 2; }
/// The place of chunk `chunk` (32 k) of row `i` in a stage. Places are chosen so that lanes that read
/// together use different banks.
__device__ __forceinline__ int dense_code_place(int i, int chunk) {
  return i * (kDenseStepK / 2) + (chunk ^ i % 2) * 16;
}
/// The place of block scales 4 * `four` to 4 * `four` + 3 of row `i` in a stage. The order is the order of
/// the 128x4 tiles of g8.
__device__ __forceinline__ int dense_scale_place(int i, int four) {
  return kDenseCodeBytes + four * 64 + i % 4 * 16 + i / 4 * 4;
}

/// The addresses from which a lane copies the steps of a tile. A lane copies chunk lane % 8 of the codes of
/// stage rows 4i + lane / 8. In g8, only lanes l below 16 copy block scales, 16 bytes each: groups 4(l / 4)
/// to 4(l / 4) + 3 of stage rows l % 4 + 4i. In other layouts, lane l copies groups 4(l % 4) to 4(l % 4) + 3
/// of stage rows 8i + l / 4.
template <bool kG8>
struct DenseCopies {
  const uint8_t *codes, *scales;  ///< addresses for the next step
  int32_t left;                   ///< remaining k, including the next step
  int32_t last;                   ///< the last i of codes whose rows are below N

  /// Moves to a step of a tile of an expert.
  __device__ __forceinline__ void aim(const uint8_t* expert_codes, const uint8_t* expert_scales,
                                      const DenseTile& tile, int n, int k, int64_t scale_step,
                                      int64_t scale_rows_128, int step, int lane) {
    codes = expert_codes + static_cast<int64_t>(tile.row(row_of_stage(lane / 8))) * (k / 2) +
            step * (kDenseStepK / 2) + lane % 8 * 16;
    if (kG8) {
      const int in_128 = tile.row(row_of_stage(lane % 4)) % 128;
      scales = expert_scales + tile.first / 128 * scale_rows_128 + lane / 4 * (scale_step / 4) + in_128 * 16;
    } else {
      scales = expert_scales + static_cast<int64_t>(tile.row(row_of_stage(lane / 4))) * (k / kGroup) +
               lane % 4 * 4;
    }
    scales += step * scale_step;
    left = k - step * kDenseStepK;
    last = kG8 ? (n - 1 - tile.first) / 32 : 3;
  }

  /// Copies a step into a stage, with zeros beyond K, and advances by `steps`. Rows beyond N are not copied,
  /// because their products are ignored.
  __device__ __forceinline__ void copy(uint32_t stage, int k, int steps, int64_t scale_step, int lane) {
    const uint32_t code_bytes = lane % 8 * 32 < left ? 16 : 0;
    const uint32_t to = stage + dense_code_place(lane / 8, lane % 8);
    const int64_t apart = static_cast<int64_t>(kG8 ? 32 : 2) * (k / 2);
    const auto copy_codes = [&](int i) {
      copy_async16_ahead(to + i * 4 * (kDenseStepK / 2), codes + i * apart, code_bytes);
    };
    if (last >= 3) {
#pragma unroll
      for (int i = 0; i < 4; ++i) copy_codes(i);
    } else {
#pragma unroll 1
      for (int i = 0; i <= last; ++i) copy_codes(i);
    }
    if (kG8) {
      if (lane < 16)
        copy_async16(stage + dense_scale_place(lane % 4, lane / 4), scales, lane / 4 * 64 < left ? 16 : 0);
    } else {
      const uint32_t bytes = lane % 4 * 64 < left ? 4 : 0;
      copy_async4(stage + dense_scale_place(lane / 4, lane % 4), scales, bytes);
      copy_async4(stage + dense_scale_place(8 + lane / 4, lane % 4), scales + 4 * (k / kGroup), bytes);
    }
    codes += steps * (kDenseStepK / 2), scales += steps * scale_step, left -= steps * kDenseStepK;
  }
};

/// Copies steps of the tiles of a warp into stages. Numbers beyond K become zero.
template <DenseAccess kAccess>
struct DenseLoader {
  static constexpr bool kWide = kAccess != DenseAccess::bytes;
  const DenseArgs& a;
  int lane, e = 0, step = 0;
  DenseTile tile{0, false};
  DenseCopies<kAccess == DenseAccess::g8> from;  ///< kWide only

  __device__ __forceinline__ DenseLoader(const DenseArgs& args, int lane_) : a(args), lane(lane_) {}

  /// Moves to step `first_step` of a tile of an expert.
  __device__ __forceinline__ void aim(int expert, int tile_of_expert, int first_step) {
    tile = DenseTile(tile_of_expert, is_g8<kAccess>(a));
    e = expert, step = first_step;
    if constexpr (kWide)
      from.aim(a.codes + e * a.code_expert, a.scales + e * a.scale_expert, tile, a.n, a.k, a.scale_step,
               a.scale_rows_128, step, lane);
  }
  /// The number of remaining k, including the next step.
  __device__ __forceinline__ int left() const { return kWide ? from.left : a.k - step * kDenseStepK; }

  /// Copies a step and advances by `steps`.
  __device__ __forceinline__ void fill(uint8_t* stage, int steps) {
    if constexpr (kWide) {
      from.copy(shared_address(stage), a.k, steps, a.scale_step, lane);
    } else {
      fill_bytes(stage);
      step += steps;
    }
  }

  /// Copies a step byte by byte, for any shape and alignment.
  __device__ void fill_bytes(uint8_t* stage) const {
    const int byte = step * (kDenseStepK / 2) + lane % 8 * 16, pitch = a.k / 2, groups = a.k / kGroup;
    for (int i = lane / 8; i < kDenseTileRows; i += 4) {
      const int row = tile.row(row_of_stage(i));
      const uint8_t* codes = a.codes + (static_cast<int64_t>(e) * a.n + row) * pitch + byte;
      for (int b = 0; b < 16; ++b)
        stage[dense_code_place(i, lane % 8) + b] = row < a.n && byte + b < pitch ? codes[b] : 0;
    }
    for (int i = lane / 4; i < kDenseTileRows; i += 8) {
      const int row = tile.row(row_of_stage(i));
      for (int b = 0; b < 4; ++b) {
        const int group = step * (kDenseStepK / kGroup) + lane % 4 * 4 + b;
        stage[dense_scale_place(i, lane % 4) + b] =
            row < a.n && group < groups ? a.scales[dense_scale_at(a, e, row, group)] : 0;
      }
    }
  }
};

/// The positions of a lane's rows of x in a step. There are kTiles times eight rows of kDenseRowBytes each.
template <int kTiles>
struct DenseInput {
  int at[kTiles];  ///< bytes to the unit of the lane's first word

  /// There are `m` rows. Other rows read the last of these rows, and their products are ignored.
  __device__ __forceinline__ DenseInput(int m, int lane) {
#pragma unroll
    for (int q = 0; q < kTiles; ++q) {
      const int row = min(8 * q + lane / 4, m - 1);
      at[q] = row * kDenseRowBytes + shared_unit(row, lane % 4);
    }
  }
  /// The position of unit `place` in a step of row `row`. Positions are chosen so that rows that lanes read
  /// together use different banks.
  __device__ static __forceinline__ int shared_unit(int row, int place) { return (place ^ row % 2 * 4) * 16; }
  /// Reads the unit (see unit_place) that belongs to a word of the lane's codes.
  __device__ __forceinline__ uint4 read(const uint8_t* x, int q, int word) const {
    return *reinterpret_cast<const uint4*>(x + (word % 2 == 0 ? at[q] : at[q] ^ 64) + word / 2 * 128);
  }
};

/// The unit (k / 8) of a step that unit_place puts at `place`. This is the inverse of unit_place.
__device__ __forceinline__ int unit_at(int place) { return place % 4 * 8 + place / 4; }

/// Adds to `sums` the product of a stage of weights and a step of x. Products for the same sums wait for each
/// other, so there are kChains independent sums.
template <class Weights, int kChains, int kTiles>
__device__ __forceinline__ void multiply_dense_step(const uint8_t* stage, const uint8_t* x,
                                                    const DenseInput<kTiles>& input, int lane,
                                                    float (&sums)[kTiles][4]) {
  const int row = stage_row(lane / 4), t = lane % 4;
  const uint8_t* codes_at[2] = {stage + dense_code_place(row, 2 * t),
                                stage + dense_code_place(row, 2 * t + 1)};
  const uint8_t* scales_at = stage + dense_scale_place(row, t);
  uint2 scale[2][2];  // for rows g and g + 8, and for the half of the four groups that a word uses
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto four = *reinterpret_cast<const uint32_t*>(scales_at + r * 32);
    scale[r][0] = Weights::scales_of(four), scale[r][1] = Weights::scales_of(four >> 16);
  }
  float chains[kChains][kTiles][4] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint4 codes[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      codes[r] = *reinterpret_cast<const uint4*>(codes_at[h] + r * 2 * (kDenseStepK / 2));
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const auto word = [&](const uint4& c) { return w == 0 ? c.x : w == 1 ? c.y : w == 2 ? c.z : c.w; };
      uint32_t upper[4], lower[4];
      Weights::decode(word(codes[0]), w < 2 ? scale[0][h].x : scale[0][h].y, upper);
      Weights::decode(word(codes[1]), w < 2 ? scale[1][h].x : scale[1][h].y, lower);
#pragma unroll
      for (int q = 0; q < kTiles; ++q) {
        const uint4 b = input.read(x, q, h * 4 + w);
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
