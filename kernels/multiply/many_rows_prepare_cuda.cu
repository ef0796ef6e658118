#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/multiply/many_rows.h"

namespace twofour::cuda {
namespace {

/// Of x and results, in bytes.
constexpr uintptr_t kManyRowsAlignment = 16;
constexpr int kThreads = 512, kWarps = kThreads / 32;
/// Warps of a block that multiply, and sums that they have: of 256 columns and kMostRows rows, or of more
/// columns and fewer rows.
constexpr int kBlockWarps = 16, kBlockSums = 256 * kMostRows;
static_assert(512 * kMiddleRows <= kBlockSums);
/// Rows an expert on average up to which records of kNarrowRows, of kMiddleRows are the better ones. Of 40
/// rows on average some 10 % of experts have more than 48.
constexpr int64_t kNarrowUpTo = 20, kMiddleUpTo = 40;
/// Blocks that sort rows: a cluster, which reads each other's counts.
constexpr int kSorters = 8;

/// Counters of a block that sorts, and warps that have some: each needs one for each expert.
constexpr int kCounters = 16384;
static_assert(2 * kMostRoutedExperts <= kCounters);
int sorting_warps(int experts) {
  int warps = kWarps;
  while (warps * experts > kCounters) warps /= 2;
  return warps;
}

/// Sorts rows by expert, those of an expert in their order: of an expert that has several records it makes a
/// difference in the last bits which one a row is in. Each warp of the cluster has a share of neighbouring
/// rows. It counts those of each expert; from the counts of all it finds where its first row of an expert
/// goes.
__global__ void __cluster_dims__(kSorters, 1, 1) __launch_bounds__(kThreads)
    route_kernel(const __grid_constant__ RouteMany a, int warps) {
  extern __shared__ int counts[];  // [E] of this block's rows, [E] where its first goes, [kWarps], [warps][E]
  const int thread = static_cast<int>(threadIdx.x), rank = static_cast<int>(blockIdx.x), experts = a.rows.e;
  const int warp = thread / 32, lane = thread % 32;
  int *first = counts + experts, *warp_sums = first + experts, *of_warps = warp_sums + kWarps;
  int* of_warp = of_warps + warp * experts;
  release_successor();
  for (int i = thread; i < warps * experts; i += kThreads) of_warps[i] = 0;
  __syncthreads();
  wait_for_predecessor();
  for (int64_t i = rank * kThreads + thread; i < a.zero_count; i += kSorters * kThreads) a.zeros[i] = 0;
  const int share = (a.rows.rows + kSorters * warps - 1) / (kSorters * warps);
  const int begin = warp < warps ? (rank * warps + warp) * share : a.rows.rows;
  const int end = min(begin + share, a.rows.rows);
#pragma unroll 4
  for (int row = begin + lane; row < end; row += 32) {
    const int e = local_expert(a.rows, row);
    if (e >= 0) atomicAdd(&of_warp[e], 1);
  }
  __syncthreads();
  for (int e = thread; e < experts; e += kThreads) {
    int sum = 0;
#pragma unroll 4
    for (int w = 0; w < warps; ++w) {
      const int count = of_warps[w * experts + e];
      of_warps[w * experts + e] = sum;
      sum += count;
    }
    counts[e] = sum;
  }
  cluster_sync();
  int rows_before = 0, records_before = 0;
  for (int e0 = 0; e0 < experts; e0 += kThreads) {
    const int e = e0 + thread;
    int count = 0, of_earlier = 0;
    if (e < experts) {
      const uint32_t mine = shared_address(counts + e);
      int each[kSorters];
#pragma unroll
      for (int r = 0; r < kSorters; ++r)
        each[r] = load_cluster(cluster_address(mine, static_cast<uint32_t>(r)));
#pragma unroll
      for (int r = 0; r < kSorters; ++r) {
        if (r < rank) of_earlier += each[r];
        count += each[r];
      }
    }
    const int tiles = (count + a.most - 1) / a.most;
    int rows = 0, records = 0;
    const int at = rows_before + block_scan<kWarps>(count, warp_sums, rows) - count;
    const int record = records_before + block_scan<kWarps>(tiles, warp_sums, records) - tiles;
    if (e < experts) first[e] = at + of_earlier;
    if (rank == 0 && count > 0) {
      // Tiles of nearly the same size, in eights
      const int size = ((count + tiles - 1) / tiles + 7) / 8 * 8;
      for (int t = 0; t < tiles; ++t)
        a.route->records[record + t] = {e, at + t * size, min(count - t * size, size), 0};
    }
    rows_before += rows, records_before += records;
  }
  if (rank == 0 && thread == 0) a.route->active = records_before;
  __syncthreads();
  for (int row = begin + lane; __any_sync(~0u, row < end); row += 32) {
    const int e = row < end ? local_expert(a.rows, row) : -1;
    const uint32_t same = __match_any_sync(~0u, e);
    const int before = __popc(same & ((1u << lane) - 1)), leader = __ffs(static_cast<int>(same)) - 1;
    int at = 0;
    if (e >= 0 && lane == leader) {
      at = of_warp[e];
      of_warp[e] = at + __popc(same);
      at += first[e];
    }
    at = __shfl_sync(~0u, at, leader) + before;
    if (e >= 0) {
      a.sorted[at] = row;
      if (a.row_weight) a.sorted_weight[at] = a.row_weight[row];
    }
    __syncwarp();
  }
  cluster_sync();  // no block ends while another reads its counts
}

/// Eight numbers of a thread to BF16.
__global__ void __launch_bounds__(kThreads)
    round_kernel(const void* x, Float type, int64_t eights, uint4* to) {
  wait_for_predecessor();
  release_successor();
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= eights) return;
  float v[8];
  load_eight(x, type, i * 8, false, v);
  to[i] = {bfloat2_of(v[0], v[1]), bfloat2_of(v[2], v[3]), bfloat2_of(v[4], v[5]), bfloat2_of(v[6], v[7])};
}

}  // namespace

