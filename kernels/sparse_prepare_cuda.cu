#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/multiply/expert_rows.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;

/// Sums of a value over all threads up to and with this one, and over all.
__device__ int block_scan(int value, int* warp_sums, int& total) {
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

/// Sorts rows by expert, in one block. The order of rows within an expert is left to chance: no result
/// depends on it.
__device__ void route(const PrepareArgs& a, int* counts) {
  __shared__ int warp_sums[kWarps];
  const int thread = static_cast<int>(threadIdx.x), e_count = a.rows.e;
  for (int e = thread; e < e_count; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (int row = thread; row < a.rows.rows; row += kThreads) {
    const int e = local_expert(a.rows, row);
    if (e >= 0) atomicAdd(&counts[e], 1);
  }
  __syncthreads();
  int rows_before = 0, records_before = 0;
  for (int e0 = 0; e0 < e_count; e0 += kThreads) {
    const int e = e0 + thread, count = e < e_count ? counts[e] : 0;
    int rows = 0, records = 0;
    const int rows_up_to = block_scan(count, warp_sums, rows);
    const int records_up_to = block_scan(count > 0, warp_sums, records);
    const int begin = rows_before + rows_up_to - count;
    if (count > 0) {
      a.route->records[records_before + records_up_to - 1] = {e, begin, count, 0};
      counts[e] = begin;
    }
    rows_before += rows, records_before += records;
  }
  if (thread == 0) a.route->active = records_before;
  __syncthreads();
  for (int row = thread; row < a.rows.rows; row += kThreads) {
    const int e = local_expert(a.rows, row);
    if (e >= 0) a.sorted[atomicAdd(&counts[e], 1)] = row;
  }
}

/// Block 0 sorts where that is asked for; a warp of the others prepares 64 k of a row.
__global__ void __launch_bounds__(kThreads) prepare_kernel(const __grid_constant__ PrepareArgs a) {
  extern __shared__ int counts[];  // [E], later where the next row of an expert goes
  release_successor();
  if (a.route && blockIdx.x == 0) return route(a, counts);
  const int lane = static_cast<int>(threadIdx.x) % 32, steps = (a.k + 63) / 64;
  const int64_t item = (blockIdx.x - (a.route ? 1 : 0)) * int64_t{kWarps} + threadIdx.x / 32;
  if (item >= int64_t{a.rows_x} * steps) return;
  const int64_t row = item / steps;
  const int step = static_cast<int>(item % steps), k = step * 64 + 2 * lane;
  const float2 x = k < a.k ? load_pair(a.x, a.type, row * a.k + k) : float2{0, 0};
  prepare_step(a.to, row, steps, step, lane, x);
}

}  // namespace

void launch_prepare(const PrepareArgs& a, Stream stream) {
  const int64_t blocks = (a.rows_x * prepared_steps(a.k) + kWarps - 1) / kWarps + (a.route ? 1 : 0);
  launch("prepare rows", stream,
         {dim3(static_cast<unsigned>(blocks)), kThreads, a.route ? static_cast<size_t>(a.rows.e) * 4 : 0},
         prepare_kernel, a);
}

}  // namespace twofour::cuda
