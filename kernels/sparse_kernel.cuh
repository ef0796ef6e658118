#pragma once
#include "kernels/sparse_ending.cuh"

/// The kernel: a block (or a cluster of blocks) multiplies some columns of one expert with all rows that the
/// router sends there.
///   grid.x  blocks of a cluster, which share K
///   grid.y  columns, 128 for each of warps_n; gated: 128 of gate and 128 of up for every two
///   grid.z  a record of the route; without one a row; with Ending::tokens a token
/// Warp w takes K steps u, u + U, ... with u = rank * warps_k + w % warps_k, U = cluster * warps_k. Each warp
/// copies ahead on its own; blocks meet only to add up.

namespace twofour::cuda {

inline constexpr int kStages = 3;
inline constexpr int kMaxThreads = 256;

/// What a warp gets x from: PreparedRows; activations as they are, converted on the way; PreparedRows of
/// several experts along K (Ending::tokens).
enum class Feed { prepared, raw, tokens };

/// Eights of rows that a kernel for `tile_m` rows multiplies, whether they are there or not: 1, 2 or 4.
__host__ __device__ constexpr int row_tiles(int tile_m) { return tile_m <= 8 ? 1 : tile_m <= 16 ? 2 : 4; }

/// Shared memory of a block, bytes from its start. The sums take the place of the stages once those are read.
struct SharedPlan {
  int stage;  ///< bytes of a stage: weights, rows of x, factors
  int list, experts, weights, state, converted, stages, bytes;
  int converted_warp;  ///< halves and factors of a step for Feed::raw
  __host__ __device__ SharedPlan(const SparseArgs& a) {
    const int warps = a.warps_k * a.warps_n, factors = row_tiles(a.tile_m) * 32;
    const bool tokens = a.ending == Ending::tokens;
    list = 0;
    experts = list + (tokens ? kMaxSegments * 4 : 0);
    weights = experts + (tokens ? kMaxSegments * 4 : 0);
    state = weights + (tokens ? kMaxSegments * 4 : 0);
    converted = state + 16;
    converted_warp = a.raw ? a.tile_m * kStepK * 2 + factors : 0;
    stages = converted + warps * converted_warp;
    stage = kStageBytes + a.tile_m * kStepK * 2 + (a.raw ? 0 : factors);
    const int copies = warps * kStages * stage, sums = warps * a.tile_m * kWarpColumns * 4;
    bytes = stages + (copies > sums ? copies : sums);
  }
};

/// The rows of a token that have an expert here: `list`, `experts` and `weights` of them. Returns how many.
__device__ __forceinline__ int find_segments(const SparseArgs& a, int* list, int* experts, float* weights,
                                             int* count_of_all) {
  if (threadIdx.x < 32) {
    int count = 0;
    for (int t0 = 0; t0 < a.segments; t0 += 32) {
      const int t = t0 + static_cast<int>(threadIdx.x);
      const int row = static_cast<int>(blockIdx.z) * a.segments + t;
      const int e = t < a.segments ? local_expert(a.rows, row) : -1;
      const unsigned here = __ballot_sync(0xFFFFFFFFu, e >= 0);
      const int place = count + __popc(here & ((1u << threadIdx.x) - 1));
      if (e >= 0) {
        list[place] = row;
        experts[place] = e;
        weights[place] = a.global_scale[e] * (a.row_weight ? a.row_weight[row] : 1.0f);
      }
      count += __popc(here);
    }
    if (threadIdx.x == 0) *count_of_all = count;
  }
  __syncthreads();
  return *count_of_all;
}

/// Where a warp's next step is: segment (expert along K) and K step in it.
struct StepCursor {
  int segment, step;
  __device__ __forceinline__ void advance(int by, int steps) {
    step += by;
    while (step >= steps) step -= steps, ++segment;
  }
};

/// kTiles times 8 rows of x at a time; kAligned: 16 columns and 64 k are there and can be copied at once.
template <class Layout, int kTiles, bool kAligned, Feed kFeed>
__global__ void __launch_bounds__(kMaxThreads, kTiles == 1 ? 2 : 1)
    sparse_kernel(const __grid_constant__ SparseArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr bool kTokens = kFeed == Feed::tokens;
  const SharedPlan plan(a);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const int warp_n = warp >> a.warps_k_log2, warp_k = warp & (a.warps_k - 1);
  const int cluster = a.cluster, rank = static_cast<int>(blockIdx.x);
  const int k_steps = a.k_steps;

  // Rows
  int* list = reinterpret_cast<int*>(shared + plan.list);
  int* experts = reinterpret_cast<int*>(shared + plan.experts);
  float* weights = reinterpret_cast<float*>(shared + plan.weights);
  int expert = 0, count = 1, segments = 1;
  const int* rows = nullptr;  // nullptr: row grid.z alone
  bool waited = false;
  if (a.route_from_predecessor) {
    wait_for_predecessor();
    release_successor();
    waited = true;
  }
  if constexpr (kTokens) {
    segments = find_segments(a, list, experts, weights, reinterpret_cast<int*>(shared + plan.state));
  } else if (a.route) {
    if (static_cast<int>(blockIdx.z) >= a.route->active) return;
    const Route::Record record = a.route->records[blockIdx.z];
    rows = a.sorted + record.begin, count = record.count, expert = record.expert;
  } else {
    expert = local_expert(a.rows, static_cast<int>(blockIdx.z));
    if (expert < 0) {
      wait_for_predecessor();  // so that this kernel does not end before those in front of it
      return;
    }
  }
  const float expert_scale = kTokens ? 1.0f : a.global_scale[expert];

  // Columns
  const int columns = a.gated ? a.n / 2 : a.n, parts = a.gated ? a.warps_n / 2 : a.warps_n;
  const int first_tile = static_cast<int>(blockIdx.y) * parts;
  const int tile = first_tile + (a.gated ? warp_n / 2 : warp_n);
  const int in_half = tile * kWarpColumns + lane % 8 * 16;
  const int present = min(max(columns - in_half, 0), 16);
  const int column = present == 0 ? 0 : in_half + (a.gated && warp_n % 2 == 1 ? columns : 0);

  // Steps
  const int stride = cluster * a.warps_k, first_step = rank * a.warps_k + warp_k;
  int steps = a.least_steps + (first_step < a.one_more ? 1 : 0);
  if constexpr (kTokens) steps = (segments * k_steps - first_step + stride - 1) / stride;
  if (tile * kWarpColumns >= columns) steps = 0;
  uint8_t* stages = shared + plan.stages + warp * kStages * plan.stage;
  const uint32_t stages_at = shared_address(stages);
  const LaneCursor<Layout> begin(a, column, lane / 8);

  const auto row_of = [&](int row) { return rows ? rows[row] : static_cast<int>(blockIdx.z); };
  const auto x_row_of = [&](int row) {
    return a.rows_per_x == 1 ? row_of(row)
                             : static_cast<int>(static_cast<uint64_t>(row_of(row)) * a.x_multiplier >> 36);
  };
#pragma unroll 1
  for (int first_row = 0; first_row < max(count, 1); first_row += a.tile_m) {
    const int m = min(count - first_row, a.tile_m);

    // The weights of the next step; pointers where one expert goes all along K
    StepCursor next{0, 0};
    next.advance(first_step, k_steps);
    LaneCursor<Layout> cursor = begin;
    if constexpr (!kTokens) cursor.move(a, expert, first_step);
    const auto fill_weights = [&](int slot) {
      const uint32_t to = stages_at + slot * plan.stage;
      if constexpr (!kAligned) {
        copy_bytes<Layout>(a, stages + slot * plan.stage, lane, kTokens ? experts[next.segment] : expert,
                           next.step, column, present);
      } else if constexpr (kTokens) {
        LaneCursor<Layout> at = begin;
        at.move(a, experts[next.segment], next.step);
        at.copy(a, to, lane);
      } else {
        cursor.copy(a, to, lane);
      }
    };
    const auto go_on = [&](StepCursor& at) {
      if constexpr (kTokens || !kAligned) at.advance(stride, k_steps);
    };

    // The rows of x of the next step, 8 lanes each, and a factor
    const auto* halves = kFeed == Feed::raw ? static_cast<const uint4*>(a.raw) : a.x.halves;
    constexpr int kCopies = kFeed == Feed::raw ? 1 : 2 * kTiles;
    const uint4* x_from[kCopies];
    const float* factor_from = a.x.factors + first_step;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = 4 * i + lane / 8;
      int64_t at = lane % 8;
      if constexpr (!kTokens) {
        const int x_row = row >= m ? 0 : x_row_of(first_row + row);
        at += (static_cast<int64_t>(x_row) * k_steps + first_step) * 8;
      }
      x_from[i] = halves + at;
    }
    if (kFeed == Feed::prepared && lane < m) {
      factor_from += static_cast<int64_t>(x_row_of(first_row + lane)) * k_steps;
    }
    const auto fill_x = [&](int slot, const StepCursor& at) {
      const uint32_t to = stages_at + slot * plan.stage + kStageBytes;
      if constexpr (kTokens) {
        const int64_t step = static_cast<int64_t>(list[at.segment]) * k_steps + at.step;
        if (lane < 8) copy_async16(to + lane * 16, a.x.halves + step * 8 + lane);
        if (lane == 0) copy_async4(to + kStepK * 2, a.x.factors + step);
      } else {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          const int row = 4 * i + lane / 8;  // prepared: [half of k][row][t], see mma_sparse, b
          const int place =
              kFeed == Feed::raw ? row * 8 + lane % 8 : (lane % 8 / 4 * a.tile_m + row) * 4 + lane % 4;
          if (row < m) copy_async16(to + place * 16, x_from[i]);
          x_from[i] += stride * 8;
        }
        if constexpr (kFeed == Feed::prepared) {
          if (lane < m) copy_async4(to + a.tile_m * (kStepK * 2) + lane * 4, factor_from);
          factor_from += stride;
        }
      }
    };

