#pragma once
#include "kernels/multiply/sparse_block.cuh"

/// The kernel. A block, or a cluster of blocks, multiplies some columns of one expert by all rows of the
/// expert.
///   grid.x  blocks of a cluster, which share K
///   grid.y  columns, 128 for each of warps_n; if gated, 128 of gate and 128 of up for every two of warps_n
///   grid.z  a record of the route; a row if there is no route; a token with Epilogue::tokens
/// Warp w multiplies K steps u, u + U, ... with u = rank * warps_k + w % warps_k and U = cluster * warps_k.
/// Each warp copies its own data ahead. Blocks synchronize only to reduce sums.

namespace twofour::cuda {

/// Multiplies kTiles times 8 rows of x at a time. kAligned means that 16 columns and 64 k always exist and
/// can be copied at once.
template <class Layout, int kTiles, bool kAligned, RowSource kSource>
__global__ void __launch_bounds__(kMaxThreads, kTiles == 1 ? 2 : 1)
    sparse_kernel(const __grid_constant__ SparseArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr bool kTokens = kSource == RowSource::tokens, kShareScales = kSource != RowSource::prepared;
  const SharedPlan& plan = a.shared;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, t = lane % 4;
  const int warp_n = warp >> a.warps_k_log2, warp_k = warp & (a.warps_k - 1);
  const int cluster = a.cluster, rank = static_cast<int>(blockIdx.x);
  const int k_steps = a.k_steps;

  // Rows
  int* list = reinterpret_cast<int*>(shared + plan.list);
  int* experts = reinterpret_cast<int*>(shared + plan.experts);
  float* weights = reinterpret_cast<float*>(shared + plan.weights);
  int expert = 0, count = 1, segments = 1;
  const int* rows = nullptr;  // null if grid.z is the only row
  bool waited = false;
  if (a.route_from_predecessor) {
    wait_for_predecessor();
    release_successor();
    waited = true;
  }

  // Columns
  const int columns = a.gated ? a.n / 2 : a.n, parts = parts_of(a);
  const int first_tile = static_cast<int>(blockIdx.y) * parts;
  const int tile = first_tile + (a.gated ? warp_n / 2 : warp_n);
  const int in_half = tile * kWarpColumns + lane % 8 * 16;
  const int present = min(max(columns - in_half, 0), 16);
  const int column = present == 0 ? 0 : in_half + (a.gated && warp_n % 2 == 1 ? columns : 0);
  const LaneCursor begin(a, column, lane / 8);

  if constexpr (kTokens) {
    segments = find_segments(a, list, experts, reinterpret_cast<int*>(shared + plan.state));
  } else if (a.route) {
    const Route::Record record = a.route->records[blockIdx.z];
    if (static_cast<int>(blockIdx.z) >= a.route->active) return;
    rows = a.sorted + record.begin, count = record.count, expert = record.expert;
  } else {
    expert = local_expert(a.rows, static_cast<int>(blockIdx.z));
    if (expert < 0) {
      wait_for_predecessor();  // this kernel must not end before its predecessors
      return;
    }
  }
  const float expert_scale = kTokens ? 1.0f : a.global_scale[expert];

  // Each block has a barrier for the sums that other blocks of the cluster send.
  const uint32_t barrier = shared_address(shared + plan.state + 8);
  if (cluster > 1) {
    if (threadIdx.x == 0) begin_barrier(barrier);
    arrive_at_cluster();
  }

  // Steps
  const int stride = cluster * a.warps_k, first_step = rank * a.warps_k + warp_k;
  int steps = a.least_steps + (first_step < a.one_more ? 1 : 0);
  if constexpr (kTokens) steps = (segments * k_steps - first_step + stride - 1) / stride;
  if (tile * kWarpColumns >= columns) steps = 0;
  uint8_t* scales = shared + plan.scales + warp * kScaleBytes;
  uint8_t* stages = shared + plan.stages + warp * kStages * plan.stage;
  const uint32_t stages_at = shared_address(stages);

  const auto row_of = [&](int row) { return rows ? rows[row] : static_cast<int>(blockIdx.z); };
  const auto x_row_of = [&](int row) {
    return a.rows_per_x == 1 ? row_of(row)
                             : static_cast<int>(static_cast<uint64_t>(row_of(row)) * a.x_multiplier >> 36);
  };
#pragma unroll 1
  for (int first_row = 0; first_row < max(count, 1); first_row += a.tile_m) {
    const int m = min(count - first_row, a.tile_m);

    // The weights of the next step. They are addressed by pointers if one expert has all of K.
    StepCursor next{0, 0};
    next.advance(first_step, k_steps);
    LaneCursor cursor = begin;
    if constexpr (!kTokens) cursor.move(a, expert, first_step);
    const auto fill_weights = [&](int slot) {
      const uint32_t to = stages_at + slot * plan.stage;
      if constexpr (!kAligned) {
        copy_bytes<Layout>(a, stages + slot * plan.stage, lane, kTokens ? experts[next.segment] : expert,
                           next.step, column, present);
      } else if constexpr (kTokens) {
        LaneCursor at = begin;
        at.move(a, experts[next.segment], next.step);
        at.copy(a, to, lane);
      } else {
        cursor.copy(a, to, lane);
      }
    };
    const auto go_on = [&](StepCursor& at) {
      if constexpr (kTokens || !kAligned) at.advance(stride, k_steps);
    };

    // Copy ahead. Weights come first, because they depend on no other kernel.
    StepCursor at = next, next_x = next;
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) {
      if (s < steps) fill_weights(s);
      if constexpr (kSource == RowSource::raw) commit_copies();
      cursor.advance(a);
      go_on(next);
    }

    if constexpr (kTokens) weigh_segments(a, list, experts, segments, weights);

    // The rows of x of the next step, 8 lanes for each, and a factor.
    constexpr int kCopies = 2 * kTiles;
    const uint4* x_from[kCopies];
    const float* factor_from = a.x.factors + first_step;
    if constexpr (kSource == RowSource::prepared) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int row = 4 * i + lane / 8, x_row = row >= m ? 0 : x_row_of(first_row + row);
        x_from[i] = a.x.halves + (static_cast<int64_t>(x_row) * k_steps + first_step) * 8 + lane % 8;
      }
      if (lane < m) factor_from += static_cast<int64_t>(x_row_of(first_row + lane)) * k_steps;
    }
    const auto fill_x = [&](int slot, const StepCursor& at) {
      const uint32_t to = stages_at + slot * plan.stage + kStageBytes;
      if constexpr (kTokens) {
        const int64_t step = static_cast<int64_t>(list[at.segment]) * k_steps + at.step;
        if (lane < 8) copy_async16(to + lane * 16, a.x.halves + step * 8 + lane);
        if (lane == 0) copy_async4(to + kStepK * 2, a.x.factors + step);
      } else if constexpr (kSource == RowSource::prepared) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          const int row = 4 * i + lane / 8;  // [half of k][row][t], see mma_sparse, b
          const int place = (lane % 8 / 4 * a.tile_m + row) * 4 + lane % 4;
          if (row < m) copy_async16(to + place * 16, x_from[i]);
          x_from[i] += stride * 8;
        }
        if (lane < m) copy_async4(to + a.tile_m * (kStepK * 2) + lane * 4, factor_from);
        factor_from += stride;
      }
    };
    if (!waited) {
      wait_for_predecessor();
      release_successor();
      waited = true;
    }
    if constexpr (kSource == RowSource::raw) {
      convert_row(a, shared, x_row_of(first_row), rank);
      __syncthreads();
    } else {
#pragma unroll 1
      for (int s = 0; s < kStages; ++s) {
        if (s < steps) fill_x(s, next_x);
        go_on(next_x);
        commit_copies();
      }
    }

    // Multiply
    float sums[8][kTiles][4] = {};
    int slot = 0;
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      // Unless x is raw, the first group of copies has the weights of all stages and the x of the first
      // stage.
      wait_copies<kStages - 1>();
      __syncwarp();
      const uint8_t* stage = stages + slot * plan.stage;
      if constexpr (kShareScales) convert_scales(stage, scales, lane);
      const auto* x = reinterpret_cast<const uint4*>(stage + kStageBytes);
      uint4 b[2][kTiles];
      float2 factor[kTiles];
      if constexpr (kSource == RowSource::raw) {
        const int mine = i * a.warps_k + warp_k;
        x = reinterpret_cast<const uint4*>(shared + plan.x) + mine * 8;
        b[0][0] = x[t];
        b[1][0] = x[4 + t];
        factor[0].x = reinterpret_cast<const float*>(shared + plan.x_factors)[mine];
        factor[0].y = factor[0].x;
      } else {
        const auto* factors = reinterpret_cast<const float2*>(x + a.tile_m * 8);
#pragma unroll
        for (int q = 0; q < kTiles; ++q) {
          const int row = min(8 * q + g, m - 1);
          b[0][q] = x[row * 4 + t];
          b[1][q] = x[(a.tile_m + row) * 4 + t];
          factor[q] = factors[4 * q + t];
          if constexpr (kTokens) factor[q].x *= weights[at.segment];
        }
      }
      Fragment fragment;
      fragment.read_codes(stage, lane, 0);
      if constexpr (kShareScales) {
        __syncwarp();
        fragment.read_scales(scales, lane, 0);
      } else {
        fragment.convert_scales(stage, lane, 0);
      }
      multiply_half<kTiles>(fragment, b, factor, sums);
      fragment.read_codes(stage, lane, 1);
      if constexpr (kShareScales) {
        fragment.read_scales(scales, lane, 1);
      } else {
        fragment.convert_scales(stage, lane, 1);
      }
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
    __syncwarp();

    // Store the warp's sums over its stages.
    const int warp_sums = kStages * plan.stage / 4;
    float* block_sums = reinterpret_cast<float*>(shared + plan.stages);
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

    // Reduce the sums of warps that share K, in their order. In a cluster, rank i finishes sums i, i +
    // cluster, ... of 128 columns of a row, and all other blocks send their sums to it.
    const int items = parts * m, kinds = a.gated ? 2 : 1, item_bytes = cluster * kinds * kWarpColumns * 4;
    const auto block_sum = [&](int n, int row) {
      const float* from = block_sums + n * a.warps_k * warp_sums + row * kWarpColumns + 4 * lane;
      float4 sum{};
#pragma unroll 4
      for (int w = 0; w < a.warps_k; ++w)
        sum = sum4(sum, *reinterpret_cast<const float4*>(from + w * warp_sums));
      return sum;
    };
    const int warps = static_cast<int>(blockDim.x / 32);
    if (cluster > 1) {
      const int here = (items - rank + cluster - 1) / cluster;
      if (first_row == 0) wait_for_cluster();
      if (threadIdx.x == 0 && here > 0) expect_bytes(barrier, here * item_bytes);
#pragma unroll 1
      for (int i = warp; i < items * kinds; i += warps) {
        const int item = i / kinds, kind = i % kinds, part = item / m;
        const int at = item / cluster * item_bytes + (rank * kinds + kind) * (kWarpColumns * 4) + lane * 16;
        const auto to = static_cast<uint32_t>(item % cluster);
        store_cluster(cluster_address(shared_address(shared + plan.received + at), to),
                      block_sum(part * kinds + kind, item - part * m), cluster_address(barrier, to));
      }
      if (here > 0) wait_barrier(barrier, first_row / a.tile_m & 1);
    }

    // Finish
