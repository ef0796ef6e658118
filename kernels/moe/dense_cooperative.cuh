#pragma once
#include <cooperative_groups.h>

#include "kernels/moe/dense_cooperative.h"
#include "kernels/multiply/dense_warp.cuh"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/numbers/swiglu.cuh"

/// The kernel. There is one block per multiprocessor, and all blocks run at once. First, each block
/// multiplies tiles of 16 stored rows of gate and up, for one expert after another. Then it multiplies tiles
/// of the result along the K of all experts. In both products, the warps of a block share the steps evenly,
/// and each warp has a contiguous run of steps. Shared memory has a stage for each step, so a warp starts all
/// copies at once. Memory stays busy while blocks synchronize between the products. Tried without gain: more
/// warps with fewer stages, and a ring of stages for larger layers.

namespace twofour::cuda {

inline constexpr int kTokenThreads = 512, kTokenWarps = kTokenThreads / 32, kTokenStages = 5;

/// The tiles of both products for block `b` of `blocks`. All blocks have nearly the same number of steps.
struct TokenShare {
  int up_begin, up_end, down_begin, down_end;
  TWOFOUR_HD static constexpr int down_at(int b, int blocks, int tiles) { return tiles * b / blocks; }
  TWOFOUR_HD static constexpr int up_at(int b, int blocks, int up_tiles, int up_steps, int down_tiles,
                                        int down_steps) {
    const int all = up_tiles * up_steps + down_tiles * down_steps;
    return (all * b - down_at(b, blocks, down_tiles) * down_steps * blocks) / (up_steps * blocks);
  }
  TWOFOUR_HD constexpr TokenShare(int b, int blocks, int up_tiles, int up_steps, int down_tiles,
                                  int down_steps)
      : up_begin(up_at(b, blocks, up_tiles, up_steps, down_tiles, down_steps)),
        up_end(up_at(b + 1, blocks, up_tiles, up_steps, down_tiles, down_steps)),
        down_begin(down_at(b, blocks, down_tiles)),
        down_end(down_at(b + 1, blocks, down_tiles)) {}
};

/// The first step of a warp among the steps of its block.
TWOFOUR_HD constexpr int token_begin(int all, int warp) { return all * warp / kTokenWarps; }

/// The run of steps of a warp. The next step is `at` of tile `tile`, and `left` steps are left.
struct TokenRun {
  int tile, at, left;
  __device__ __forceinline__ TokenRun(int tiles, int steps, int warp) : tile(0), at(0), left(0) {
    const int begin = token_begin(tiles * steps, warp);
    left = token_begin(tiles * steps, warp + 1) - begin;
    if (left > 0) tile = begin / steps, at = begin - tile * steps;
  }
  __device__ __forceinline__ void advance(int steps) {
    --left;
    if (++at == steps) at = 0, ++tile;
  }
};

/// The position of a warp's copies.
struct TokenCopies {
  DenseCopies<true> from;
  int left = 0;  ///< steps to the end of the rows

  __device__ __forceinline__ void aim(const CooperativeDenseWeights& w, int expert, int tile, int step,
                                      int lane) {
    from.aim(w.codes + expert * w.code_expert, w.scales + expert * w.scale_expert, DenseTile(tile, true), w.n,
             w.k, w.scale_step, w.scale_rows_128, step, lane);
    left = w.steps - step;
  }
  __device__ __forceinline__ void start(const CooperativeDenseWeights& w, uint8_t* stage, int lane) {
    from.copy(shared_address(stage), w.k, 1, w.scale_step, lane);
    --left;
  }
};

/// The sum over all warps of their sums for stored row `row` of tile `tile`, in the order of warps.
__device__ __forceinline__ float token_sum(const float* sums, int tiles, int steps, int tile, int row) {
  const int all = tiles * steps, first = tile * steps;
  if (all == 0) return 0;
  float sum = 0;
  for (int w = ((first + 1) * kTokenWarps - 1) / all; token_begin(all, w) < first + steps; ++w) {
    if (token_begin(all, w) < token_begin(all, w + 1)) sum += sums[(tile + w) * kDenseTileRows + row];
    if (w + 1 == kTokenWarps) break;
  }
  return sum;
}

/// Eight stored numbers of hidden. Numbers beyond K are zeros.
struct HiddenUnit {
  uint32_t words[8] = {};

  __device__ __forceinline__ HiddenUnit(const CooperativeDenseArgs& a, int unit) {
    if (unit >= a.up.k / 8) return;
    const bool wide = a.type == Float::f32;
    const uint32_t* from = static_cast<const uint32_t*>(a.x) + unit * (wide ? 8 : 4);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < 4 || wide) words[i] = from[i];
  }
  __device__ __forceinline__ float2 pair(Float type, int i) const {
    if (type == Float::f32) return {__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1])};
    return load_pair(&words[i], type, 0);
  }
};

