#pragma once
#include "kernels/multiply/dense_kernel.cuh"

/// The kernel for rows that do not share experts. It multiplies one row of x at a time.

namespace twofour::cuda {

/// The number of stages in a block's shared memory. It holds stages of weights for each warp. If rows are
/// multiplied one by one, it also holds all of x; with tokens, it holds one step of x for each stage.
inline constexpr int kSingleStages = 3, kTokensStages = 4;
__host__ __device__ constexpr int single_shared(int steps) {
  return kDenseWarps * kSingleStages * kDenseStageBytes + steps * kDenseRowBytes;
}
inline constexpr int kTokensShared = kDenseWarps * kTokensStages * (kDenseStageBytes + kDenseRowBytes);

/// Writes a whole row of x to shared memory as units.
__device__ __forceinline__ void stage_row_of_x(const DenseArgs& a, int64_t row, uint4* to) {
  constexpr int kAtOnce = 4;
  const int units = a.k / 8;
  const bool wide = reinterpret_cast<uintptr_t>(a.raw_x) % 16 == 0;
  const auto* raw = reinterpret_cast<const uint32_t*>(a.raw_x) + row * (a.k / 2);
  for (int first = static_cast<int>(threadIdx.x); first < a.steps * 32; first += kAtOnce * kDenseThreads) {
    uint4 loaded[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int u = first + i * kDenseThreads;
      if (u >= units) continue;
      if (!a.raw_x) {
        loaded[i] = a.x.units[row * a.steps * 32 + unit_place(u)];
      } else if (wide) {
        loaded[i] = *reinterpret_cast<const uint4*>(raw + u * 4);
      } else {
        loaded[i] = {raw[u * 4], raw[u * 4 + 1], raw[u * 4 + 2], raw[u * 4 + 3]};
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int u = first + i * kDenseThreads;
      if (u < a.steps * 32) to[unit_place(u)] = a.raw_x ? permuted_unit(loaded[i]) : loaded[i];
    }
  }
}

/// The rows of a token whose experts are on this device, one in each lane. All lanes are active.
struct TokenSegments {
  int count, row, expert;
  __device__ __forceinline__ TokenSegments(const DenseArgs& a, int token, int lane) {
    row = token * a.segments + lane;
    expert = lane < a.segments ? local_expert(a.rows, row) : -1;
    const uint32_t here = __ballot_sync(0xFFFFFFFFu, expert >= 0);
    count = __popc(here);
    if (count == a.segments) return;
    const int from = lane < count ? static_cast<int>(__fns(here, 0, lane + 1)) : 0;
    expert = __shfl_sync(0xFFFFFFFFu, expert, from), row = token * a.segments + from;
  }
};

/// Multiplies rows one by one. With kTokens, it multiplies tokens with few rows: their experts follow each
/// other along K, and out[token] is the sum of the token's rows.
///   grid.x  a tile for each warp that does not share K; with rows, a.groups tiles one after another
///   grid.y  a row or a token
/// Warps that share K take steps in turn; there is then one group. Each warp copies its own weights ahead
/// and, with tokens, its own x.
template <class Weights, DenseAccess kAccess, bool kTokens>
__global__ void __launch_bounds__(kDenseThreads, kTokens ? 2 : 3)
    dense_single_kernel(const __grid_constant__ DenseArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kStages = kTokens ? kTokensStages : kSingleStages;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_k = warp % a.warps_k, warps_n = kDenseWarps / a.warps_k;
  const int index = static_cast<int>(blockIdx.y);
  const int tile = static_cast<int>(blockIdx.x) * a.groups * warps_n + warp / a.warps_k;
  uint8_t* stages = shared + warp * kStages * kDenseStageBytes;
  uint8_t* x = shared + kDenseWarps * kStages * kDenseStageBytes;
  if (kTokens) x += warp * kStages * kDenseRowBytes;

  // Segments are processed one after another. They are the experts of the token, one in each lane, or the
  // tiles of one expert.
  int segments = 0, own_row = index, own_expert = 0;
  float own_factor = 0;
  if constexpr (kTokens) {
    const TokenSegments own(a, index, lane);
    segments = own.count, own_row = own.row, own_expert = own.expert;
    if (lane < segments) {
      own_factor = a.global_scale[own_expert] * Weights::kFactor;
      if (a.row_weight) own_factor *= a.row_weight[own_row];
    }
  } else {
    own_expert = local_expert(a.rows, index);
    if (own_expert < 0) {
      wait_for_predecessor();  // this kernel must not end before its predecessors
      return;
    }
    segments = min(a.groups, (a.tiles - tile + warps_n - 1) / warps_n);
  }
  const auto of_segment = [](auto value, int segment) {
    return kTokens ? __shfl_sync(0xFFFFFFFFu, value, segment) : value;
  };

  struct At {
    int segment, step;
    __device__ __forceinline__ At(int of_all, int steps) : segment(of_all / steps), step(of_all % steps) {}
    /// Advances by `by` steps. Returns true if it enters another segment.
    __device__ __forceinline__ bool advance(int by, int steps) {
      if ((step += by) < steps) return false;
      do step -= steps, ++segment;
      while (step >= steps);
      return true;
    }
  };
  const int all_steps = segments * a.steps;
  const int steps = tile < a.tiles && warp_k < all_steps ? (all_steps - warp_k - 1) / a.warps_k + 1 : 0;

  // Copy ahead of the products. Weights come first, because they depend on no other kernel.
  At next(warp_k, a.steps);
  DenseLoader<kAccess> loader(a, lane);
  const auto aim_weights = [&] {
    loader.aim(of_segment(own_expert, next.segment), kTokens ? tile : tile + next.segment * warps_n,
               next.step);
  };
  const auto x_of = [&](const At& step) {
    return a.x.units + (static_cast<int64_t>(of_segment(own_row, step.segment)) * a.steps + step.step) * 32 +
           lane;
  };
  const auto fill_x = [&](int slot, const uint4* from, int left) {
    copy_async16(shared_address(x + slot * kDenseRowBytes + lane * 16), from,
                 unit_at(lane) * 8 < left ? 16 : 0);
  };
#pragma unroll 1
  for (int s = 0; s < kStages; ++s) {
    if (s < steps) {
      if (s == 0 || next.advance(a.warps_k, a.steps)) aim_weights();
      loader.fill(stages + s * kDenseStageBytes, a.warps_k);
    }
    if (!kTokens) commit_copies();
  }
  wait_for_predecessor();
  release_successor();
  const uint4* next_x = nullptr;
  if constexpr (kTokens) {
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) {
      if (s < steps) {
        const At step(warp_k + s * a.warps_k, a.steps);
        fill_x(s, x_of(step), a.k - step.step * kDenseStepK);
      }
      commit_copies();
    }
    next_x = x_of(next);
  } else {
    stage_row_of_x(a, index / a.rows_per_x, reinterpret_cast<uint4*>(x));
    __syncthreads();
  }
  const auto fill = [&](int slot) {
    const bool aims = next.advance(a.warps_k, a.steps);
    if (aims) aim_weights();
    if constexpr (kTokens) {
      next_x = aims ? x_of(next) : next_x + a.warps_k * 32;
      fill_x(slot, next_x, loader.left());
    }
    loader.fill(stages + slot * kDenseStageBytes, a.warps_k);
  };

  // Multiply
  const DenseInput<1> input(1, lane);
  float sums[1][4] = {};
  const auto store = [&](int of_tile) {
    const DenseTile rows(of_tile, is_g8<kAccess>(a));
    if constexpr (!kTokens) {
      store_sums(a, sums, a.global_scale[own_expert] * Weights::kFactor, rows, 1, lane,
                 [&](int) { return index; });
    } else if (lane % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int n = rows.row(lane / 4 + 8 * r);
        if (n < a.n) store_float(a.out, a.out_type, static_cast<int64_t>(index) * a.n + n, sums[0][2 * r]);
      }
    }
  };
  int slot = 0;
  At at(warp_k, a.steps);
#pragma unroll 1
  for (int i = 0; i < steps; ++i) {
    wait_copies<kStages - 1>();
    __syncwarp();
    float of_step[1][4] = {};
    multiply_dense_step<Weights, kTokens ? 4 : 2>(stages + slot * kDenseStageBytes,
                                                  x + (kTokens ? slot : at.step) * kDenseRowBytes, input,
                                                  lane, kTokens ? of_step : sums);
    __syncwarp();
    if (i + kStages < steps) fill(slot);
    commit_copies();
    if constexpr (kTokens) {
      const float factor = of_segment(own_factor, at.segment);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[0][j] = fmaf(factor, of_step[0][j], sums[0][j]);
    }
    const int segment = at.segment;
    if (at.advance(a.warps_k, a.steps) && !kTokens && a.warps_k == 1) {
      store(tile + segment * warps_n);
      sums[0][0] = sums[0][1] = sums[0][2] = sums[0][3] = 0;
    }
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  wait_copies<0>();
  if (!kTokens && a.warps_k == 1) return;
  __syncthreads();
  if (a.warps_k > 1) add_up_warps(sums, a.warps_k, warp, lane, shared);
  if (warp_k == 0 && tile < a.tiles) store(tile);
}

}  // namespace twofour::cuda
