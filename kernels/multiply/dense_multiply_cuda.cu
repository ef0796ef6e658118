#include <algorithm>

#include "formats/layouts/gate_up_interleaved8.h"
#include "kernels/device/launch.cuh"
#include "kernels/multiply/dense_multiply.h"
#include "kernels/multiply/dense_rows.cuh"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/multiply/many_rows.h"
#include "kernels/numbers/swiglu.cuh"

/// Dense NVFP4 on tensor cores, m16n8k16. A warp multiplies 16 stored rows by 256 k a step. The order of k
/// within a step is free as long as both sides have it: of every 128 k, lane t of a quad (t = lane % 4) takes
/// 32 neighbours, 16 bytes of codes, and each 8 of them, a word, are two fragments. A word gives halves of
/// codes i and i + 4 at once, so x has its 8 in the order 0, 4, 1, 5, 2, 6, 3, 7.

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "dense_multiply";
constexpr int kThreads = kDenseThreads, kWarps = kThreads / 32;
constexpr int kStepK = kDenseStepK, kTileRows = 16, kStages = 3;
constexpr int kCodeBytes = kTileRows * kStepK / 2, kScaleBytes = kTileRows * kStepK / kGroup;
constexpr int kStageBytes = kCodeBytes + kScaleBytes;

struct DenseArgs {
  const uint8_t *codes, *scales;
  const float* global_scale;
  int32_t e, n, k, steps;  ///< K steps
  bool aligned, gated, g8;
  // x: [rows][steps][256] halves in the order of fragments, and a factor for each row
  uint4* halves;
  float* factors;
  RowIds rows;
  int32_t rows_per_x;
  const float* row_weight;
  const Route* route;
  const int32_t* sorted;
  int64_t scale_step,
      scale_rows;  ///< bytes from a step to the next, from a row to that 8 further, if aligned
  int32_t warps_k, tile_m;
  DenseEpilogue epilogue;
  float limit;
  void* out;
  Float out_type;
};

/// Bytes from one row of x to the next in shared memory: 64 more than K asks for keep rows off each other's
/// banks.
__host__ __device__ int x_pitch(int steps) { return steps * kStepK * 2 + 64; }

