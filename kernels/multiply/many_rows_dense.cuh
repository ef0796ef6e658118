#pragma once
#include "formats/layouts/gate_up_interleaved8.h"
#include "kernels/device/ptx.cuh"
#include "kernels/device/warpgroup.cuh"
#include "kernels/device/wgmma_dense.cuh"
#include "kernels/multiply/many_rows_width.cuh"

/// g8 weights of the many-row kernel: 256 stored rows (128 for each warpgroup) by 128 k a stage.
///
/// The order of k within 64 is free as long as both sides have it: lane t of a quad takes 16 neighbours, one
/// block scale, 8 bytes of codes; each word of them is two fragments, and gives codes i and i + 4 at once. So
/// x has k = 16t + 8v + 2j + r + 4b at place 16 (2v + j) + 8r + 2t + b of its 64.
///
/// MMA row and stored row are matched freely too. Gated, a lane has gates in MMA row g and the ups of the
/// same columns in row g + 8, of columns c (m-tile 0) and c + 4, which are neighbours in that order: what the
/// eight lanes of a store have is too. Otherwise a lane has four neighbouring rows. `place_of_row` puts the
/// rows that lanes read together on different banks.

namespace twofour::cuda {

/// Where k has its place in the order that DenseTiles takes x in.
__host__ __device__ constexpr int64_t permuted_k(int64_t k) {
  const auto t = k % 64 / 16, v = k % 16 / 8, b = k % 8 / 4, j = k % 4 / 2, r = k % 2;
  return k / 64 * 64 + 16 * (2 * v + j) + 8 * r + 2 * t + b;
}

struct DenseTiles {
  static constexpr int kStepK = 128;
  static constexpr int kCodes = 0;          ///< [warpgroup][place of a row][64]
  static constexpr int kRawScales = 16384;  ///< [warpgroup][64 k][32][16] E4M3
  static constexpr int kScales = 18432;  ///< [warpgroup][64 k][m-tile][warp][lane] pairs of BF16, times 2^119
  static constexpr int kBytes = 22528;   ///< of a stage
  static constexpr float kDecodedFactor = 0x1p7;
  using Layout = GateUpInterleaved8;

  const uint8_t *codes, *scales;
  int64_t code_expert, scale_expert;  ///< bytes from expert to expert
  int64_t code_row;                   ///< bytes from a stored row to the next
  int64_t scale_block;                ///< bytes from 128 stored rows to the next
  int64_t scale_step;                 ///< bytes from 64 k to the next; those of 128 rows are neighbours

  /// Of a warpgroup's 128 rows.
  __device__ static __forceinline__ int place_of_row(bool gated, int row) {
    return gated ? row / 32 + row % 32 * 4 : row / 4 % 4 + row % 4 * 4 + row / 16 * 16;
  }
  /// What place_of_row undoes for the lane that multiplies the row: the m-tile, whether MMA row g + 8, warp
  /// and g.
  struct RowOwner {
    int tile, lower, warp, g;
  };
  __device__ static __forceinline__ RowOwner owner_of_row(bool gated, int row) {
    return gated ? RowOwner{row / 4 % 2, row / 8 % 2, row / 16 % 2 * 2 + row / 2 % 2, row % 2 * 4 + row / 32}
                 : RowOwner{row / 2 % 2, row % 2, row / 32, row / 4 % 8};
  }

  /// What a thread of the producer copies: a quarter of a row's codes in each 32, and block scales.
  struct Copier {
    const uint8_t *codes, *scales;
    int thread, present, to;
    bool gated, own_scales;

    __device__ __forceinline__ Copier(int t) : thread(t) {}

    __device__ __forceinline__ void start(const DenseTiles& w, const ManyRows& a, int expert,
                                          int column_tile) {
      const auto e = static_cast<int64_t>(expert);
      const int row = column_tile * 256 + thread / 4, block = column_tile * 2 + thread / 64;
      present = a.n - row;
      codes = w.codes + e * w.code_expert + row * w.code_row + thread % 4 * 16;
      own_scales = block * 128 < a.n;
      scales = w.scales + e * w.scale_expert + block * w.scale_block + thread / 32 % 2 * w.scale_step +
               thread % 32 * 16;
      gated = a.gated;
      const int place = place_of_row(gated, thread / 4);
      to = kCodes + place * 64 + ((thread % 4 ^ place / 2 % 2 * 2) * 16);
    }