    // Copy ahead: weights first, for they wait for nobody
    StepCursor at = next, next_x = next;
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) {
      if (s < steps) fill_weights(s);
      cursor.advance(a);
      go_on(next);
    }
    if (!waited) {
      wait_for_predecessor();
      release_successor();
      waited = true;
    }
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) {
      if (s < steps) fill_x(s, next_x);
      go_on(next_x);
      commit_copies();
    }

    // Multiply
    float sums[8][kTiles][4] = {};
    int slot = 0;
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      // The first group holds the weights of all stages, the x of the first.
      wait_copies<kStages - 1>();
      __syncwarp();
      const uint8_t* stage = stages + slot * plan.stage;
      const auto* x = reinterpret_cast<const uint4*>(stage + kStageBytes);
      if constexpr (kFeed == Feed::raw) {
        auto* converted = shared + plan.converted + warp * plan.converted_warp;
        convert_step(reinterpret_cast<uint32_t*>(converted), 16,
                     reinterpret_cast<float*>(converted + kStepK * 2), lane,
                     load_pair(stage + kStageBytes, a.raw_type, 2 * lane));
        __syncwarp();
        x = reinterpret_cast<const uint4*>(converted);
      }
      const auto* factors = reinterpret_cast<const float2*>(x + a.tile_m * 8);
      uint4 b[2][kTiles];
      float2 factor[kTiles];
