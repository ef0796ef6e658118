#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"
#include "kernels/multiply/sparse_launch.h"

/// Rows of activations sorted by expert: the workspace of a multiplication, the expert of a row, and the
/// numbers of a row as the 2:4 kernel reads them.

namespace twofour::cuda {

/// The workspace of a multiplication of rows by experts, as bytes from its start.
struct MultiplyWorkspace {
  int64_t halves, factors;  ///< activations as its kernel reads them
  int64_t route, sorted;    ///< rows by expert, as Route and the rows in its order
  int64_t bytes;

  MultiplyWorkspace(int64_t half_bytes, int64_t factor_count, int64_t rows, int64_t experts) {
    halves = 0;
    factors = halves + align_up(half_bytes);
    route = factors + align_up(factor_count * 4);
    sorted = route + align_up(16 + std::min(rows, experts) * 16);
    bytes = sorted + align_up(rows * 4);
  }
};

/// The number of rows that a kernel multiplies at a time, if experts have `mean` rows on average. It was
/// measured on layers of both shapes in tools/bench/README.md. Their numbers of rows vary around the mean.
constexpr int tile_of_mean(int mean) { return mean <= 6 ? 8 : mean <= 16 ? 16 : 32; }

/// The local expert for an id, or -1.
__device__ __forceinline__ int local_expert_of(const RowIds& a, int e) {
  bool known = static_cast<unsigned>(e) < static_cast<unsigned>(a.known);
  if (a.expert_map && known) {
    e = a.expert_map[e];
    if (e == -1) return -1;
    known = static_cast<unsigned>(e) < static_cast<unsigned>(a.e);
  }
  if (known) return e;
  if (a.error) *a.error = 1;
  return -1;
}

/// The local expert for a row, or -1.
__device__ __forceinline__ int local_expert(const RowIds& a, int row) {
  return local_expert_of(a, a.ids[row]);
}

/// The sum of a value over the threads of a block, up to and including this thread. The block has kWarps
/// warps. `total` becomes the sum over all threads.
template <int kWarps>
__device__ __forceinline__ int block_scan(int value, int* warp_sums, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int sum = value;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFu, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  total = 0;
  int before = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  __syncthreads();
  return before + sum;
}

/// Sorts rows by expert, in one block. `counts` [E] is in shared memory. The order of rows within an expert
/// is arbitrary, and no result depends on it.
template <int kThreads>
__device__ void sort_rows(const RowIds& a, Route& route, int32_t* sorted, int* counts) {
  constexpr int kWarps = kThreads / 32;
  __shared__ int warp_sums[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < a.e; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (int row = thread; row < a.rows; row += kThreads) {
    const int e = local_expert(a, row);
    if (e >= 0) atomicAdd(&counts[e], 1);
  }
  __syncthreads();
  int rows_before = 0, records_before = 0;
  for (int e0 = 0; e0 < a.e; e0 += kThreads) {
    const int e = e0 + thread, count = e < a.e ? counts[e] : 0;
    int rows = 0, records = 0;
    const int rows_up_to = block_scan<kWarps>(count, warp_sums, rows);
    const int records_up_to = block_scan<kWarps>(count > 0, warp_sums, records);
    const int begin = rows_before + rows_up_to - count;
    if (count > 0) {
      route.records[records_before + records_up_to - 1] = {e, begin, count, 0};
      counts[e] = begin;
    }
    rows_before += rows, records_before += records;
  }
  if (thread == 0) route.active = records_before;
  __syncthreads();
  for (int row = thread; row < a.rows; row += kThreads) {
    const int e = local_expert(a, row);
    if (e >= 0) sorted[atomicAdd(&counts[e], 1)] = row;
  }
}

/// Writes 64 k of a row. Each lane of a warp has two adjacent numbers.
__device__ __forceinline__ void prepare_step(const PreparedRows& to, int64_t row, int steps, int step,
                                             int lane, float2 x) {
  const int64_t at = row * steps + step;
  auto* halves = reinterpret_cast<uint32_t*>(to.halves + at * 8);
  const uint32_t largest =
      __reduce_max_sync(0xFFFFFFFFu, max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))));
  const auto [scale, factor] = half_scale(largest);
  halves[lane / 16 * 16 + lane % 4 * 4 + lane % 16 / 4] = half2_of(x.x * scale, x.y * scale);
  if (lane == 0) to.factors[at] = factor;
}

}  // namespace twofour::cuda