/// Writes hidden to shared memory as units. `first` is the unit that the thread has already loaded. Returns
/// the factor of products. `scratch` has one number for each warp.
template <class Weights>
__device__ __forceinline__ float stage_hidden(const CooperativeDenseArgs& a, const HiddenUnit& first,
                                              uint4* to, uint32_t* scratch) {
  constexpr bool kHalf = std::is_same_v<Weights, HalfWeights>;
  const int thread = static_cast<int>(threadIdx.x);
  const auto unit_of = [&](int u) { return u == thread ? first : HiddenUnit(a, u); };
  float scale = 1, factor = Weights::kFactor;
  if constexpr (kHalf) {
    uint32_t largest = 0;
    for (int u = thread; u < a.up.steps * 32; u += kTokenThreads) {
      const HiddenUnit unit = unit_of(u);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unit.pair(a.type, i);
        largest = max(largest, max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))));
      }
    }
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
    if (thread % 32 == 0) scratch[thread / 32] = largest;
    __syncthreads();
    for (int w = 0; w < kTokenWarps; ++w) largest = max(largest, scratch[w]);
    const HalfScale half = half_scale(largest);
    scale = half.scale, factor = half.factor;
  }
  for (int u = thread; u < a.up.steps * 32; u += kTokenThreads) {
    const HiddenUnit unit = unit_of(u);
    if constexpr (kHalf) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unit.pair(a.type, i);
        x[2 * i] = pair.x * scale, x[2 * i + 1] = pair.y * scale;
      }
      to[unit_place(u)] = {half2_of(x[0], x[4]), half2_of(x[1], x[5]), half2_of(x[2], x[6]),
                           half2_of(x[3], x[7])};
    } else {
      to[unit_place(u)] = permuted_unit(unit.words);
    }
  }
  return factor;
}

template <class Weights>
__global__ void __launch_bounds__(kTokenThreads)
    cooperative_dense_kernel(const __grid_constant__ CooperativeDenseArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int topk = a.rows.rows;
  auto* x = reinterpret_cast<uint4*>(shared + a.shared.x);
  auto* sums = reinterpret_cast<float*>(shared + a.shared.sums);

  // Load hidden first, since everything waits for it. After the weights, it would arrive last.
  const HiddenUnit hidden(a, thread);

  // Find the experts that are on this device, and their rows. Each lane has one expert, in their order.
  int own_expert = lane < topk ? local_expert(a.rows, lane) : -1;
  const uint32_t here = __ballot_sync(0xFFFFFFFFu, own_expert >= 0);
  const int segments = __popc(here);
  int own_row = lane;
  if (segments < topk) {
    own_row = lane < segments ? static_cast<int>(__fns(here, 0, lane + 1)) : 0;
    own_expert = __shfl_sync(0xFFFFFFFFu, own_expert, own_row);
  }
  float up_scale = 0, up_weight = 1, down_scale = 0, down_weight = 1;
  if (lane < segments) {
    up_scale = a.up.global_scale[own_expert], down_scale = a.down.global_scale[own_expert];
    if (a.up.row_weight) up_weight = a.up.row_weight[own_row];
    if (a.down.row_weight) down_weight = a.down.row_weight[own_row];
  }
  const auto of_segment = [](auto value, int segment) { return __shfl_sync(0xFFFFFFFFu, value, segment); };

  // Find the tiles of the block and the runs of steps of the warp.
  const int up_steps = a.up.steps, down_steps = a.down.steps * segments;
  const TokenShare share(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), a.up.tiles * segments,
                         up_steps, a.down.tiles, down_steps);
  const int up_tiles = share.up_end - share.up_begin, down_tiles = share.down_end - share.down_begin;
  const TokenRun up_run(up_tiles, up_steps, warp), down_run(down_tiles, down_steps, warp);

  // Start the copies in the order of their use.
  const uint8_t* stages = shared + warp * kTokenStages * kDenseStageBytes;
  {
    TokenRun next = up_run;
    TokenCopies copies;
    bool is_down = false;
#pragma unroll 1
    for (int s = 0; s < kTokenStages; ++s) {
      if (next.left == 0 && !is_down) is_down = true, next = down_run, copies.left = 0;
      if (next.left > 0) {
        const CooperativeDenseWeights& w = is_down ? a.down : a.up;
        if (copies.left == 0) {
          const int all = is_down ? next.at : share.up_begin + next.tile, each = is_down ? w.steps : w.tiles;
          const int segment = all / each, in_segment = all - segment * each;
          copies.aim(w, of_segment(own_expert, segment), is_down ? share.down_begin + next.tile : in_segment,
                     is_down ? in_segment : next.at, lane);
        }
        copies.start(w, shared + (warp * kTokenStages + s) * kDenseStageBytes, lane);
        next.advance(is_down ? down_steps : up_steps);
      }
      commit_copies();
    }
  }
  release_successor();  // the copies that the next kernel starts ahead come after these
  const float x_factor = stage_hidden<Weights>(a, hidden, x, reinterpret_cast<uint32_t*>(sums));
  __syncthreads();

  // Multiply by gate and up. The sums of a warp for a tile are at slot tile + warp, because neighbouring
  // warps share at most one tile.
  const auto next_stage = [&] {
    wait_copies<kTokenStages - 1>();
    commit_copies();
    __syncwarp();
    const uint8_t* stage = stages;
    stages += kDenseStageBytes;
    return stage;
  };
  const auto store_sums = [&](int tile, float upper, float lower) {
    float* to = sums + (tile + warp) * kDenseTileRows + lane / 4;
    if (lane % 4 == 0) to[0] = upper, to[8] = lower;
  };
  const DenseInput<1> input(1, lane);
  float acc[1][4] = {};
