#pragma once
#include "kernels/multiply/dense_warp.cuh"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/numbers/swiglu.cuh"

/// The kernels of few rows: a block of eight warps multiplies some stored rows, 16 a warp, with few rows of
/// x.

namespace twofour::cuda {

inline constexpr int kDenseThreads = 256, kDenseWarps = kDenseThreads / 32, kDenseStages = 3;

/// Bytes of sums of a block's warps, of eight rows of x.
inline constexpr int kDenseSumBytes = kDenseWarps * 32 * 16;

/// Bytes of a block: stages of weights for each warp, then those of x, then sums of warps that share K.
__host__ __device__ constexpr int dense_shared(int tile_m, int warps_k) {
  return kDenseStages * (kDenseWarps * kDenseStageBytes + tile_m * warps_k * kDenseRowBytes) +
         (warps_k > 1 ? (tile_m <= 8    ? 1
                         : tile_m <= 16 ? 2
                                        : 4) *
                            kDenseSumBytes
                      : 0);
}

/// Adds up the warps that share K, in their order, in the first of them. `shared` is free.
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

/// What becomes of the sums of 16 stored rows: a lane has rows g and g + 8, which g8 makes gate and up, for
/// rows of x 8q + 2t and 8q + 2t + 1.
template <int kTiles, class RowOf>
__device__ __forceinline__ void store_sums(const DenseArgs& a, const float (&sums)[kTiles][4],
                                           float expert_scale, int row0, int m, int lane,
                                           const RowOf& row_of) {
  const int g = lane / 4, t = lane % 4;
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
        const float value = swiglu(upper, lower, a.limit);
        const int at = row0 / 2 + g;
        if (a.active) {
          store_float(a.active, Float::bf16, active_place(row, dense_steps(a.n / 2), at), value);
        } else {
          store_float(a.out, a.out_type, static_cast<int64_t>(row) * (a.n / 2) + at, value);
        }
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

/// Rows of an expert, kTiles times 8 of x at a time.
///   grid.x  a.groups times 16 stored rows for each warp that does not share K
///   grid.y  a record of the route; without one a row
/// Warps that share K take steps in turn. Each warp copies its weights ahead on its own; x comes along K with
/// them, once for the block. kAligned: 16 stored rows and 64 k are there and can be copied at once.
template <class Weights, int kTiles, bool kAligned>
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
  int expert = 0, count = 1;
  const int* rows = nullptr;
  if (a.route) {
    if (static_cast<int>(blockIdx.y) >= a.route->active) return;
    const Route::Record record = a.route->records[blockIdx.y];
    rows = a.sorted + record.begin, count = record.count, expert = record.expert;
  } else {
    expert = local_expert(a.rows, static_cast<int>(blockIdx.y));
    if (expert < 0) {
      wait_for_predecessor();  // so that this kernel does not end before its predecessors
      return;
    }
  }
  const float expert_scale = a.global_scale[expert] * Weights::kFactor;
  const auto row_of = [&](int i) { return rows ? rows[i] : static_cast<int>(blockIdx.y); };
  const int group_rows = warps_n * kDenseTileRows,
            block_row = static_cast<int>(blockIdx.x) * a.groups * group_rows;
  const int warp_row = block_row + warp / a.warps_k * kDenseTileRows;
  const int turns = (a.steps + a.warps_k - 1) / a.warps_k;
  const int all_turns = min(a.groups, (a.n - block_row + group_rows - 1) / group_rows) * turns;
  uint8_t* stages = shared + warp * kDenseStages * kDenseStageBytes;
  uint8_t* x_stages = shared + kDenseWarps * kDenseStages * kDenseStageBytes;
  const int x_step = a.tile_m * kDenseRowBytes, x_stage = a.warps_k * x_step;

#pragma unroll 1
  for (int first = 0; first < count; first += a.tile_m) {
    const int m = min(count - first, a.tile_m);
    // The next weights
    DenseLoader<kAligned> loader(a, lane);
    loader.aim(expert, warp_row);
    int fill_turn = 0;
    const auto fill_weights = [&](int slot) {
      const int step = warp_k + fill_turn * a.warps_k;
      if (loader.row0 < a.n && step < a.steps) loader.fill(stages + slot * kDenseStageBytes, step);
      if (++fill_turn == turns) fill_turn = 0, loader.aim(expert, loader.row0 + group_rows);
    };
    // Copy ahead: weights first, since they depend on no other kernel
#pragma unroll
    for (int s = 0; s < kDenseStages - 1; ++s)
      if (s < all_turns) fill_weights(s);
    if (!waited) {
      wait_for_predecessor();
      release_successor();
      waited = true;
    }
    // A warp copies every eighth row of x, a unit a lane
    const uint4* x_from[kTiles];
#pragma unroll
    for (int q = 0; q < kTiles; ++q) {
      const int row = min(warp + kDenseWarps * q, m - 1);
      x_from[q] = a.x.units + static_cast<int64_t>(row_of(first + row) / a.rows_per_x) * a.steps * 32 + lane;
    }
    const int x_k = unit_at(lane) * 8;
    int x_turn = 0;
    const auto fill_x = [&](int slot) {
      for (int w = 0; w < a.warps_k; ++w) {
        const int step = x_turn * a.warps_k + w;
        if (step >= a.steps) break;
        const uint32_t bytes = step * kDenseStepK + x_k < a.k ? 16 : 0;
        uint8_t* to = x_stages + slot * x_stage + w * x_step;
#pragma unroll
        for (int q = 0; q < kTiles; ++q) {
          const int row = warp + kDenseWarps * q;
          if (row < m)
            copy_async16(shared_address(to + row * kDenseRowBytes + shared_unit(row, lane)),
                         x_from[q] + step * 32, bytes);
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
    float sums[kTiles][4] = {};
    int slot = 0, free_slot = kDenseStages - 1, turn = 0, row0 = warp_row;
#pragma unroll 1
    for (int i = 0; i < all_turns; ++i) {
      wait_copies<kDenseStages - 2>();
      __syncthreads();  // x of this turn is there; that of the last is free
      if (i + kDenseStages - 1 < all_turns) {
        fill_weights(free_slot);
        fill_x(free_slot);
      }
      commit_copies();
      if (row0 < a.n && warp_k + turn * a.warps_k < a.steps)
        multiply_dense_step<Weights, kTiles == 1 ? 2 : 1>(
            stages + slot * kDenseStageBytes, x_stages + slot * x_stage + warp_k * x_step, m, lane, sums);
      free_slot = slot;
      slot = slot + 1 == kDenseStages ? 0 : slot + 1;
      if (++turn < turns) continue;
      if (a.warps_k > 1) add_up_warps(sums, a.warps_k, warp, lane, x_stages + kDenseStages * x_stage);
      if (warp_k == 0 && row0 < a.n)
        store_sums(a, sums, expert_scale, row0, m, lane, [&](int j) { return row_of(first + j); });
#pragma unroll
      for (int q = 0; q < kTiles; ++q) sums[q][0] = sums[q][1] = sums[q][2] = sums[q][3] = 0;
      turn = 0, row0 += group_rows;
    }
    wait_copies<0>();
    __syncthreads();  // stages are free
  }
}

inline constexpr int kTokensStages = 4;
inline constexpr int kTokensStageBytes = kDenseStageBytes + kDenseRowBytes;
inline constexpr int kTokensShared = kDenseWarps * kTokensStages * kTokensStageBytes;

/// Tokens of few rows, whose experts go one behind another along K: out[m] = the sum of the token's rows.
///   grid.x  16 stored rows for each warp that does not share K
///   grid.y  a token
/// Warps that share K take steps in turn. Each warp copies weights and x ahead on its own.
template <class Weights>
__global__ void __launch_bounds__(kDenseThreads, 2) dense_tokens_kernel(const __grid_constant__ DenseArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_k = warp % a.warps_k, warps_n = kDenseWarps / a.warps_k,
            token = static_cast<int>(blockIdx.y);
  const int row0 = (static_cast<int>(blockIdx.x) * warps_n + warp / a.warps_k) * kDenseTileRows;

  // Experts that are here, one a lane, and the token's rows that they are of
  int own_row = token * a.segments + lane;
  int own_expert = lane < a.segments ? local_expert(a.rows, own_row) : -1;
  const uint32_t here = __ballot_sync(0xFFFFFFFFu, own_expert >= 0);
  const int segments = __popc(here);
  if (segments < a.segments) {
    const int from = lane < segments ? static_cast<int>(__fns(here, 0, lane + 1)) : 0;
    own_expert = __shfl_sync(0xFFFFFFFFu, own_expert, from), own_row = token * a.segments + from;
  }
  float own_factor = 0;
  if (lane < segments) {
    own_factor = a.global_scale[own_expert] * Weights::kFactor;
    if (a.row_weight) own_factor *= a.row_weight[own_row];
  }
  const auto of_segment = [](auto value, int segment) { return __shfl_sync(0xFFFFFFFFu, value, segment); };

  const int all_steps = segments * a.steps;
  const int steps = row0 < a.n && warp_k < all_steps ? (all_steps - warp_k - 1) / a.warps_k + 1 : 0;
  uint8_t* stages = shared + warp * kTokensStages * kTokensStageBytes;
  DenseLoader<true> loader(a, lane);
  struct At {
    int segment, step;
    __device__ __forceinline__ void advance(int by, int steps) {
      for (step += by; step >= steps; step -= steps) ++segment;
    }
  };
  const auto begin = [&] {
    At at{0, 0};
    if (steps > 0) at.advance(warp_k, a.steps);
    return at;
  };
  At next = begin(), next_x = next, at = next;
  int aimed = -1;
  const auto fill_weights = [&](int slot) {
    if (next.segment != aimed) {
      aimed = next.segment;
      loader.aim(of_segment(own_expert, aimed), row0);
    }
    loader.fill(stages + slot * kTokensStageBytes, next.step);
    next.advance(a.warps_k, a.steps);
  };
  const auto fill_x = [&](int slot) {
    const int64_t row = of_segment(own_row, next_x.segment);
    const uint32_t bytes = next_x.step * kDenseStepK + unit_at(lane) * 8 < a.k ? 16 : 0;
    copy_async16(shared_address(stages + slot * kTokensStageBytes + kDenseStageBytes + lane * 16),
                 a.x.units + (row * a.steps + next_x.step) * 32 + lane, bytes);
    next_x.advance(a.warps_k, a.steps);
  };
  // Copy ahead: weights first, since they depend on no other kernel
#pragma unroll 1
  for (int s = 0; s < kTokensStages; ++s)
    if (s < steps) fill_weights(s);
  wait_for_predecessor();
  release_successor();
#pragma unroll 1
  for (int s = 0; s < kTokensStages; ++s) {
    if (s < steps) fill_x(s);
    commit_copies();
  }

  // Multiply
  float sums[1][4] = {};
  int slot = 0;
#pragma unroll 1
  for (int i = 0; i < steps; ++i) {
    wait_copies<kTokensStages - 1>();
    __syncwarp();
    const uint8_t* stage = stages + slot * kTokensStageBytes;
    float of_step[1][4] = {};
    multiply_dense_step<Weights, 4>(stage, stage + kDenseStageBytes, 1, lane, of_step);
    __syncwarp();
    if (i + kTokensStages < steps) fill_weights(slot), fill_x(slot);
    commit_copies();
    const float factor = of_segment(own_factor, at.segment);
    at.advance(a.warps_k, a.steps);
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[0][j] = fmaf(factor, of_step[0][j], sums[0][j]);
    slot = slot + 1 == kTokensStages ? 0 : slot + 1;
  }
  wait_copies<0>();
  __syncthreads();
  if (a.warps_k > 1) add_up_warps(sums, a.warps_k, warp, lane, shared);
  if (warp_k != 0 || row0 >= a.n || lane % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    store_float(a.out, a.out_type, static_cast<int64_t>(token) * a.n + row0 + lane / 4 + 8 * r,
                sums[0][2 * r]);
}

}  // namespace twofour::cuda