#pragma unroll 1
    for (int i = cluster > 1 ? warp * cluster + rank : warp; i < items; i += warps * cluster) {
      const int part = i / m, row = i - part * m;
      const int out_column = (first_tile + part) * kWarpColumns + 4 * lane;
      if (out_column - 4 * lane >= columns) continue;
      const int out_row = row_of(first_row + row);
      const float scale = kTokens ? 1.0f : expert_scale * (a.row_weight ? a.row_weight[out_row] : 1.0f);
      const auto total = [&](int kind) {
        float4 sum{};
        if (cluster == 1) {
          sum = block_sum(part * kinds + kind, row);
        } else {
          const uint8_t* from = shared + plan.received + i / cluster * item_bytes + kind * (kWarpColumns * 4);
#pragma unroll 4
          for (int r = 0; r < cluster; ++r)
            sum = sum4(sum,
                       *reinterpret_cast<const float4*>(from + r * kinds * (kWarpColumns * 4) + lane * 16));
        }
        return float4{sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
      };
      float4 value = total(0);
      if (a.epilogue != Epilogue::activation) {
        store_four(a, static_cast<int64_t>(out_row) * a.n + out_column, columns - out_column, value);
        continue;
      }
      if (a.gated) {
        const float4 up = total(1);
        value = {swiglu(value.x, up.x, a.limit), swiglu(value.y, up.y, a.limit),
                 swiglu(value.z, up.z, a.limit), swiglu(value.w, up.w, a.limit)};
      } else {
        value = {square_of_positive(value.x), square_of_positive(value.y), square_of_positive(value.z),
                 square_of_positive(value.w)};
      }
      prepare_columns(a, out_row, out_column, columns - out_column, lane, value);
    }
    // Wait before the next rows. No warp may overwrite sums that another warp still reads.
    if (first_row + a.tile_m < count) {
      cluster > 1 ? cluster_sync() : __syncthreads();
    }
  }
}

}  // namespace twofour::cuda
