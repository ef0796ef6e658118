#pragma once
#include "formats/layouts/layouts.h"
#include "kernels/device/ptx.cuh"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/multiply/sparse_launch.h"
#include "kernels/numbers/swiglu.cuh"

/// The work of one warp of the 2:4 multiplication. A warp multiplies steps of 128 columns (rows of the
/// matrix) by 64 k, and writes their sums.
///
/// mma.sp::ordered_metadata m16n8k32 takes 16 rows of A with two of every four k. Quad g of the warp (g =
/// lane / 4) owns 16 neighbouring columns; m-tile j multiplies columns 2j (as MMA row g) and 2j + 1 (row g +
/// 8). Lane t of a quad (t = lane % 4) holds quad t of every 16 weights, as the fragment of A requires, and
/// the metadata of weights 16t to 16t + 15 of every 64. Metadata of lanes 0 and 1 is for the first 32 k
/// (selector 0), metadata of lanes 2 and 3 for the others (selector 1). A stored metadata byte already has
/// the hardware's bit order. Source: PTX ISA, mma.sp with .m16n8k32, f16.

namespace twofour::cuda {

inline constexpr int kStepK = 64;
inline constexpr int kStepGroups = kStepK / kGroup;
inline constexpr int kWarpColumns = 128;
/// The bytes of a stage. It holds 28 rows of 128 bytes: 4 rows of comp for each group of 16 k, and then, for
/// all groups, the even rows of meta, the odd rows of meta, and the scales. Eight lanes copy a row, which is
/// one cache line, at once.
inline constexpr int kStageBytes = 28 * kWarpColumns;

/// The place of the 16 columns of quad g in rows 4i + t of a stage. Places are chosen so that lanes that read
/// together use different banks.
__device__ __forceinline__ int chunk_at(int g, int t) { return (g ^ (2 * t)) * 16; }

template <class Layout>
__device__ __forceinline__ const uint8_t* byte_at(const SparseArgs& a, int e, int column, int group,
                                                  int byte) {
  const Shape shape{a.e, a.n, a.k};
  const Stored s = Layout::place(shape, {e, column, group, byte});
  const Part part = Layout::part(s.part, shape);
  return a.parts[s.part] + (s.at.e * part.rows + s.at.row) * part.cols + s.at.col;
}

/// Computes the addresses and strides for LaneCursor from the layout's map.
template <class Layout>
__host__ void measure_strides(SparseArgs& a) {
  const Shape shape{a.e, a.n, a.k};
  const auto offset = [&](int e, int group, int byte) {
    const Stored s = Layout::place(shape, {e, 0, group, byte});
    const Part part = Layout::part(s.part, shape);
    return (s.at.e * part.rows + s.at.row) * part.cols + s.at.col;
  };
  const auto address = [&](int byte) {
    return a.parts[Layout::place(shape, {0, 0, 0, byte}).part] + offset(0, 0, byte);
  };
  a.comp = address(0), a.meta = address(4), a.scale = address(6);
  for (int quad = 0; quad < 4; ++quad) a.comp_quad[quad] = offset(0, 0, quad) - offset(0, 0, 0);
  a.comp_expert = offset(1, 0, 0) - offset(0, 0, 0);
  a.meta_expert = offset(1, 0, 4) - offset(0, 0, 4);
  a.scale_expert = offset(1, 0, 6) - offset(0, 0, 6);
  a.comp_group = offset(0, 1, 0) - offset(0, 0, 0);
  a.meta_group = offset(0, 1, 4) - offset(0, 0, 4);
  a.scale_group = offset(0, 1, 6) - offset(0, 0, 6);
  const int groups = a.cluster * a.warps_k * kStepGroups;
  a.comp_stride = groups * a.comp_group, a.meta_stride = groups * a.meta_group;
  a.scale_stride = groups * a.scale_group;
  a.meta_odd = offset(0, 0, 5) - offset(0, 0, 4);
}

/// The addresses from which a lane copies: 16 columns (g = lane % 8) of quad t, and the metadata and scales
/// of group t (t = lane / 8).
struct LaneCursor {
  const uint8_t *comp, *meta, *scale;