    __device__ __forceinline__ void copy(const DenseTiles& w, uint32_t stage) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        // 32 rows further, by place_of_row
        const int at = i / 4 * 8192 + (gated ? (to + i % 4 * 64) ^ i % 4 / 2 * 32 : to + i % 4 * 2048);
        if (32 * i < present) copy_async16(stage + static_cast<uint32_t>(at), codes + 32 * i * w.code_row);
      }
      if (own_scales) copy_async16(stage + static_cast<uint32_t>(kRawScales + thread * 16), scales);
      codes += kStepK / 2, scales += 2 * w.scale_step;
    }
  };

  /// Converts the block scales that the thread copied.
  __device__ static __forceinline__ void finish(uint8_t* stage, int thread, bool gated) {
    const uint4 raw = *reinterpret_cast<const uint4*>(stage + kRawScales + thread * 16);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    uint8_t* scales = stage + kScales + thread / 32 * 1024;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 h = halves_of_e4m3(words[i]);
      const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&h.x));
      const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&h.y));
      const float four[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int byte = thread % 32 * 16 + 4 * i + b;
        const Source s = Layout::source(1, Shape{1, 128, 64}, {0, byte / 4, byte % 4});
        const RowOwner o = owner_of_row(gated, static_cast<int>(s.n));
        const int at = ((o.tile * 4 + o.warp) * 32 + o.g * 4 + static_cast<int>(s.group)) * 4 + o.lower * 2;
        *reinterpret_cast<__nv_bfloat16*>(scales + at) = __float2bfloat16_rn(four[b] * 0x1p119f);
      }
    }
  }

  /// Where a lane reads what is its own, from the start of a stage's weights.
  struct Reader {
    uint32_t codes, scales;
    int32_t to_tile, to_lower;  ///< bytes from m-tile 0 to 1, from MMA row g to g + 8
    __device__ __forceinline__ Reader(int warpgroup, int warp, int lane, bool gated) {
      const int g = lane / 4, t = lane % 4;
      const int row = gated ? 32 * (g % 4) + 16 * (warp / 2) + 2 * (warp % 2) + g / 4 : 32 * warp + 4 * g;
      const int place = place_of_row(gated, row);
      codes = static_cast<uint32_t>(kCodes + warpgroup * 8192 + place * 64 +
                                    ((t / 2 ^ place / 2 % 2 * 2) * 16) + t % 2 * 8);
      scales = static_cast<uint32_t>(kScales + warpgroup * 2048 + warp * 128 + lane * 4);
      to_tile = (gated ? 16 : 8) * 64, to_lower = (gated ? 32 : 4) * 64;
    }
  };

  /// Half (j) of eight codes, as pairs of BF16 of codes i and i + 4: E2M1 times E4M3 times 2^-7, exactly.
  __device__ static __forceinline__ uint2 decode(uint32_t w, int j, uint32_t scale) {
    constexpr uint32_t kSigns = 0x80008000u, kMagnitudes = 0x01C001C0u;
    return j == 0 ? uint2{multiply_bf16(((w << 12) & kSigns) | ((w << 6) & kMagnitudes), scale),
                          multiply_bf16(((w << 8) & kSigns) | ((w << 2) & kMagnitudes), scale)}
                  : uint2{multiply_bf16(((w << 4) & kSigns) | ((w >> 2) & kMagnitudes), scale),
                          multiply_bf16((w & kSigns) | ((w >> 6) & kMagnitudes), scale)};
  }

  /// What a lane reads of a stage.
  struct Raw {
    uint2 codes[2][2][2];   ///< [64 k][m-tile][MMA row g or g + 8]
    uint32_t scales[2][2];  ///< [64 k][m-tile], of both rows
    __device__ __forceinline__ void load(const Reader& read, const uint8_t* stage) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          const uint8_t* from = stage + (read.codes ^ (s * 32u)) + tile * read.to_tile;
          codes[s][tile][0] = *reinterpret_cast<const uint2*>(from);
          codes[s][tile][1] = *reinterpret_cast<const uint2*>(from + read.to_lower);
          scales[s][tile] = *reinterpret_cast<const uint32_t*>(stage + read.scales + s * 1024 + tile * 512);
        }
      }
    }
  };

  /// As SparseTiles::multiply.
  template <int kRows, class Next>
  __device__ static __forceinline__ void multiply(const Raw& raw, uint32_t x, float (&sums)[2][kRows / 2],
                                                  const Next& next) {
    const uint64_t b = describe_rows(x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int s = i / 4, v = i / 2 % 2, j = i % 2;
      uint32_t a[2][4];
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint32_t scales = raw.scales[s][tile];
        const uint2 upper = raw.codes[s][tile][0], lower = raw.codes[s][tile][1];
        const uint2 g = decode(v ? upper.y : upper.x, j, __byte_perm(scales, scales, 0x1010));
        const uint2 g8 = decode(v ? lower.y : lower.x, j, __byte_perm(scales, scales, 0x3232));
        a[tile][0] = g.x, a[tile][1] = g8.x, a[tile][2] = g.y, a[tile][3] = g8.y;
      }
      const uint64_t at = b + s * (kMostRows * 128 / 16) + (2 * v + j) * 2;
      begin_wgmma();
      wgmma_dense(sums[0], a[0], at);
      wgmma_dense(sums[1], a[1], at);
      commit_wgmma();
      if (i < 7) wait_wgmma<1>();
    }
    next();
    wait_wgmma<0>();
  }

  /// As SparseTiles::give_sums. Gated, of two columns at a time, which are neighbours in the order of
  /// permuted_k: the first's place there.
  template <int kRows, class Use>
  __device__ static __forceinline__ void give_sums(const float (&sums)[2][kRows / 2], bool gated, int warp,
                                                   int lane, const Use& use) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int b = 0; b < kRows / 8; ++b) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 8 * b + 2 * t + r;
        const float4 v{sums[0][4 * b + r], sums[0][4 * b + 2 + r], sums[1][4 * b + r],
                       sums[1][4 * b + 2 + r]};
        if (gated) {
          use(row, 16 * warp + 8 * (g / 4) + 2 * (g % 4), float2{v.x, v.z}, float2{v.y, v.w});
        } else {
          use(row, 32 * warp + 4 * g, v, float4{});
        }
      }
    }
  }
};

}  // namespace twofour::cuda