int rows_of_record(int64_t rows, int64_t experts, int64_t columns) {
  constexpr int64_t kColumns = 512;  // of a block: fewer blocks at work would cost more than it spares
  const int64_t served = std::min(rows, experts);
  if (rows > kMiddleUpTo * served || served * (columns / kColumns) < multiprocessors()) return kMostRows;
  return rows <= kNarrowUpTo * served ? kNarrowRows : kMiddleRows;
}

int64_t route_many_bytes(int64_t rows, int64_t experts) {
  return 16 + (std::min(rows, experts) + rows / kNarrowRows) * 16;
}

ManyRowsParts::ManyRowsParts() {
  const int64_t blocks = multiprocessors();
  sum_bytes = blocks * kBlockSums * 4, ready = blocks * kBlockWarps;
}

ManyRowsWorkspace::ManyRowsWorkspace(int64_t rows, int64_t experts, int64_t x_numbers) {
  const ManyRowsParts shared;
  route = 0;
  sorted = route + align_up(route_many_bytes(rows, experts));
  weights = sorted + align_up(rows * 4);
  ready = weights + align_up(rows * 4);
  parts = ready + align_up(shared.ready * 4);
  x = parts + align_up(shared.sum_bytes);
  bytes = x + align_up(x_numbers * 2);
}

bool are_many_rows(const ExpertRows& rows, int64_t experts, int64_t crossing) {
  const bool aligned =
      (reinterpret_cast<uintptr_t>(rows.x) | reinterpret_cast<uintptr_t>(rows.out)) % kManyRowsAlignment == 0;
  return !rows.distinct && rows.x_type == Float::bf16 && aligned &&
         rows.rows >= crossing * std::min(rows.rows, experts) && experts <= kMostRoutedExperts &&
         has_many_rows();
}

ManyRows sort_many_rows(const RowIds& ids, const ExpertRows& rows, int64_t experts, int64_t columns,
                        void* workspace, Stream stream) {
  const ManyRowsWorkspace at(rows.rows, experts, 0);
  auto* base = static_cast<char*>(workspace);
  auto* route = reinterpret_cast<Route*>(base + at.route);
  auto* sorted = reinterpret_cast<int32_t*>(base + at.sorted);
  auto* weights = reinterpret_cast<float*>(base + at.weights);
  auto* ready = reinterpret_cast<int32_t*>(base + at.ready);
  ManyRows product{};
  product.most = rows_of_record(rows.rows, experts, columns);
  launch_route_many(
      {ids, product.most, rows.row_weight, route, sorted, weights, ready, ManyRowsParts().ready}, stream);
  product.parts = reinterpret_cast<float*>(base + at.parts), product.parts_ready = ready;
  product.route = route, product.sorted = sorted;
  product.sorted_weight = rows.row_weight ? weights : nullptr;
  product.x = static_cast<const uint16_t*>(rows.x);
  product.rows_per_x = static_cast<int32_t>(rows.rows_per_x);
  product.e = static_cast<int32_t>(experts);
  product.out = rows.out, product.out_type = rows.out_type;
  return product;
}

void launch_route_many(const RouteMany& a, Stream stream) {
  const int warps = sorting_warps(a.rows.e);
  const Launch how{dim3(kSorters), kThreads, static_cast<size_t>((2 + warps) * a.rows.e + kWarps) * 4, 1,
                   true};
  launch("sort rows", stream, how, route_kernel, a, warps);
}

void launch_round(const void* x, Float type, int64_t count, uint16_t* to, Stream stream) {
  const int64_t eights = count / 8;
  launch("round rows", stream, {blocks_for(eights, kThreads), kThreads, 0, 1, true}, round_kernel, x, type,
         eights, reinterpret_cast<uint4*>(to));
}

}  // namespace twofour::cuda