__device__ __forceinline__ void mma_dense(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                          uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Eight codes as halves of codes i and i + 4, times 2^-14 and a scale.
__device__ __forceinline__ void decode8(uint32_t w, uint32_t scale, uint32_t (&out)[4]) {
  out[0] = ((w << 12) & 0x80008000u) | ((w << 9) & 0x0E000E00u);
  out[1] = ((w << 8) & 0x80008000u) | ((w << 5) & 0x0E000E00u);
  out[2] = ((w << 4) & 0x80008000u) | ((w << 1) & 0x0E000E00u);
  out[3] = (w & 0x80008000u) | ((w >> 3) & 0x0E000E00u);
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = multiply_low(out[i], scale);
}

/// Offset of the scale of group `group` of stored row `row`.
__host__ __device__ __forceinline__ int64_t scale_at(const DenseArgs& a, int e, int row, int group) {
  if (!a.g8) return (static_cast<int64_t>(e) * a.n + row) * (a.k / kGroup) + group;
  const Shape shape{a.e, a.n, a.k};
  const Stored s = GateUpInterleaved8::place(shape, {e, row, group, 8});
  const Part part = GateUpInterleaved8::part(1, shape);
  return (s.at.e * part.rows + s.at.row) * part.cols + s.at.col;
}

/// Copies steps of 16 rows into stages: 8 lanes a row of codes, its 16-byte chunks apart by row for the
/// readers; then scales, 16 bytes a row.
template <bool kAligned>
struct StageLoader {
  const DenseArgs& a;
  int lane, e, row0;
  const uint8_t *codes, *scales;  ///< of the first step, kAligned only

  __device__ __forceinline__ StageLoader(const DenseArgs& args, int lane_, int e_, int row0_)
      : a(args), lane(lane_), e(e_), row0(row0_), codes(nullptr), scales(nullptr) {
    if (kAligned && row0 < a.n) {
      codes = a.codes + (static_cast<int64_t>(e) * a.n + row0 + lane / 8) * (a.k / 2) + lane % 8 * 16;
      scales = a.scales + scale_at(a, e, row0 + lane / 4, lane % 4 * 4);
    }
  }

  __device__ __forceinline__ void fill(uint8_t* stage, int step) const {
    if constexpr (!kAligned) return fill_bytes(stage, step);
    const uint8_t* from = codes + step * (kStepK / 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_async16(shared_address(stage + code_place(4 * i + lane / 8)), from);
      from += 2 * a.k;  // four rows
    }
    const uint8_t* scale = scales + static_cast<int64_t>(step) * a.scale_step;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      copy_async4(shared_address(stage + scale_place(8 * i + lane / 4)), scale + i * a.scale_rows);
  }

  __device__ __forceinline__ int code_place(int row) const {
    return row * (kStepK / 2) + (lane % 8 ^ (row % 2 * 4)) * 16;
  }
  __device__ __forceinline__ int scale_place(int row) const { return kCodeBytes + row * 16 + lane % 4 * 4; }

  /// For any shape and alignment; what is not there becomes zero.
  __device__ void fill_bytes(uint8_t* stage, int step) const {
    const int byte = step * (kStepK / 2) + lane % 8 * 16, pitch = a.k / 2, groups = a.k / kGroup;
    for (int row = lane / 8; row < kTileRows; row += 4) {
      const uint8_t* from = a.codes + (static_cast<int64_t>(e) * a.n + row0 + row) * pitch + byte;
      for (int b = 0; b < 16; ++b)
        stage[code_place(row) + b] = row0 + row < a.n && byte + b < pitch ? from[b] : 0;
    }
    for (int row = lane / 4; row < kTileRows; row += 8) {
      for (int b = 0; b < 4; ++b) {
        const int group = step * (kStepK / kGroup) + lane % 4 * 4 + b;
        stage[scale_place(row) + b] =
            row0 + row < a.n && group < groups ? a.scales[scale_at(a, e, row0 + row, group)] : 0;
      }
    }
  }
};

/// grid.x 16 rows for each warp of a block that does not share K, grid.y an expert: a record of the route or
/// a row.
template <int kTiles, bool kAligned>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? 3 : 1)
    dense_kernel(const __grid_constant__ DenseArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4, warp_k = warp % a.warps_k, warps_n = kWarps / a.warps_k;
  int expert = 0, count = 1;
  const int* rows = nullptr;
  bool waited = false;
  if (a.route) {
    wait_for_predecessor();
    release_successor();
    waited = true;
    if (static_cast<int>(blockIdx.y) >= a.route->active) return;
    const Route::Record record = a.route->records[blockIdx.y];
    rows = a.sorted + record.begin, count = record.count, expert = record.expert;
  } else {
    expert = local_expert(a.rows, static_cast<int>(blockIdx.y));
    if (expert < 0) {
      wait_for_predecessor();
      return;
    }
  }
  const float expert_scale = a.global_scale[expert];
  const auto row_of = [&](int i) { return rows ? rows[i] : static_cast<int>(blockIdx.y); };
  const int row0 = (static_cast<int>(blockIdx.x) * warps_n + warp / a.warps_k) * kTileRows;
  const int steps = row0 < a.n && warp_k < a.steps ? (a.steps - warp_k + a.warps_k - 1) / a.warps_k : 0;
  const StageLoader<kAligned> loader(a, lane, expert, row0);
  uint8_t* stages = shared + warp * kStages * kStageBytes;
  uint8_t* x = shared + kWarps * kStages * kStageBytes;
  const int pitch = x_pitch(a.steps), units = a.steps * (kStepK / 8);

#pragma unroll 1
  for (int first = 0; first < count; first += a.tile_m) {
    const int m = min(count - first, a.tile_m);
    // Copy ahead: weights first, since they depend on no other kernel
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) {
      if (s < steps) loader.fill(stages + s * kStageBytes, warp_k + s * a.warps_k);
      commit_copies();
    }
    if (!waited) {
      wait_for_predecessor();
      release_successor();
      waited = true;
    }
    for (int i = 0; i < m; ++i) {
      const uint4* from = a.halves + static_cast<int64_t>(row_of(first + i) / a.rows_per_x) * units;
      for (int u = static_cast<int>(threadIdx.x); u < units; u += kThreads)
        copy_async16(shared_address(x + i * pitch + u * 16), from + u);
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();

    // Multiply
    float sums[kTiles][4] = {};
    int slot = 0;
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      wait_copies<kStages - 1>();
      __syncwarp();
      const int step = warp_k + i * a.warps_k;
      const uint8_t* stage = stages + slot * kStageBytes;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint4 codes[2];
        uint32_t scale[2][2];  // [row g or g + 8][group]
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = g + 8 * r;
          codes[r] = *reinterpret_cast<const uint4*>(stage + row * (kStepK / 2) +
                                                     ((4 * h + t) ^ (row % 2 * 4)) * 16);
          const uint32_t pair = half2_of_e4m3(
              *reinterpret_cast<const uint16_t*>(stage + kCodeBytes + row * 16 + 8 * h + 2 * t));
          scale[r][0] = pair & 0xFFFFu, scale[r][1] = pair >> 16;
        }
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          uint32_t upper[4], lower[4];
          decode8(w == 0   ? codes[0].x
                  : w == 1 ? codes[0].y
                  : w == 2 ? codes[0].z
                           : codes[0].w,
                  scale[0][w / 2], upper);
          decode8(w == 0   ? codes[1].x
                  : w == 1 ? codes[1].y
                  : w == 2 ? codes[1].z
                           : codes[1].w,
                  scale[1][w / 2], lower);
#pragma unroll
          for (int q = 0; q < kTiles; ++q) {
            const uint4 b = *reinterpret_cast<const uint4*>(x + min(8 * q + g, m - 1) * pitch +
                                                            (step * 32 + (h * 4 + w) * 4 + t) * 16);
            mma_dense(sums[q], upper[0], lower[0], upper[1], lower[1], b.x, b.y);
            mma_dense(sums[q], upper[2], lower[2], upper[3], lower[3], b.z, b.w);
          }
        }
      }
      __syncwarp();
      if (i + kStages < steps) loader.fill(stages + slot * kStageBytes, warp_k + (i + kStages) * a.warps_k);
      commit_copies();
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
    wait_copies<0>();
    __syncthreads();

    // Add up the warps that share K, in their order: the first of them does
    if (a.warps_k > 1) {
      auto* all = reinterpret_cast<float4*>(shared);
#pragma unroll
      for (int q = 0; q < kTiles; ++q)
        all[(warp * kTiles + q) * 32 + lane] = {sums[q][0], sums[q][1], sums[q][2], sums[q][3]};
      __syncthreads();
      if (warp_k == 0) {
        for (int w = 1; w < a.warps_k; ++w) {
#pragma unroll
          for (int q = 0; q < kTiles; ++q) {
            const float4 other = all[((warp + w) * kTiles + q) * 32 + lane];
            sums[q][0] += other.x, sums[q][1] += other.y, sums[q][2] += other.z, sums[q][3] += other.w;
          }
        }
      }
    }

    // Finish: a lane has rows g and g + 8 of 16, which g8 makes gate and up
    if (warp_k == 0 && row0 < a.n) {
      const Shape shape{1, a.n, a.k, a.gated};
#pragma unroll
      for (int q = 0; q < kTiles; ++q) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int i = 8 * q + 2 * t + c;
          if (i >= m) continue;
          const int row = row_of(first + i);
          const float factor = a.factors[row / a.rows_per_x] * expert_scale;
          const float weight = a.row_weight ? a.row_weight[row] : 1.0f;
          const float upper = sums[q][c] * factor * weight, lower = sums[q][2 + c] * factor * weight;
          if (a.epilogue == DenseEpilogue::swiglu) {
            store_float(a.out, a.out_type, static_cast<int64_t>(row) * (a.n / 2) + row0 / 2 + g,
                        swiglu(upper, lower, a.limit));
            continue;
          }
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int stored = row0 + g + 8 * r;
            if (stored >= a.n) continue;
            const int64_t n = a.g8 && a.epilogue == DenseEpilogue::rows
                                  ? GateUpInterleaved8::source_row(shape, stored)
                                  : stored;
            store_float(a.out, a.out_type, static_cast<int64_t>(row) * a.n + n, r ? lower : upper);
          }
        }
      }
    }
    __syncthreads();
  }
}

