#pragma once
#include "kernels/multiply/dense_warp.cuh"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/numbers/swiglu.cuh"

/// The kernel for few rows per expert. A block of eight warps multiplies tiles of 16 stored rows by few rows
/// of x. One or several warps work on a tile.

namespace twofour::cuda {

inline constexpr int kDenseThreads = 256, kDenseWarps = kDenseThreads / 32, kDenseStages = 3;

/// The bytes of the sums of a block's warps, for eight rows of x.
inline constexpr int kDenseSumBytes = kDenseWarps * 32 * 16;

/// The bytes of shared memory of a block. It holds stages of weights for each warp, then stages of x, then
/// the sums of warps that share K.
__host__ __device__ constexpr int dense_shared(int tile_m, int warps_k) {
  return kDenseStages * (kDenseWarps * kDenseStageBytes + tile_m * warps_k * kDenseRowBytes) +
         (warps_k > 1 ? (tile_m <= 8    ? 1
                         : tile_m <= 16 ? 2
                                        : 4) *
                            kDenseSumBytes
                      : 0);
}

/// Reduces the sums of warps that share K, in their order, into the first of these warps. `shared` is unused
/// memory.
template <int kTiles>
__device__ __forceinline__ void add_up_warps(float (&sums)[kTiles][4], int warps_k, int warp, int lane,
                                             uint8_t* shared) {
  auto* all = reinterpret_cast<float4*>(shared);
#pragma unroll
  for (int q = 0; q < kTiles; ++q)
    all[(warp * kTiles + q) * 32 + lane] = {sums[q][0], sums[q][1], sums[q][2], sums[q][3]};
  __syncthreads();
  if (warp % warps_k != 0) return;
  for (int w = 1; w < warps_k; ++w) {
#pragma unroll
    for (int q = 0; q < kTiles; ++q) {
      const float4 other = all[((warp + w) * kTiles + q) * 32 + lane];
      sums[q][0] += other.x, sums[q][1] += other.y, sums[q][2] += other.z, sums[q][3] += other.w;
    }
  }
}

/// Stores the sums of a tile. A lane has rows g and g + 8, which are gate and up in g8, for rows 8q + 2t and
/// 8q + 2t + 1 of x.
template <int kTiles, class RowOf>
__device__ __forceinline__ void store_sums(const DenseArgs& a, const float (&sums)[kTiles][4],
                                           float expert_scale, const DenseTile& tile, int m, int lane,
                                           const RowOf& row_of) {
  const int first = tile.row(lane / 4), t = lane % 4;
  const Shape shape{1, a.n, a.k, a.gated};
#pragma unroll
  for (int q = 0; q < kTiles; ++q) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int i = 8 * q + 2 * t + c;
      if (i >= m) continue;
      const int row = row_of(i);
      const float factor = a.x.factors ? a.x.factors[row / a.rows_per_x] * expert_scale : expert_scale;
      const float weight = a.row_weight ? a.row_weight[row] : 1.0f;
      const float upper = sums[q][c] * factor * weight, lower = sums[q][2 + c] * factor * weight;
      if (a.epilogue == DenseEpilogue::swiglu) {
        if (first >= a.n) continue;
        const float value = swiglu(upper, lower, a.limit);
        const int at = first / 16 * 8 + first % 16;
        if (a.active) {
          store_float(a.active, Float::bf16, active_place(row, dense_steps(a.n / 2), at), value);
        } else {
          store_float(a.out, a.out_type, static_cast<int64_t>(row) * (a.n / 2) + at, value);
        }
        continue;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int stored = first + 8 * r;
        if (stored >= a.n) continue;
        const int64_t n = a.g8 && a.epilogue == DenseEpilogue::rows
                              ? GateUpInterleaved8::source_row(shape, stored)
                              : stored;
        store_float(a.out, a.out_type, static_cast<int64_t>(row) * a.n + n, r ? lower : upper);
      }
    }
  }
}