  /// Points to the first step of expert 0.
  __device__ __forceinline__ LaneCursor(const SparseArgs& a, int column, int t)
      : comp(a.comp + a.comp_quad[t] + column),
        meta(a.meta + t * a.meta_group + column),
        scale(a.scale + t * a.scale_group + column) {}

  __device__ __forceinline__ void move(const SparseArgs& a, int experts, int steps) {
    const auto e = static_cast<uint32_t>(experts), groups = static_cast<uint32_t>(steps * kStepGroups);
    comp += e * a.comp_expert + groups * a.comp_group;
    meta += e * a.meta_expert + groups * a.meta_group;
    scale += e * a.scale_expert + groups * a.scale_group;
  }

  /// Advances to the next step of the warp.
  __device__ __forceinline__ void advance(const SparseArgs& a) {
    comp += a.comp_stride, meta += a.meta_stride, scale += a.scale_stride;
  }

  /// Starts the copies of a step into a stage.
  __device__ __forceinline__ void copy(const SparseArgs& a, uint32_t stage, int lane) const {
    const uint32_t to = stage + static_cast<uint32_t>(lane / 8 * kWarpColumns + chunk_at(lane % 8, lane / 8));
    const uint8_t* from = comp;
#pragma unroll
    for (int i = 0; i < 4; ++i, from += a.comp_group) copy_async16(to + i * 512, from);
    copy_async16(to + 2048, meta);
    copy_async16(to + 2560, meta + a.meta_odd);
    copy_async16(to + 3072, scale);
  }
};

/// Copies a step byte by byte, for missing columns (`count` of 16 exist), groups after the last group, and
/// any alignment. Missing weights become zeros with legal metadata.
template <class Layout>
__device__ __noinline__ void copy_bytes(const SparseArgs& a, uint8_t* stage, int lane, int e, int step,
                                        int column, int count) {
  const int t = lane / 8, groups = a.k / kGroup;
  for (int slot = 0; slot < 7; ++slot) {
    const int group = step * kStepGroups + (slot < 4 ? slot : t);
    const int byte = slot < 4 ? t : slot;
    for (int i = 0; i < 16; ++i) {
      uint8_t value = slot == 4 || slot == 5 ? 0x44 : 0;
      if (i < count && group < groups) value = *byte_at<Layout>(a, e, column + i, group, byte);
      stage[slot * 512 + t * kWarpColumns + chunk_at(lane % 8, t) + i] = value;
    }
  }
}

/// Decodes one quad of four columns to two halves for each column: E2M1 times 2^-14.
__device__ __forceinline__ void decode4(uint32_t codes, uint32_t (&out)[4]) {
  const uint32_t high = ((codes >> 3) & 0x0E0E0E0Eu) | (codes & 0x80808080u);
  const uint32_t low = ((codes << 1) & 0x0E0E0E0Eu) | ((codes << 4) & 0x80808080u);
  const uint32_t even = low & 0x00FF00FFu, odd = low & 0xFF00FF00u;
  out[0] = __byte_perm(even, high, 0x4101);
  out[1] = __byte_perm(odd, high, 0x5010);
  out[2] = __byte_perm(even, high, 0x6121);
  out[3] = __byte_perm(odd, high, 0x7030);
}

template <int kSelector>
__device__ __forceinline__ void mma_sparse(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                           const uint4& b, uint32_t metadata) {
  asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y), "r"(b.z), "r"(b.w), "r"(metadata),
        "n"(kSelector));
}

/// The bytes in which a warp stores the block scales of a step as halves. For each group of 16 k, they hold
/// the first 8 columns of all quads, then the other columns.
inline constexpr int kScaleBytes = kStepGroups * 2 * kWarpColumns;