/// Rows an expert from which the many-row kernel is the faster one.
constexpr int64_t kManyRowsFrom = 5;

/// Whether it takes such products: W4A16 whose rows leave in the order of stored ones.
bool takes_many_rows(const DenseWeights& w, const DenseOptions& options) {
  return !w.gated && !options.nvfp4 && options.warps_k == 0 && fits_many_rows(w);
}

int64_t many_rows_bytes(const DenseWeights& w, const ExpertRows& rows) {
  return ManyRowsWorkspace(rows.rows, w.e, rows.rows / rows.rows_per_x * w.k).bytes;
}

MultiplyWorkspace workspace_of(const DenseWeights& w, const ExpertRows& rows) {
  const int64_t x_rows = rows.rows / rows.rows_per_x, steps = (w.k + kStepK - 1) / kStepK;
  return {x_rows * steps * kStepK * 2, x_rows, rows.rows, w.e};
}

}  // namespace

size_t dense_multiply_workspace(const DenseWeights& weights, const ExpertRows& rows) {
  return static_cast<size_t>(std::max(workspace_of(weights, rows).bytes, many_rows_bytes(weights, rows)));
}

void dense_multiply(const DenseWeights& w, const ExpertRows& rows, void* workspace, size_t bytes,
                    Stream stream, const DenseOptions& options) {
  expect(
      w.e > 0 && w.n > 0 && w.k > 0 && w.k % kGroup == 0 && w.e < 65536 && w.n < (1 << 22) && w.k < (1 << 20),
      kWhere, "experts with K a multiple of 16", std::to_string(w.n) + " x " + std::to_string(w.k));
  expect(w.codes && w.scales && w.global_scale, kWhere, "codes and scales", "nullptr");
  expect(options.epilogue != DenseEpilogue::swiglu || (w.layout == DenseLayout::g8 && w.gated), kWhere,
         "gated g8 weights for SwiGLU", "others");
  expect(w.layout == DenseLayout::rows || !w.gated || w.n % 16 == 0, kWhere,
         "rows of gate and up in multiples of 8", std::to_string(w.n));
  expect(rows.rows >= 0 && rows.rows < 65536 && rows.rows_per_x > 0 && rows.rows % rows.rows_per_x == 0,
         kWhere, "whole tokens, less than 65536 rows", std::to_string(rows.rows));
  if (rows.rows == 0) return;
  const MultiplyWorkspace at = workspace_of(w, rows);
  expect_workspace(kWhere, workspace, bytes, static_cast<int64_t>(dense_multiply_workspace(w, rows)));
  auto* base = static_cast<char*>(workspace);
  const auto e = static_cast<int32_t>(w.e);
  const RowIds ids{rows.ids,
                   options.expert_map,
                   static_cast<int32_t>(rows.rows),
                   options.expert_map ? static_cast<int32_t>(options.map_size) : e,
                   e,
                   rows.error};
  if (takes_many_rows(w, options) && are_many_rows(rows, w.e, kManyRowsFrom)) {
    auto* x = reinterpret_cast<uint16_t*>(base + ManyRowsWorkspace(rows.rows, w.e, 0).x);
    ManyRows product = sort_many_rows(ids, rows, w, base, stream);
    launch_permute(rows.x, rows.x_type, nullptr, rows.rows / rows.rows_per_x, w.k, x, stream);
    product.x = x;
    return launch_many_rows(w, product, stream);
  }

  DenseArgs a{};
  a.codes = w.codes, a.scales = w.scales, a.global_scale = w.global_scale;
  a.e = static_cast<int32_t>(w.e), a.n = static_cast<int32_t>(w.n), a.k = static_cast<int32_t>(w.k);
  a.steps = (a.k + kStepK - 1) / kStepK;
  a.g8 = w.layout == DenseLayout::g8, a.gated = w.gated;
  a.aligned = w.k % kStepK == 0 && w.n % kTileRows == 0 &&
              (reinterpret_cast<uintptr_t>(w.codes) | reinterpret_cast<uintptr_t>(w.scales)) % 16 == 0;
  a.scale_step = scale_at(a, 0, 0, kStepK / kGroup) - scale_at(a, 0, 0, 0);
  a.scale_rows = scale_at(a, 0, 8, 0) - scale_at(a, 0, 0, 0);
  a.halves = reinterpret_cast<uint4*>(base + at.halves),
  a.factors = reinterpret_cast<float*>(base + at.factors);
  a.rows = ids;
  a.rows_per_x = static_cast<int32_t>(rows.rows_per_x);
  a.row_weight = rows.row_weight;
  a.epilogue = options.epilogue, a.limit = options.limit;
  a.out = rows.out, a.out_type = rows.out_type;
  const int slots = rows.distinct ? a.rows.rows : std::min(a.rows.rows, a.e);

  const DensePrepareArgs prepare{
      rows.x,   rows.x_type, options.nvfp4 ? *options.nvfp4 : Nvfp4Rows{}, a.k, a.steps,
      a.halves, a.factors,   rows.rows_per_x == 1 ? a.rows : RowIds{}};
  if (!rows.distinct) {
    auto* route = reinterpret_cast<Route*>(base + at.route);
    auto* sorted = reinterpret_cast<int32_t*>(base + at.sorted);
    launch_prepare({nullptr, Float::f32, 0, a.k, {}, a.rows, route, sorted}, stream);
    a.route = route, a.sorted = sorted;
  }
  launch(kWhere, stream, {dim3(static_cast<unsigned>(rows.rows / rows.rows_per_x)), kThreads},
         prepare_dense_kernel, prepare);

  // The cut: K over more warps where there are few rows; as many rows of x at a time as there are and fit
  const int tiles = (a.n + kTileRows - 1) / kTileRows;
  a.warps_k = options.warps_k;
  if (a.warps_k == 0) {
    a.warps_k = 1;
    const int64_t wanted = int64_t{multiprocessors()} * 24;
    while (a.warps_k < 8 && 2 * a.warps_k <= a.steps && int64_t{tiles} * slots * a.warps_k < wanted)
      a.warps_k *= 2;
  }
  const int rows_a_slot = a.rows.rows / slots;
  a.tile_m = rows.distinct ? 1 : tile_of_mean(rows_a_slot);
  const int stage_bytes = kWarps * kStages * kStageBytes, most = shared_memory_limit();
  if (!a.aligned) a.tile_m = std::min(a.tile_m, 8);
  while (a.tile_m > 1 && stage_bytes + a.tile_m * x_pitch(a.steps) > most) a.tile_m /= 2;
  const int shared = std::max(stage_bytes + a.tile_m * x_pitch(a.steps), kWarps * 4 * 32 * 16);
  expect(shared <= most, kWhere, "K that fits shared memory", std::to_string(w.k));
  const int warps_n = kWarps / a.warps_k;
  const Launch how{dim3(static_cast<unsigned>((tiles + warps_n - 1) / warps_n), static_cast<unsigned>(slots)),
                   kThreads, static_cast<size_t>(shared), 1, true};
  launch(kWhere, stream, how,
         !a.aligned       ? dense_kernel<1, false>
         : a.tile_m <= 8  ? dense_kernel<1, true>
         : a.tile_m <= 16 ? dense_kernel<2, true>
                          : dense_kernel<4, true>,
         a);
}

}  // namespace twofour::cuda