/// Multiplies rows of an expert, kTiles times 8 of x at a time.
///   grid.x  a.groups tiles for each warp that does not share K
///   grid.y  a record of the route
/// Warps that share K take steps in turn. Each warp copies its weights ahead on its own; x is copied along K
/// with them, once per block. Tried without gain: neighbouring steps for each warp, more warps along K for
/// the last rows, blocks that look up the rows of their expert themselves.
template <class Weights, int kTiles, DenseAccess kAccess>
__global__ void __launch_bounds__(kDenseThreads, kTiles == 1 ? 3 : 2)
    dense_kernel(const __grid_constant__ DenseArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_k = warp % a.warps_k, warps_n = kDenseWarps / a.warps_k;
  bool waited = false;
  if (a.route_from_predecessor) {
    wait_for_predecessor();
    release_successor();
    waited = true;
  }
  if (static_cast<int>(blockIdx.y) >= a.route->active) return;
  const Route::Record record = a.route->records[blockIdx.y];
  const int* rows = a.sorted + record.begin;
  const float expert_scale = a.global_scale[record.expert] * Weights::kFactor;
  const int block_tile = static_cast<int>(blockIdx.x) * a.groups * warps_n;
  const int warp_tile = block_tile + warp / a.warps_k;
  const int turns = (a.steps + a.warps_k - 1) / a.warps_k;
  const int all_turns = min(a.groups, (a.tiles - block_tile + warps_n - 1) / warps_n) * turns;
  uint8_t* stages = shared + warp * kDenseStages * kDenseStageBytes;
  uint8_t* x_stages = shared + kDenseWarps * kDenseStages * kDenseStageBytes;
  const int x_step = a.tile_m * kDenseRowBytes, x_stage = a.warps_k * x_step;

#pragma unroll 1
  for (int first = 0; first < record.count; first += a.tile_m) {
    const int m = min(record.count - first, a.tile_m);
    // Load the next weights.
    DenseLoader<kAccess> loader(a, lane);
    int fill_turn = 0, fill_tile = warp_tile;
    const auto fill_weights = [&](int slot) {
      if (fill_tile >= a.tiles) return;
      if (fill_turn == 0) loader.aim(record.expert, fill_tile, warp_k);
      if (loader.left() > 0) loader.fill(stages + slot * kDenseStageBytes, a.warps_k);
      if (++fill_turn == turns) fill_turn = 0, fill_tile += warps_n;
    };
    // Copy ahead. Weights come first, because they depend on no other kernel.
#pragma unroll
    for (int s = 0; s < kDenseStages - 1; ++s)
      if (s < all_turns) fill_weights(s);
    if (!waited) {
      wait_for_predecessor();
      release_successor();
      waited = true;
    }
    // Each warp copies every eighth row of x, one unit in each lane.
    const uint4* x_from[kTiles];
#pragma unroll
    for (int q = 0; q < kTiles; ++q) {
      const int row = min(warp + kDenseWarps * q, m - 1);
      x_from[q] = a.x.units + static_cast<int64_t>(rows[first + row] / a.rows_per_x) * a.steps * 32 + lane;
    }
    const uint32_t x_to =
        shared_address(x_stages + warp * kDenseRowBytes) + DenseInput<kTiles>::shared_unit(warp, lane);
    const int x_left = a.k - unit_at(lane) * 8;
    int x_turn = 0;
    const auto fill_x = [&](int slot) {
      const int step = x_turn * a.warps_k;
      uint32_t to = x_to + slot * x_stage;
      int left = x_left - step * kDenseStepK;
#pragma unroll 1
      for (int w = 0; w < a.warps_k; ++w, to += x_step, left -= kDenseStepK) {
#pragma unroll
        for (int q = 0; q < kTiles; ++q) {
          if (warp + kDenseWarps * q < m)
            copy_async16(to + kDenseWarps * q * kDenseRowBytes, x_from[q] + (step + w) * 32,
                         left > 0 ? 16 : 0);
        }
      }
      if (++x_turn == turns) x_turn = 0;
    };
#pragma unroll
    for (int s = 0; s < kDenseStages - 1; ++s) {
      if (s < all_turns) fill_x(s);
      commit_copies();
    }

    // Multiply
    const DenseInput<kTiles> input(m, lane);
    float sums[kTiles][4] = {};
    int slot = 0, free_slot = kDenseStages - 1, turn = 0, tile = warp_tile;
#pragma unroll 1
    for (int i = 0; i < all_turns; ++i) {
      wait_copies<kDenseStages - 2>();
      __syncthreads();  // x of this turn has arrived; the slot of the previous turn is free
      if (i + kDenseStages - 1 < all_turns) {
        fill_weights(free_slot);
        fill_x(free_slot);
      }
      commit_copies();
      if (tile < a.tiles && warp_k + turn * a.warps_k < a.steps)
        multiply_dense_step<Weights, kTiles == 1 ? 2 : 1>(
            stages + slot * kDenseStageBytes, x_stages + slot * x_stage + warp_k * x_step, input, lane, sums);
      free_slot = slot;
      slot = slot + 1 == kDenseStages ? 0 : slot + 1;
      if (++turn < turns) continue;
      if (a.warps_k > 1) add_up_warps(sums, a.warps_k, warp, lane, x_stages + kDenseStages * x_stage);
      if (warp_k == 0 && tile < a.tiles)
        store_sums(a, sums, expert_scale, DenseTile(tile, is_g8<kAccess>(a)), m, lane,
                   [&](int j) { return rows[first + j]; });
#pragma unroll
      for (int q = 0; q < kTiles; ++q) sums[q][0] = sums[q][1] = sums[q][2] = sums[q][3] = 0;
      turn = 0, tile += warps_n;
    }
    wait_copies<0>();
    __syncthreads();  // stages are free
  }
}

}  // namespace twofour::cuda
