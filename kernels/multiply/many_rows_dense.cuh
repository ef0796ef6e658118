#pragma once
#include "formats/layouts/gate_up_interleaved8.h"
#include "kernels/device/ptx.cuh"
#include "kernels/device/warpgroup.cuh"
#include "kernels/device/wgmma_dense.cuh"
#include "kernels/multiply/many_rows_store.cuh"
#include "kernels/multiply/many_rows_width.cuh"
#include "kernels/numbers/bf16_codes.cuh"

/// g8 weights of the many-row kernel. A stage has a unit of 256 stored rows (two m-tiles per warpgroup) or of
/// 128 (one m-tile per warpgroup) by 64 k.
///
/// The order of k within 64 is free as long as both operands share it. Lane t of a quad takes 16 neighbours:
/// one block scale and 8 bytes of codes. Each word of codes is two fragments, and gives codes i and i + 4 at
/// once. So x has k = 16t + 8v + 2j + r + 4b at place 16 (2v + j) + 8r + 2t + b of its 64.
///
/// The assignment of stored rows to MMA rows is free, too. If gated, a lane has gates in MMA row g and the
/// ups of the same columns in row g + 8. With two m-tiles the columns are c and c + 4, neighbours in that
/// order; with one m-tile a pair of lanes has neighbours. The eight lanes of a store have neighbours too. If
/// not gated, a lane has four neighbouring rows, or two. `place_of_row` puts rows that lanes read together on
/// different banks.

namespace twofour::cuda {

/// The addresses and strides of g8 weights.
struct DenseStrides {
  const uint8_t *codes, *scales;
  int64_t code_expert, scale_expert;  ///< bytes from one expert to the next
  int64_t code_row;                   ///< bytes from a stored row to the next
  int64_t scale_block;                ///< bytes from 128 stored rows to the next
  int64_t scale_step;                 ///< bytes from 64 k to the next; scales of 128 rows are neighbours
};

/// Passes the sums of one m-tile to `store`. A lane has rows g and g + 8 of the tile. They are adjacent
/// columns that begin at `column`, or a gate and its up. If gated, a lane and the lane next to it in g take
/// every other row of x, each with both gates and both ups; the first column is `column`.
template <int kCount, class Store>
__device__ __forceinline__ void give_tile(const float (&sums)[kCount], const Store& store, int g, int t,
                                          int column) {
  const bool second = g % 2;
  for_stored_rows<2 * kCount>(store.rows, store.count, t, [&](int b, int row, StoredRow one, StoredRow two) {
    const float* v = sums + 4 * b;
    if constexpr (Store::kGated) {
      const float gate = __shfl_xor_sync(0xFFFFFFFFu, second ? v[0] : v[1], 4);
      const float up = __shfl_xor_sync(0xFFFFFFFFu, second ? v[2] : v[3], 4);
      store(row + second, second ? two : one, column, second ? float2{gate, v[1]} : float2{v[0], gate},
            second ? float2{up, v[3]} : float2{v[2], up});
    } else {
      store(row, one, column, float2{v[0], v[2]}, float2{});
      store(row + 1, two, column, float2{v[1], v[3]}, float2{});
    }
  });
}

template <int kTiles>
struct DenseTiles : DenseStrides {
  static constexpr int kStepK = 64;
  /// True if all sums start at zero, false if only the sums of the used width do. It changes no result, but
  /// the order in which the compiler arranges the loop. The other value takes 3 % longer in layers.
  static constexpr bool kClearAll = false;
  static constexpr int kCodes = 0;                  ///< [128 rows][place of a row][32]
  static constexpr int kRawScales = kTiles * 4096;  ///< [128 rows][32][16] E4M3
  /// The position of the converted scales, [128 rows][warp][half][lane], pairs of BF16 times 2^119. With 256
  /// rows, they overlap raw scales that are read before.
  static constexpr int kScales = kTiles == 2 ? 9088 : 4608;
  static constexpr int kTileScales = 136;  ///< bytes of a warp's m-tile, two banks more than its lanes use
  static constexpr int kBytes = kScales + kTiles * 8 * kTileScales;  ///< bytes of a stage
  static constexpr float kDecodedFactor = 0x1p7;
  using Layout = GateUpInterleaved8;

