#pragma once
#include "kernels/device/warpgroup.cuh"
#include "kernels/device/wgmma_sparse.cuh"
#include "kernels/multiply/many_rows_store.cuh"
#include "kernels/multiply/many_rows_width.cuh"
#include "kernels/multiply/sparse_warp.cuh"
#include "kernels/numbers/bf16_codes.cuh"

/// 2:4 weights of the many-row kernel. A stage has a unit of 256 columns (128 per warpgroup) by 64 k.
///
/// The assignment of columns of the matrix to MMA rows is free. A warpgroup's 128 columns are eight chunks of
/// 16; warp w multiplies chunks w and w + 4. If gated, the first four chunks are gates and the others the ups
/// of the same columns. A lane has four neighbours c to c + 3 of its chunk: m-tile 0 has c in MMA row g and c
/// + 1 in row g + 8, m-tile 1 the next two.

namespace twofour::cuda {

struct SparseTiles {
  static constexpr int kStepK = 64;
  /// True if all sums start at zero, false if only the sums of the used width do. It changes no result, but
  /// the order in which the compiler arranges the loop. The other value takes 10 to 18 % longer.
  static constexpr bool kClearAll = true;
  static constexpr int kComp = 0;          ///< [warpgroup][group of 16 k][quad][128]
  static constexpr int kMeta = 4096;       ///< [warpgroup][odd quads][group][128]
  static constexpr int kRawScales = 6144;  ///< [warpgroup][group][128] E4M3
  static constexpr int kScales = 7168;     ///< [warpgroup][group][chunk % 4][chunk / 4][16] BF16, times 2^119
  static constexpr int kBytes = 9216;      ///< bytes of a stage
  static constexpr float kDecodedFactor = 0x1p7;  ///< undoes the factor of decode

  const uint8_t *comp, *meta, *scale;  ///< as in SparseArgs
  int64_t comp_quad[4], comp_expert, meta_expert, scale_expert, comp_group, meta_group, scale_group, meta_odd;

  /// The copies of one of 128 threads for a stage. They come from the group of 16 k of the thread's warp: the
  /// codes of 16 columns (chunk lane % 8) of quad lane / 8 for both warpgroups, the metadata of 16 columns
  /// and, in half of the warps, 16 scales.
  struct Copier {
    const uint8_t *comp, *meta, *scale;
    int32_t to_second;  ///< columns from the first warpgroup's to the second's
    bool first, second;

    /// Moves to a step of a unit of an expert.
    __device__ __forceinline__ void start(const SparseTiles& w, const ManyRows& a, int expert, int unit,
                                          int step, int thread) {
      const int warp = thread / 32, chunk = thread % 8, t = thread % 32 / 8;
      const int half = a.gated ? a.n / 2 : a.n, wide = a.gated ? 64 : 128;
      const int column = unit * 2 * wide + (a.gated ? chunk % 4 : chunk) * 16;
      first = column < half, second = column + wide < half;
      to_second = wide;
      const int64_t e = expert, at = column + (a.gated && chunk >= 4 ? half : 0), group = step * kStepGroups;
      comp = w.comp + e * w.comp_expert + (group + warp) * w.comp_group + w.comp_quad[t] + at;
      meta = w.meta + e * w.meta_expert + (group + t) * w.meta_group + warp % 2 * w.meta_odd + at +
             warp / 2 * to_second;
      scale = w.scale + e * w.scale_expert + (group + t) * w.scale_group + at + warp % 2 * to_second;
    }