/// Converts each block scale of a step once.
__device__ __forceinline__ void convert_scales(const uint8_t* stage, uint8_t* scales, int lane) {
  const int g = lane / 4, t = lane % 4, chunk = chunk_at(g, t);
  const uint4 bytes = *reinterpret_cast<const uint4*>(stage + 3072 + t * kWarpColumns + chunk);
  const uint2 a = halves_of_e4m3(bytes.x), b = halves_of_e4m3(bytes.y);
  const uint2 c = halves_of_e4m3(bytes.z), d = halves_of_e4m3(bytes.w);
  uint8_t* to = scales + t * 2 * kWarpColumns + chunk;
  *reinterpret_cast<uint4*>(to) = {a.x, a.y, b.x, b.y};
  *reinterpret_cast<uint4*>(to + kWarpColumns) = {c.x, c.y, d.x, d.y};
}

/// Half of a lane's share of a step in registers, 8 of its 16 columns. Every other pair of quads begins with
/// the upper half, which avoids a bank conflict; see first_column.
struct Fragment {
  uint2 codes[4];   ///< quad t of group i
  uint2 meta[2];    ///< even and odd byte of group t
  uint4 scales[4];  ///< scales of group i, as halves

  __device__ __forceinline__ void read_codes(const uint8_t* stage, int lane, int half) {
    const int g = lane / 4, t = lane % 4, at = (half ^ (lane >> 3 & 1)) * 8;
    const uint8_t* mine = stage + t * kWarpColumns + chunk_at(g, t) + at;
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i] = *reinterpret_cast<const uint2*>(mine + i * 512);
    meta[0] = *reinterpret_cast<const uint2*>(mine + 2048);
    meta[1] = *reinterpret_cast<const uint2*>(mine + 2560);
  }
  __device__ __forceinline__ void convert_scales(const uint8_t* stage, int lane, int half) {
    const uint8_t* mine = stage + 3072 + (half ^ (lane >> 3 & 1)) * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto bytes = *reinterpret_cast<const uint2*>(mine + i * kWarpColumns + chunk_at(lane / 4, i));
      const uint2 low = halves_of_e4m3(bytes.x), high = halves_of_e4m3(bytes.y);
      scales[i] = {low.x, low.y, high.x, high.y};
    }
  }
  /// Reads scales that convert_scales of the warp wrote.
  __device__ __forceinline__ void read_scales(const uint8_t* converted, int lane, int half) {
    const uint8_t* mine = converted + (half ^ (lane >> 3 & 1)) * kWarpColumns;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      scales[i] = *reinterpret_cast<const uint4*>(mine + i * 2 * kWarpColumns + chunk_at(lane / 4, i));
  }
};

/// The column, among the 128 of the warp, in MMA row g of m-tile j. MMA row g + 8 has the next column.
__device__ __forceinline__ int first_column(int lane, int j) {
  return lane / 4 * 16 + ((j * 2) ^ ((lane >> 3 & 1) * 8));
}

/// Four of a lane's 16 columns, decoded to the form that mma.sp reads.
struct Quarter {
  uint32_t a[4][4];  ///< [group][column]
  uint32_t metadata[2];

  /// Decodes the first four (w = 0) or last four (w = 1) of the eight columns of the fragment.
  __device__ __forceinline__ Quarter(const Fragment& f, int w) {
    const uint32_t m0 = w ? f.meta[0].y : f.meta[0].x, m1 = w ? f.meta[1].y : f.meta[1].x;
    metadata[0] = __byte_perm(m0, m1, 0x5140), metadata[1] = __byte_perm(m0, m1, 0x7362);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      decode4(w ? f.codes[i].y : f.codes[i].x, a[i]);
      const uint32_t s01 = w ? f.scales[i].z : f.scales[i].x, s23 = w ? f.scales[i].w : f.scales[i].y;
      // The product is exact: it has six significant bits and is at least 2^-24.
      a[i][0] = multiply_low(a[i][0], s01);
      a[i][1] = multiply_high(a[i][1], s01);
      a[i][2] = multiply_low(a[i][2], s23);
      a[i][3] = multiply_high(a[i][3], s23);
    }
  }
};