#pragma unroll 1
  for (TokenRun run = up_run; run.left > 0;) {
    multiply_dense_step<Weights, 4>(
        next_stage(), reinterpret_cast<const uint8_t*>(x) + run.at * kDenseRowBytes, input, lane, acc);
    const int tile = run.tile;
    run.advance(up_steps);
    if (run.left == 0 || run.at == 0) {
      store_sums(tile, acc[0][0], acc[0][2]);
      acc[0][0] = acc[0][1] = acc[0][2] = acc[0][3] = 0;
    }
  }
  __syncthreads();
  for (int i = thread; i < (up_tiles * kDenseTileRows + 31) / 32 * 32; i += kTokenThreads) {
    const int tile = share.up_begin + i / kDenseTileRows, row = i % kDenseTileRows;
    const bool present = i < up_tiles * kDenseTileRows;
    const int segment = present ? tile / a.up.tiles : 0;
    const float factor = of_segment(up_scale * up_weight, segment) * x_factor;
    const float mine = present ? token_sum(sums, up_tiles, up_steps, i / kDenseTileRows, row) * factor : 0;
    const float up = __shfl_down_sync(0xFFFFFFFFu, mine, 8);
    const int stored = DenseTile(tile - segment * a.up.tiles, true).row(row);
    if (present && row < 8 && stored < a.up.n) {
      const int at = stored / 16 * 8 + stored % 16;
      store_float(a.active, Float::bf16, active_place(segment, a.down.steps, at), swiglu(mine, up, a.limit));
    }
  }

  // Synchronize all blocks. Then all of gate times up replaces hidden.
  auto grid = cooperative_groups::this_grid();
  grid.sync();
  for (int i = thread; i < down_steps * 32; i += kTokenThreads) {
    const int k = i / 32 % a.down.steps * kDenseStepK + unit_at(i % 32) * 8;
    x[i] = k < a.down.k ? __ldcg(a.active + i) : uint4{};
  }
  __syncthreads();

  // Down
  float upper = 0, lower = 0;
#pragma unroll 1
  for (TokenRun run = down_run; run.left > 0;) {
    float step_sums[1][4] = {};
    multiply_dense_step<Bf16Weights, 4>(
        next_stage(), reinterpret_cast<const uint8_t*>(x) + run.at * kDenseRowBytes, input, lane, step_sums);
    const float factor = of_segment(down_scale * down_weight, run.at / a.down.steps);
    upper = fmaf(factor, step_sums[0][0], upper), lower = fmaf(factor, step_sums[0][2], lower);
    const int tile = run.tile;
    run.advance(down_steps);
    if (run.left == 0 || run.at == 0) {
      store_sums(tile, upper, lower);
      upper = lower = 0;
    }
  }
  __syncthreads();
  for (int i = thread; i < down_tiles * kDenseTileRows; i += kTokenThreads) {
    const float sum = token_sum(sums, down_tiles, down_steps, i / kDenseTileRows, i % kDenseTileRows) *
                      Bf16Weights::kFactor;
    const int n = DenseTile(share.down_begin + i / kDenseTileRows, true).row(i % kDenseTileRows);
    if (n < a.down.n) store_float(a.out, a.type, n, sum);
  }
}

}  // namespace twofour::cuda