    /// Starts the copies of a stage and advances to the next stage.
    __device__ __forceinline__ void copy(const SparseTiles& w, uint32_t stage, int thread, bool /*gated*/) {
      const int warp = thread / 32, lane = thread % 32, chunk = lane % 8, t = lane / 8;
      const uint32_t at = stage + static_cast<uint32_t>(t * 128 + (chunk ^ t) * 16);
      if (first) copy_async16(at + static_cast<uint32_t>(kComp + warp * 512), comp);
      if (second) copy_async16(at + static_cast<uint32_t>(kComp + 2048 + warp * 512), comp + to_second);
      if (warp < 2 ? first : second)
        copy_async16(at + static_cast<uint32_t>(kMeta + warp / 2 * 1024 + warp % 2 * 512), meta);
      if (warp < 2 && (warp == 0 ? first : second))
        copy_async16(stage + static_cast<uint32_t>(kRawScales + warp * 512 + lane * 16), scale);
      comp += kStepGroups * w.comp_group, meta += kStepGroups * w.meta_group,
          scale += kStepGroups * w.scale_group;
    }
  };

  /// Converts the block scales of a stage. For each four columns, the scales of the even columns come first.
  __device__ static __forceinline__ void finish(uint8_t* stage, int lane, bool /*gated*/) {
    const int chunk = lane % 8, group = lane / 8;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const uint4 raw = *reinterpret_cast<const uint4*>(stage + kRawScales + q * 512 + lane * 16);
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
      uint32_t to[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 h = halves_of_e4m3(words[i]);
        const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&h.x));
        const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&h.y));
        to[2 * i] = bfloat2_of(low.x * 0x1p119f, high.x * 0x1p119f);
        to[2 * i + 1] = bfloat2_of(low.y * 0x1p119f, high.y * 0x1p119f);
      }
      auto* at =
          reinterpret_cast<uint4*>(stage + kScales + (q * 4 + group) * 256 + chunk % 4 * 64 + chunk / 4 * 32);
      at[0] = {to[0], to[1], to[2], to[3]};
      at[1] = {to[4], to[5], to[6], to[7]};
    }
  }

  /// The positions of a lane's data, relative to the start of the weights in a stage.
  struct Reader {
    uint32_t codes, meta, scales;
    __device__ __forceinline__ Reader(int warpgroup, int warp, int lane, bool /*gated*/) {
      const int g = lane / 4, t = lane % 4, chunk = warp + g / 4 * 4;
      const int in_row = ((chunk ^ t) * 16) + g % 4 * 4;
      codes = static_cast<uint32_t>(kComp + warpgroup * 2048 + t * 128 + in_row);
      meta = static_cast<uint32_t>(kMeta + warpgroup * 1024 + t * 128 + in_row);
      scales = static_cast<uint32_t>(kScales + warpgroup * 1024 + warp * 64 + g / 4 * 32 + g % 4 * 8);
    }
  };

  /// Decodes the codes of a quad in four columns to a pair of BF16 for each column. Each number is E2M1 times
  /// E4M3 times 2^-7, exactly.
  __device__ static __forceinline__ void decode(uint32_t w, uint2 scale, uint32_t (&out)[4]) {
    const uint32_t v = w >> 8;
    const uint32_t low02 = multiply_bf16(low_codes(w), scale.x),
                   high02 = multiply_bf16(high_codes(w), scale.x);
    const uint32_t low13 = multiply_bf16(low_codes(v), scale.y),
                   high13 = multiply_bf16(high_codes(v), scale.y);
    out[0] = __byte_perm(low02, high02, 0x5410);
    out[1] = __byte_perm(low13, high13, 0x5410);
    out[2] = __byte_perm(low02, high02, 0x7632);
    out[3] = __byte_perm(low13, high13, 0x7632);
  }

  /// The data of a lane in a stage.
  struct Raw {
    uint32_t codes[4], meta[2];
    uint2 scales[4];
    __device__ __forceinline__ void load(const Reader& read, const uint8_t* stage) {
#pragma unroll
      for (int i = 0; i < 4; ++i) codes[i] = *reinterpret_cast<const uint32_t*>(stage + read.codes + i * 512);
#pragma unroll
      for (int i = 0; i < 2; ++i) meta[i] = *reinterpret_cast<const uint32_t*>(stage + read.meta + i * 512);
#pragma unroll
      for (int i = 0; i < 4; ++i) scales[i] = *reinterpret_cast<const uint2*>(stage + read.scales + i * 256);
    }
  };

  /// Adds to sums[m-tile] the product of the weights of a stage and kRows rows of x. Calls `next` when all
  /// products have started and `raw` is no longer needed.
  template <int kRows, int kCount, class Next>
  __device__ static __forceinline__ void multiply(const Raw& raw, uint32_t x, float (&sums)[2][kCount],
                                                  const Next& next) {
    uint32_t metadata[2] = {__byte_perm(raw.meta[0], raw.meta[1], 0x5140),
                            __byte_perm(raw.meta[0], raw.meta[1], 0x7362)};
    settle(metadata);
    constexpr int kTogether = k16Together<2 * kCount> / 2;  // of 32 k
#pragma unroll
    for (int first = 0; first < 2; first += kTogether) {
      uint32_t of[kTogether][2][4];  // [32 k][m-tile]
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        uint32_t quads[2][4];
#pragma unroll
        for (int q = 0; q < 2; ++q)
          decode(raw.codes[2 * (first + i) + q], raw.scales[2 * (first + i) + q], quads[q]);
#pragma unroll
        for (int j = 0; j < 8; ++j) of[i][j / 4][j % 4] = quads[j / 2 % 2][j / 4 * 2 + j % 2];
        settle(of[i][0]), settle(of[i][1]);
      }
      begin_wgmma();
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const uint64_t b = describe_rows(x, 4 * (first + i));
        if (first + i == 0) {
          wgmma_sparse<0>(first_sums<kRows>(sums[0]), of[i][0], b, metadata[0]);
          wgmma_sparse<0>(first_sums<kRows>(sums[1]), of[i][1], b, metadata[1]);
        } else {
          wgmma_sparse<1>(first_sums<kRows>(sums[0]), of[i][0], b, metadata[0]);
          wgmma_sparse<1>(first_sums<kRows>(sums[1]), of[i][1], b, metadata[1]);
        }
      }
      commit_wgmma();
      if (first + kTogether < 2) wait_wgmma<0>();
    }
    next();
    wait_wgmma<0>();
  }

  /// Calls `store(row, its StoredRow, column, four, ups)` with the sums of four adjacent columns at a time.
  /// `row` is the row in the item, and `column` is the first of the four among the warpgroup's columns. If
  /// gated, the lane with the gates and the lane with the ups take every other row, each with both gates and
  /// ups.
  template <int kCount, class Store>
  __device__ static __forceinline__ void give_sums(const float (&sums)[2][kCount], const Store& store,
                                                   int /*warpgroup*/, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    const bool is_up = g >= 4;
    const int column = warp * 16 + g % 4 * 4;
    constexpr int kMost = 2 * kCount;
    for_stored_rows<kMost>(store.rows, store.count, t, [&](int b, int row, StoredRow one, StoredRow two) {
      const float *low = sums[0] + 4 * b, *high = sums[1] + 4 * b;
      const float even[4] = {low[0], low[2], high[0], high[2]}, odd[4] = {low[1], low[3], high[1], high[3]};
      if constexpr (Store::kGated) {
        float gate[4], up[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float other = __shfl_xor_sync(0xFFFFFFFFu, is_up ? even[i] : odd[i], 16);
          gate[i] = is_up ? other : even[i], up[i] = is_up ? odd[i] : other;
        }
        store(row + (is_up ? 1 : 0), is_up ? two : one, column, float4{gate[0], gate[1], gate[2], gate[3]},
              float4{up[0], up[1], up[2], up[3]});
      } else {
        const int mine = (is_up ? 64 : 0) + column;
        store(row, one, mine, float4{even[0], even[1], even[2], even[3]}, float4{});
        store(row + 1, two, mine, float4{odd[0], odd[1], odd[2], odd[3]}, float4{});
      }
    });
  }
};

}  // namespace twofour::cuda