  /// The place of a row within its 128 rows.
  __device__ static constexpr int place_of_row(bool gated, int row) {
    if (kTiles == 2) return gated ? row / 32 + row % 32 * 4 : row / 4 % 4 + row % 4 * 4 + row / 16 * 16;
    return gated ? row / 4 % 2 + row / 32 * 2 + row / 8 % 2 * 8 + row % 4 * 16 + row / 16 % 2 * 64
                 : row / 2 % 8 + row % 2 * 8 + row / 16 * 16;
  }
  /// The owner of a row within its 128 rows. `half` selects one of the two m-tiles of a warpgroup or, if each
  /// warpgroup has one m-tile, the warpgroup. `lower` is 1 for MMA row g + 8. `warp` and `g` are the warp and
  /// quad.
  struct RowOwner {
    int half, lower, warp, g;
  };
  __device__ static constexpr RowOwner owner_of_row(bool gated, int row) {
    if (kTiles == 2)
      return gated
                 ? RowOwner{row / 4 % 2, row / 8 % 2, row / 16 % 2 * 2 + row / 2 % 2, row % 2 * 4 + row / 32}
                 : RowOwner{row / 2 % 2, row % 2, row / 32, row / 4 % 8};
    return gated ? RowOwner{row / 16 % 2, row / 8 % 2, row % 4, row / 32 * 2 + row / 4 % 2}
                 : RowOwner{row / 64, row % 2, row / 16 % 4, row / 2 % 8};
  }

  /// The copies of one of 128 threads for a stage: half of the codes of two rows in each 128. One warp for
  /// each 128 rows also copies 16 block scales. Rows are assigned to threads so that the copies of a warp use
  /// all banks.
  struct Copier {
    const uint8_t *codes, *scales;
    int present;  ///< rows from the thread's first on
    bool has_scales;

    /// The first row of the thread, and the distance to its second row. Its other rows follow at a distance
    /// of 128 rows.
    __device__ static constexpr int first_row(bool gated, int thread) {
      if (!gated) return thread / 2;
      if (kTiles == 2) return thread / 2 % 4 * 32 + thread / 8;
      return thread / 2 % 2 * 32 + thread / 4 % 2 * 4 + thread / 8 % 2 * 64 + thread / 16 % 4 +
             thread / 64 * 8;
    }
    __device__ static constexpr int to_second_row(bool gated) { return gated ? 16 : 64; }

    __device__ __forceinline__ void start(const DenseTiles& w, const ManyRows& a, int expert, int unit,
                                          int step, int thread) {
      const int warp = thread / 32, lane = thread % 32;
      const int64_t e = expert, row = unit * kTiles * 128 + first_row(a.gated, thread),
                    block = unit * kTiles + warp;
      present = a.n - static_cast<int>(row);
      has_scales = warp < kTiles && block * 128 < a.n;
      codes = w.codes + e * w.code_expert + row * w.code_row + step * (kStepK / 2) + thread % 2 * 16;
      scales = w.scales + e * w.scale_expert + block * w.scale_block + step * w.scale_step + lane * 16;
    }

    /// Copies codes to the places that place_of_row gives.
    template <bool kGated>
    __device__ __forceinline__ void copy_codes(const DenseTiles& w, uint32_t stage, int thread) const {
      const auto to = static_cast<uint32_t>(kCodes + place_of_row(kGated, first_row(kGated, thread)) * 32 +
                                            thread % 2 * 16) +
                      stage;
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const int further = i % 2 * to_second_row(kGated), row = i / 2 * 128 + further;
        const int place = i / 2 * 4096 + place_of_row(kGated, further) * 32;
        if (row < present) copy_async16(to + static_cast<uint32_t>(place), codes + row * w.code_row);
      }
    }

    /// Starts the copies of a stage and advances to the next stage.
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