#pragma unroll
      for (int q = 0; q < kTiles; ++q) {
        const int row = min(8 * q + g, m - 1);
        b[0][q] = x[row * 4 + t];
        b[1][q] = x[(a.tile_m + row) * 4 + t];
        factor[q] = factors[4 * q + t];
        if constexpr (kTokens) factor[q].x *= weights[at.segment];
      }
      Fragment fragment;
      fragment.read(stage, lane, 0);
      multiply_half<kTiles>(fragment, b, factor, sums);
      fragment.read(stage, lane, 1);
      __syncwarp();
      if (i + kStages < steps) {
        fill_weights(slot);
        fill_x(slot, next);
        cursor.advance(a);
      }
      go_on(next);
      if constexpr (kTokens) go_on(at);
      commit_copies();
      slot = slot + 1 == kStages ? 0 : slot + 1;
      multiply_half<kTiles>(fragment, b, factor, sums + 4);
    }
    wait_copies<0>();
    __syncthreads();

    // Add up the warps that share K, in their order
    float* block_sums = reinterpret_cast<float*>(shared + plan.stages);
    const int warp_sums = a.tile_m * kWarpColumns;
#pragma unroll
    for (int q = 0; q < kTiles; ++q) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 8 * q + 2 * t + r;
        if (row >= m) continue;
        float* to = block_sums + warp * warp_sums + row * kWarpColumns;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          *reinterpret_cast<float4*>(to + first_column(lane, j)) = {sums[j][q][r], sums[j][q][2 + r],
                                                                    sums[j + 1][q][r], sums[j + 1][q][2 + r]};
        }
      }
    }
    __syncthreads();
    if (a.warps_k > 1) {
#pragma unroll 1
      for (int n = 0; n < a.warps_n; ++n) {
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < m * kWarpColumns / 4;
             i += static_cast<int>(blockDim.x)) {
          float* from = block_sums + n * a.warps_k * warp_sums + i * 4;
          float4 sum = *reinterpret_cast<float4*>(from);
#pragma unroll 2
          for (int w = 1; w < a.warps_k; ++w)
            sum = sum4(sum, *reinterpret_cast<float4*>(from + w * warp_sums));
          *reinterpret_cast<float4*>(from) = sum;
        }
      }
    }
    if (cluster > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }

    // Finish: warps of all blocks of a cluster take 128 columns of a row in turn
    const int workers = cluster * static_cast<int>(blockDim.x) / 32;
    int turn = rank * static_cast<int>(blockDim.x) / 32 + warp;
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
#pragma unroll 1
      for (int row = 0; row < m; ++row) {
        turn = turn == 0 ? workers - 1 : turn - 1;
        const int out_column = (first_tile + part) * kWarpColumns + 4 * lane;
        if (turn != workers - 1 || out_column - 4 * lane >= columns) continue;
        const int out_row = row_of(first_row + row);
        const float scale = kTokens ? 1.0f : expert_scale * (a.row_weight ? a.row_weight[out_row] : 1.0f);
        const auto total = [&](int n) {
          const float* from = block_sums + n * a.warps_k * warp_sums + row * kWarpColumns + 4 * lane;
          float4 sum{};
          if (cluster == 1) {
            sum = *reinterpret_cast<const float4*>(from);
          } else {
#pragma unroll 2
            for (int r = 0; r < cluster; ++r)
              sum = sum4(sum, load_cluster(cluster_address(shared_address(from), static_cast<uint32_t>(r))));
          }
          return float4{sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
        };
        float4 value = total(a.gated ? 2 * part : part);
        if (a.ending != Ending::activation) {
          store_four(a, static_cast<int64_t>(out_row) * a.n + out_column, columns - out_column, value);
          continue;
        }
        if (a.gated) {
          const float4 up = total(2 * part + 1);
          value = {swiglu(value.x, up.x, a.limit), swiglu(value.y, up.y, a.limit),
                   swiglu(value.z, up.z, a.limit), swiglu(value.w, up.w, a.limit)};
        } else {
          value = {square_of_positive(value.x), square_of_positive(value.y), square_of_positive(value.z),
                   square_of_positive(value.w)};
        }
        prepare_columns(a, out_row, out_column, columns - out_column, lane, value);
      }
    }
    // Nobody leaves, or writes over its sums, while others read them.
    if (cluster > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }
  }
}

}  // namespace twofour::cuda
