#pragma once
#include "formats/layouts/gate_up_interleaved8.h"
#include "kernels/device/ptx.cuh"
#include "kernels/device/warpgroup.cuh"
#include "kernels/device/wgmma_dense.cuh"
#include "kernels/multiply/bf16_codes.cuh"
#include "kernels/multiply/many_rows_store.cuh"
#include "kernels/multiply/many_rows_width.cuh"

/// g8 weights of the many-row kernel: 256 stored rows (128 for each warpgroup) by 64 k a stage.
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
  static constexpr int kStepK = 64;
  /// Whether all sums start at zero or those of the width alone. No result depends on it, but how the
  /// compiler orders the loop does: the other value takes 3 % longer in layers.
  static constexpr bool kClearAll = false;
  static constexpr int kCodes = 0;         ///< [warpgroup][place of a row][32]
  static constexpr int kRawScales = 8192;  ///< [warpgroup][32][16] E4M3
  /// [warpgroup][warp][m-tile][lane] pairs of BF16, times 2^119. They begin over raw ones, read before.
  static constexpr int kScales = 9088;
  static constexpr int kTileScales = 136;  ///< bytes of a warp's m-tile: two banks more than its lanes fill
  static constexpr int kBytes = 11264;     ///< of a stage
  static constexpr float kDecodedFactor = 0x1p7;
  using Layout = GateUpInterleaved8;

  const uint8_t *codes, *scales;
  int64_t code_expert, scale_expert;  ///< bytes from expert to expert
  int64_t code_row;                   ///< bytes from a stored row to the next
  int64_t scale_block;                ///< bytes from 128 stored rows to the next
  int64_t scale_step;                 ///< bytes from 64 k to the next; those of 128 rows are neighbours

  /// Of a warpgroup's 128 rows.
  __device__ static constexpr int place_of_row(bool gated, int row) {
    return gated ? row / 32 + row % 32 * 4 : row / 4 % 4 + row % 4 * 4 + row / 16 * 16;
  }
  /// What place_of_row undoes for the lane that multiplies the row: the m-tile, whether MMA row g + 8, warp
  /// and g.
  struct RowOwner {
    int tile, lower, warp, g;
  };
  __device__ static constexpr RowOwner owner_of_row(bool gated, int row) {
    return gated ? RowOwner{row / 4 % 2, row / 8 % 2, row / 16 % 2 * 2 + row / 2 % 2, row % 2 * 4 + row / 32}
                 : RowOwner{row / 2 % 2, row % 2, row / 32, row / 4 % 8};
  }

  /// What one of 128 threads copies of a stage: half the codes of four rows, and in half the warps 16 block
  /// scales of 128 rows. Rows are dealt to threads so that what a warp copies goes to all banks.
  struct Copier {
    const uint8_t *codes, *scales;
    int present;  ///< rows from the thread's first on
    bool has_scales;

    /// The thread's first row, and from there to the second; the others are 128 rows on.
    __device__ static constexpr int first_row(bool gated, int thread) {
      return gated ? thread / 2 % 4 * 32 + thread / 8 : thread / 2;
    }
    __device__ static constexpr int to_second_row(bool gated) { return gated ? 16 : 64; }

    __device__ __forceinline__ void start(const DenseTiles& w, const ManyRows& a, int expert, int column_tile,
                                          int step, int thread) {
      const int warp = thread / 32, lane = thread % 32;
      const int64_t e = expert, row = column_tile * 256 + first_row(a.gated, thread),
                    block = column_tile * 2 + warp;
      present = a.n - static_cast<int>(row);
      has_scales = warp < 2 && block * 128 < a.n;
      codes = w.codes + e * w.code_expert + row * w.code_row + step * (kStepK / 2) + thread % 2 * 16;
      scales = w.scales + e * w.scale_expert + block * w.scale_block + step * w.scale_step + lane * 16;
    }

    /// To where place_of_row has the rows.
    template <bool kGated>
    __device__ __forceinline__ void copy_codes(const DenseTiles& w, uint32_t stage, int thread) const {
      const auto to = static_cast<uint32_t>(kCodes + place_of_row(kGated, first_row(kGated, thread)) * 32 +
                                            thread % 2 * 16) +
                      stage;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int further = i % 2 * to_second_row(kGated), row = i / 2 * 128 + further;
        const int place = i / 2 * 4096 + place_of_row(kGated, further) * 32;
        if (row < present) copy_async16(to + static_cast<uint32_t>(place), codes + row * w.code_row);
      }
    }

    /// Starts the copies of a stage and goes on to the next.
    __device__ __forceinline__ void copy(const DenseTiles& w, uint32_t stage, int thread, bool gated) {
      if (gated) {
        copy_codes<true>(w, stage, thread);
      } else {
        copy_codes<false>(w, stage, thread);
      }
      if (has_scales) copy_async16(stage + static_cast<uint32_t>(kRawScales + thread * 16), scales);
      codes += kStepK / 2, scales += w.scale_step;
    }
  };

  /// Where the block scale in byte `byte` of those of 128 rows and 64 k goes. A sum over the bits of `byte`.
  __device__ static constexpr int place_of_scale(bool gated, int byte) {
    const Source s = Layout::source(1, Shape{1, 128, 64}, {0, byte / 4, byte % 4});
    const RowOwner o = owner_of_row(gated, static_cast<int>(s.n));
    return (o.warp * 2 + o.tile) * kTileScales + (o.g * 4 + static_cast<int>(s.group)) * 4 + o.lower * 2;
  }

  template <bool kGated>
  __device__ static __forceinline__ void convert_scales(uint8_t* stage, int lane) {
    uint8_t* scales = stage + kScales + place_of_scale(kGated, lane * 16);
    const auto* raw = reinterpret_cast<const uint4*>(stage + kRawScales) + lane;
    const uint4 raws[2] = {raw[0], raw[32]};
    __syncwarp();
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const uint32_t words[4] = {raws[q].x, raws[q].y, raws[q].z, raws[q].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 h = halves_of_e4m3(words[i]);
        const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&h.x));
        const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&h.y));
        const float four[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
        for (int b = 0; b < 4; ++b)
          *reinterpret_cast<__nv_bfloat16*>(scales + q * 8 * kTileScales +
                                            place_of_scale(kGated, 4 * i + b)) =
              __float2bfloat16_rn(four[b] * 0x1p119f);
      }
    }
  }

  /// Converts block scales of a stage.
  __device__ static __forceinline__ void finish(uint8_t* stage, int lane, bool gated) {
    gated ? convert_scales<true>(stage, lane) : convert_scales<false>(stage, lane);
  }

  /// Where a lane reads what is its own, from the start of a stage's weights.
  struct Reader {
    uint32_t codes, scales;
    int32_t to_tile, to_lower;  ///< bytes from m-tile 0 to 1, from MMA row g to g + 8
    __device__ __forceinline__ Reader(int warpgroup, int warp, int lane, bool gated) {
      const int g = lane / 4, t = lane % 4;
      const int row = gated ? 32 * (g % 4) + 16 * (warp / 2) + 2 * (warp % 2) + g / 4 : 32 * warp + 4 * g;
      codes = static_cast<uint32_t>(kCodes + warpgroup * 4096 + place_of_row(gated, row) * 32 + t * 8);
      scales = static_cast<uint32_t>(kScales + (warpgroup * 4 + warp) * 2 * kTileScales + lane * 4);
      to_tile = (gated ? 16 : 8) * 32, to_lower = (gated ? 32 : 4) * 32;
    }
  };

  /// Half (j) of eight codes, as pairs of BF16 of codes i and i + 4: E2M1 times E4M3 times 2^-7, exactly.
  __device__ static __forceinline__ uint2 decode(uint32_t w, int j, uint32_t scale) {
    const uint32_t v = w >> 8 * j;
    return {multiply_bf16(low_codes(v), scale), multiply_bf16(high_codes(v), scale)};
  }

  /// What a lane reads of a stage.
  struct Raw {
    uint2 codes[2][2];   ///< [m-tile][MMA row g or g + 8]
    uint32_t scales[2];  ///< of both rows
    __device__ __forceinline__ void load(const Reader& read, const uint8_t* stage) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint8_t* from = stage + read.codes + tile * read.to_tile;
        codes[tile][0] = *reinterpret_cast<const uint2*>(from);
        codes[tile][1] = *reinterpret_cast<const uint2*>(from + read.to_lower);
        scales[tile] = *reinterpret_cast<const uint32_t*>(stage + read.scales + tile * kTileScales);
      }
    }
  };

  /// As SparseTiles::multiply.
  template <int kRows, int kCount, class Next>
  __device__ static __forceinline__ void multiply(const Raw& raw, uint32_t x, float (&sums)[2][kCount],
                                                  const Next& next) {
    constexpr int kTogether = k16Together<2 * kCount>;
#pragma unroll
    for (int first = 0; first < 4; first += kTogether) {
      uint32_t a[kTogether][2][4];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int v = (first + i) / 2, j = (first + i) % 2;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          const uint32_t scales = raw.scales[tile];
          const uint2 upper = raw.codes[tile][0], lower = raw.codes[tile][1];
          const uint2 g = decode(v ? upper.y : upper.x, j, __byte_perm(scales, scales, 0x1010));
          const uint2 g8 = decode(v ? lower.y : lower.x, j, __byte_perm(scales, scales, 0x3232));
          a[i][tile][0] = g.x, a[i][tile][1] = g8.x, a[i][tile][2] = g.y, a[i][tile][3] = g8.y;
          settle(a[i][tile]);
        }
      }
      begin_wgmma();
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
          wgmma_dense(first_sums<kRows>(sums[tile]), a[i][tile], describe_rows(x, 2 * (first + i)));
      }
      commit_wgmma();
      if (first + kTogether < 4) wait_wgmma<0>();
    }
    next();
    wait_wgmma<0>();
  }

  /// As SparseTiles::give_sums. Gated, of two columns at a time, which are neighbours in the order of
  /// permuted_k: the first's place there.
  template <int kCount, class Store>
  __device__ static __forceinline__ void give_sums(const float (&sums)[2][kCount], const Store& store,
                                                   int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    for_stored_rows<2 * kCount>(store.rows, store.count, t,
                                [&](int b, int row, StoredRow one, StoredRow two) {
#pragma unroll
                                  for (int r = 0; r < 2; ++r) {
                                    const float *low = sums[0] + 4 * b + r, *high = sums[1] + 4 * b + r;
                                    if constexpr (Store::kGated) {
                                      store(row + r, r ? two : one, 16 * warp + 8 * (g / 4) + 2 * (g % 4),
                                            float2{low[0], high[0]}, float2{low[2], high[2]});
                                    } else {
                                      store(row + r, r ? two : one, 32 * warp + 4 * g,
                                            float4{low[0], low[2], high[0], high[2]}, float4{});
                                    }
                                  }
                                });
  }
};

}  // namespace twofour::cuda