/// Adds to sums[j][q] the product of 32 of the 128 columns by 64 k with x, times factor[q], for kTiles times
/// 8 rows of x. b[h][q] holds the lane's 8 halves of x for k from 32h on. factor[q] holds the factors of rows
/// 8q + 2t and 8q + 2t + 1.
template <int kTiles>
__device__ __forceinline__ void multiply_quarter(const Quarter& f, const uint4 (&b)[2][kTiles],
                                                 const float2 (&factor)[kTiles], float (*sums)[kTiles][4]) {
#pragma unroll
  for (int q = 0; q < kTiles; ++q) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float d[4] = {};
      mma_sparse<0>(d, f.a[0][2 * h], f.a[0][2 * h + 1], f.a[1][2 * h], f.a[1][2 * h + 1], b[0][q],
                    f.metadata[h]);
      mma_sparse<1>(d, f.a[2][2 * h], f.a[2][2 * h + 1], f.a[3][2 * h], f.a[3][2 * h + 1], b[1][q],
                    f.metadata[h]);
      float(&sum)[4] = sums[h][q];
      sum[0] = fmaf(factor[q].x, d[0], sum[0]);
      sum[1] = fmaf(factor[q].y, d[1], sum[1]);
      sum[2] = fmaf(factor[q].x, d[2], sum[2]);
      sum[3] = fmaf(factor[q].y, d[3], sum[3]);
    }
  }
}

/// Does the same for the 64 columns of a fragment.
template <int kTiles>
__device__ __forceinline__ void multiply_half(const Fragment& f, const uint4 (&b)[2][kTiles],
                                              const float2 (&factor)[kTiles], float (*sums)[kTiles][4]) {
#pragma unroll
  for (int w = 0; w < 2; ++w) multiply_quarter<kTiles>(Quarter(f, w), b, factor, sums + 2 * w);
}

__device__ __forceinline__ float4 sum4(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/// Stores the first `present` of four adjacent numbers.
__device__ __forceinline__ void store_four(const SparseArgs& a, int64_t at, int present, const float4& v) {
  if (present >= 4 && a.n % 4 == 0 && a.wide_out) {
    if (a.out_type == Float::f32) {
      *reinterpret_cast<float4*>(static_cast<float*>(a.out) + at) = v;
    } else {
      const bool bf16 = a.out_type == Float::bf16;
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(a.out) + at) = {
          bf16 ? bfloat2_of(v.x, v.y) : half2_of(v.x, v.y), bf16 ? bfloat2_of(v.z, v.w) : half2_of(v.z, v.w)};
    }
    return;
  }
  if (present > 0) store_float(a.out, a.out_type, at, v.x);
  if (present > 1) store_float(a.out, a.out_type, at + 1, v.y);
  if (present > 2) store_float(a.out, a.out_type, at + 2, v.z);
  if (present > 3) store_float(a.out, a.out_type, at + 3, v.w);
}

/// Turns 128 adjacent numbers, four in each lane, into two steps of the next multiplication. `present` of the
/// lane's four exist.
__device__ __forceinline__ void prepare_columns(const SparseArgs& a, int64_t row, int column, int present,
                                                int lane, float4 v) {
  if (present < 1) v.x = 0;
  if (present < 2) v.y = 0;
  if (present < 3) v.z = 0;
  if (present < 4) v.w = 0;
  const int steps = ((a.gated ? a.n / 2 : a.n) - 1) / kStepK, step = column / kStepK;  // last and own
  uint32_t largest = __float_as_uint(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
#pragma unroll
  for (int d = 8; d > 0; d /= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, d));
  if (step > steps) return;
  const int64_t at = row * (steps + 1) + step;
  const auto [scale, factor] = half_scale(largest);
  auto* halves = reinterpret_cast<uint32_t*>(a.prepared.halves + at * 8);
  const int pair = lane % 16 * 2;  // among 32
  halves[pair / 16 * 16 + pair % 4 * 4 + pair % 16 / 4] = half2_of(v.x * scale, v.y * scale);
  halves[pair / 16 * 16 + (pair + 1) % 4 * 4 + pair % 16 / 4] = half2_of(v.z * scale, v.w * scale);
  if (lane % 16 == 0) a.prepared.factors[at] = factor;
}

}  // namespace twofour::cuda