  /// The place of the block scale that is byte `byte` among the scales of 128 rows and 64 k. The place is a
  /// sum over the bits of `byte`.
  __device__ static constexpr int place_of_scale(bool gated, int byte) {
    const Source s = Layout::source(1, Shape{1, 128, 64}, {0, byte / 4, byte % 4});
    const RowOwner o = owner_of_row(gated, static_cast<int>(s.n));
    return (o.warp * 2 + o.half) * kTileScales + (o.g * 4 + static_cast<int>(s.group)) * 4 + o.lower * 2;
  }

  /// Converts four scales, which begin at byte `byte` of the scales of 128 rows.
  template <bool kGated>
  __device__ static __forceinline__ void convert_four(uint8_t* scales, uint32_t raw, int byte) {
    const uint2 h = halves_of_e4m3(raw);
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&h.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&h.y));
    const float four[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int b = 0; b < 4; ++b)
      *reinterpret_cast<__nv_bfloat16*>(scales + place_of_scale(kGated, byte + b)) =
          __float2bfloat16_rn(four[b] * 0x1p119f);
  }

  /// Converts the scales of a stage. One warp converts, and each thread converts 16 scales in each 128 rows.
  /// For a unit of 128 rows, two warps convert, with 8 scales in each thread.
  template <bool kGated>
  __device__ static __forceinline__ void convert_scales(uint8_t* stage, int thread) {
    if constexpr (kTiles == 1) {
      const uint2 raw = reinterpret_cast<const uint2*>(stage + kRawScales)[thread];
      uint8_t* scales = stage + kScales + place_of_scale(kGated, thread * 8);
      convert_four<kGated>(scales, raw.x, 0), convert_four<kGated>(scales, raw.y, 4);
    } else {
      uint8_t* scales = stage + kScales + place_of_scale(kGated, thread * 16);
      const auto* raw = reinterpret_cast<const uint4*>(stage + kRawScales) + thread;
      const uint4 raws[2] = {raw[0], raw[32]};
      __syncwarp();
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        uint8_t* to = scales + q * 8 * kTileScales;
        convert_four<kGated>(to, raws[q].x, 0), convert_four<kGated>(to, raws[q].y, 4);
        convert_four<kGated>(to, raws[q].z, 8), convert_four<kGated>(to, raws[q].w, 12);
      }
    }
  }

  /// Converts block scales of a stage.
  __device__ static __forceinline__ void finish(uint8_t* stage, int thread, bool gated) {
    gated ? convert_scales<true>(stage, thread) : convert_scales<false>(stage, thread);
  }

  /// The positions of a lane's data, relative to the start of the weights in a stage.
  struct Reader {
    uint32_t codes, scales;
    int32_t to_tile, to_lower;  ///< bytes from m-tile 0 to 1, from MMA row g to g + 8
    __device__ __forceinline__ Reader(int warpgroup, int warp, int lane, bool gated) {
      const int g = lane / 4, t = lane % 4;
      if constexpr (kTiles == 2) {
        const int row = gated ? 32 * (g % 4) + 16 * (warp / 2) + 2 * (warp % 2) + g / 4 : 32 * warp + 4 * g;
        codes = static_cast<uint32_t>(kCodes + warpgroup * 4096 + place_of_row(gated, row) * 32 + t * 8);
        scales = static_cast<uint32_t>(kScales + (warpgroup * 4 + warp) * 2 * kTileScales + lane * 4);
        to_tile = (gated ? 16 : 8) * 32, to_lower = (gated ? 32 : 4) * 32;
      } else {
        const int row =
            gated ? 32 * (g / 2) + 16 * warpgroup + 4 * (g % 2) + warp : 64 * warpgroup + 16 * warp + 2 * g;
        codes = static_cast<uint32_t>(kCodes + place_of_row(gated, row) * 32 + t * 8);
        scales = static_cast<uint32_t>(kScales + (warp * 2 + warpgroup) * kTileScales + lane * 4);
        to_tile = 0, to_lower = 8 * 32;
      }
    }
  };

  /// Decodes half `j` of eight codes as pairs of BF16 of codes i and i + 4. Each is E2M1 times E4M3 times
  /// 2^-7, exactly.
  __device__ static __forceinline__ uint2 decode(uint32_t w, int j, uint32_t scale) {
    const uint32_t v = w >> 8 * j;
    return {multiply_bf16(low_codes(v), scale), multiply_bf16(high_codes(v), scale)};
  }

  /// The data of a lane in a stage.
  struct Raw {
    uint2 codes[kTiles][2];   ///< [m-tile][MMA row g or g + 8]
    uint32_t scales[kTiles];  ///< scales of both rows
    __device__ __forceinline__ void load(const Reader& read, const uint8_t* stage) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint8_t* from = stage + read.codes + tile * read.to_tile;
        codes[tile][0] = *reinterpret_cast<const uint2*>(from);
        codes[tile][1] = *reinterpret_cast<const uint2*>(from + read.to_lower);
        scales[tile] = *reinterpret_cast<const uint32_t*>(stage + read.scales + tile * kTileScales);
      }
    }
  };

  /// The A operand for 16 k (number i) of a step and an m-tile.
  __device__ static __forceinline__ void decode(const Raw& raw, int i, int tile, uint32_t (&a)[4]) {
    const uint32_t scales = raw.scales[tile];
    const uint2 upper = raw.codes[tile][0], lower = raw.codes[tile][1];
    const uint2 g = decode(i / 2 ? upper.y : upper.x, i % 2, __byte_perm(scales, scales, 0x1010));
    const uint2 g8 = decode(i / 2 ? lower.y : lower.x, i % 2, __byte_perm(scales, scales, 0x3232));
    a[0] = g.x, a[1] = g8.x, a[2] = g.y, a[3] = g8.y;
    settle(a);
  }

  /// Multiplies like SparseTiles::multiply.
  template <int kRows, int kCount, class Next>
  __device__ static __forceinline__ void multiply(const Raw& raw, uint32_t x, float (&sums)[kTiles][kCount],
                                                  const Next& next) {
    constexpr int kTogether = k16Together<2 * kCount>;
#pragma unroll
    for (int first = 0; first < 4; first += kTogether) {
      uint32_t a[kTogether][kTiles][4];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) decode(raw, first + i, tile, a[i][tile]);
      }
      begin_wgmma();
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
          wgmma_dense(first_sums<kRows>(sums[tile]), a[i][tile], describe_rows(x, 2 * (first + i)));
      }
      commit_wgmma();
      if (first + kTogether < 4) wait_wgmma<0>();
    }
    next();
    wait_wgmma<0>();
  }

  /// The registers that the instructions for one step of an m-tile read.
  struct Decoded {
    uint32_t a[4][4];  ///< [16 k]
    __device__ __forceinline__ void decode(const Raw& raw) {
#pragma unroll
      for (int i = 0; i < 4; ++i) DenseTiles::decode(raw, i, 0, a[i]);
    }
    __device__ __forceinline__ void keep_until_here(bool never) const {
#pragma unroll
      for (const auto& four : a) cuda::keep_until_here(never, four);
    }
  };
  /// Begins to add the product of a decoded step and kRows rows of x to sums[0].
  template <int kRows, int kCount>
  __device__ static __forceinline__ void begin(const Decoded& decoded, uint32_t x, float (&sums)[1][kCount]) {
    begin_wgmma();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      wgmma_dense(first_sums<kRows>(sums[0]), decoded.a[i], describe_rows(x, 2 * i));
    commit_wgmma();
  }

  /// Passes sums to `store` like SparseTiles::give_sums. If gated, it passes two columns at a time, which are
  /// adjacent in the order of permuted_k. `column` is the place of the first of them in this order.
  template <int kCount, class Store>
  __device__ static __forceinline__ void give_sums(const float (&sums)[kTiles][kCount], const Store& store,
                                                   int warpgroup, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    if constexpr (kTiles == 1) {
      const int column =
          Store::kGated ? 32 * warpgroup + 8 * warp + g / 2 * 2 : 64 * warpgroup + 16 * warp + 2 * g;
      return give_tile(sums[0], store, g, t, column);
    } else {
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
  }
};

}  // namespace twofour::cuda
