#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/multiply/many_rows.h"

namespace twofour::cuda {
namespace {

/// The alignment of x and results, in bytes.
constexpr uintptr_t kManyRowsAlignment = 16;
constexpr int kThreads = 512, kWarps = kThreads / 32;

/// The largest average numbers of rows of an expert for which records of kNarrowRows, kMiddleRows and
/// kWideRows are best. With 40 rows on average, about 10 % of experts have more than 48; with 120, about 20 %
/// have more than 128.
constexpr int64_t kNarrowUpTo = 20, kMiddleUpTo = 40, kWideUpTo = 120;
/// The number of blocks that sort many rows. They are a cluster of blocks that read each other's counts. Up
/// to kFewRows rows, a single block sorts.
constexpr int kSorters = 8, kFewRows = 1024;
/// The number of rows that a lane loads at once.
constexpr int kLoads = 8;

/// The number of counters of a sorting block. Each warp with counters needs one for every expert.
constexpr int kCounters = 16384;
static_assert(2 * kMostRoutedExperts <= kCounters);
int sorting_warps(int experts) {
  int warps = kWarps;
  while (warps * experts > kCounters) warps /= 2;
  return warps;
}

/// Calls `use(row, its local expert or -1, its weight)` for the rows of a warp in their order, 32 at a time.
/// Lanes after the last row have no row.
template <bool kWeights, class Use>
__device__ __forceinline__ void for_rows_of_warp(const RouteMany& a, int begin, int end, const Use& use) {
  for (int first = begin; first < end; first += 32 * kLoads) {
    const int mine = first + static_cast<int>(threadIdx.x) % 32;
    int ids[kLoads];
    float weights[kLoads] = {};
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = mine + 32 * i;
      ids[i] = row < end ? a.rows.ids[row] : 0;
      if (kWeights && a.row_weight && row < end) weights[i] = a.row_weight[row];
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + 32 * i >= end) break;
      const int row = mine + 32 * i;
      use(row, row < end ? local_expert_of(a.rows, ids[i]) : -1, weights[i]);
    }
  }
}

/// Sorts rows by expert. Keeps their order within an expert, because the last bits of a row depend on its
/// record if an expert has several records. Each warp of the kBlocks blocks has a contiguous share of the
/// rows, and counts its rows for each expert. From the counts of all warps, it computes the position of its
/// first row for each expert.
template <int kBlocks>
__global__ void __launch_bounds__(kThreads) route_kernel(const __grid_constant__ RouteMany a, int warps) {
  extern __shared__ int counts[];  // [E] of this block's rows, [E] places of its first, [kWarps], [warps][E]
  const int thread = static_cast<int>(threadIdx.x), rank = static_cast<int>(blockIdx.x), experts = a.rows.e;
  const int warp = thread / 32, lane = thread % 32;
  int *first = counts + experts, *warp_sums = first + experts, *of_warps = warp_sums + kWarps;
  int* of_warp = of_warps + warp * experts;
  release_successor();
  for (int i = thread; i < warps * experts; i += kThreads) of_warps[i] = 0;
  __syncthreads();
  wait_for_predecessor();
  const int share = (a.rows.rows + kBlocks * warps - 1) / (kBlocks * warps);
  const int begin = warp < warps ? (rank * warps + warp) * share : a.rows.rows;
  const int end = min(begin + share, a.rows.rows);
  for_rows_of_warp<false>(a, begin, end, [&](int /*row*/, int e, float) {
    if (e >= 0) atomicAdd(&of_warp[e], 1);
  });
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
  if constexpr (kBlocks > 1) cluster_sync();
  // Do not clear these earlier, because the cluster would wait for the stores.
  for (int64_t i = rank * kThreads + thread; i < a.zero_count; i += kBlocks * kThreads) a.zeros[i] = 0;
  int rows_before = 0, records_before = 0;
  for (int e0 = 0; e0 < experts; e0 += kThreads) {
    const int e = e0 + thread;
    int count = 0, of_earlier = 0;
    if (e < experts) {
      int each[kBlocks];
#pragma unroll
      for (int r = 0; r < kBlocks; ++r)
        each[r] = kBlocks == 1
                      ? counts[e]
                      : load_cluster(cluster_address(shared_address(counts + e), static_cast<uint32_t>(r)));
#pragma unroll
      for (int r = 0; r < kBlocks; ++r) {
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
      // Divide the rows into tiles of nearly the same size, a multiple of eight.
      const int size = ((count + tiles - 1) / tiles + 7) / 8 * 8;
      for (int t = 0; t < tiles; ++t)
        a.route->records[record + t] = {e, at + t * size, min(count - t * size, size), 0};
    }
    rows_before += rows, records_before += records;
  }
  if (rank == 0 && thread == 0) a.route->active = records_before;
  __syncthreads();
  if constexpr (kBlocks > 1) arrive_at_cluster();
  for_rows_of_warp<true>(a, begin, end, [&](int row, int e, float weight) {
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
      if (a.row_weight) a.sorted_weight[at] = weight;
    }
    __syncwarp();
  });
  if constexpr (kBlocks > 1) wait_for_cluster();  // no block may end while another reads its counts
}

/// Gathers rows; each thread has 16 numbers. For the order of permuted_k, four threads exchange their
/// numbers, so that each thread writes adjacent numbers.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ GatherRows a, bool wide, uint16_t* to) {
  constexpr int kPitch = 72;  // numbers from one 64 to the next, on different banks
  __shared__ __align__(16) uint16_t places[kThreads / 4 * kPitch];
  wait_for_predecessor();
  release_successor();
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x, row = i / (a.k / 16),
                k = i % (a.k / 16) * 16;
  int64_t rows = a.rows;
  if (a.route) {
    const int active = a.route->active;
    const Route::Record last = active > 0 ? a.route->records[active - 1] : Route::Record{};
    rows = min(rows, int64_t{last.begin} + last.count);
  }
  if (row >= rows) return;
  const int64_t from = a.route ? a.sorted[row] / a.rows_per_x : row;
  float v[16];
  load_eight(a.x, a.type, from * a.k + k, wide, v);
  load_eight(a.x, a.type, from * a.k + k + 8, wide, v + 8);
  auto* out = reinterpret_cast<uint4*>(to + row * a.k + k);
  if (!a.permuted) {
#pragma unroll
    for (int j = 0; j < 16; j += 8)
      out[j / 8] = {bfloat2_of(v[j], v[j + 1]), bfloat2_of(v[j + 2], v[j + 3]),
                    bfloat2_of(v[j + 4], v[j + 5]), bfloat2_of(v[j + 6], v[j + 7])};
    return;
  }
  uint16_t* shared = places + threadIdx.x / 4 * kPitch;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    // Numbers at a distance of four become adjacent.
    if (j % 8 < 4) *reinterpret_cast<uint32_t*>(shared + permuted_k(k % 64 + j)) = bfloat2_of(v[j], v[j + 4]);
  }
  __syncwarp();
  const auto* mine = reinterpret_cast<const uint4*>(shared + k % 64);
  out[0] = mine[0], out[1] = mine[1];
}

}  // namespace

int rows_of_record(int64_t rows, int64_t experts, int64_t columns, bool pairs) {
  constexpr int64_t kColumns = 512;  // of a block; fewer active blocks would cost more than this saves
  const int64_t served = std::min(rows, experts);
  if (pairs && rows > kWideUpTo * served) return kMostRows;
  if (rows > kMiddleUpTo * served || served * (columns / kColumns) < multiprocessors()) return kWideRows;
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
                        bool pairs, void* workspace, Stream stream) {
  const ManyRowsWorkspace at(rows.rows, experts, 0);
  auto* base = static_cast<char*>(workspace);
  auto* route = reinterpret_cast<Route*>(base + at.route);
  auto* sorted = reinterpret_cast<int32_t*>(base + at.sorted);
  auto* weights = reinterpret_cast<float*>(base + at.weights);
  auto* ready = reinterpret_cast<int32_t*>(base + at.ready);
  ManyRows product{};
  product.most = rows_of_record(rows.rows, experts, columns, pairs);
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

void gather_rows(const ExpertRows& rows, void* workspace, ManyRows& product, Stream stream) {
  auto* x = reinterpret_cast<uint16_t*>(static_cast<char*>(workspace) +
                                        ManyRowsWorkspace(rows.rows, product.e, 0).x);
  const bool sorts = product.most == kMostRows;
  const int64_t count = sorts ? rows.rows : rows.rows / rows.rows_per_x;
  launch_gather({rows.x, rows.x_type, count, product.k, true, sorts ? product.route : nullptr, product.sorted,
                 product.rows_per_x},
                x, stream);
  product.x = x, product.x_is_sorted = sorts, product.x_rows = count;
}

void launch_route_many(const RouteMany& a, Stream stream) {
  const int warps = sorting_warps(a.rows.e), blocks = a.rows.rows <= kFewRows ? 1 : kSorters;
  const Launch how{dim3(static_cast<unsigned>(blocks)), kThreads,
                   static_cast<size_t>((2 + warps) * a.rows.e + kWarps) * 4, blocks, true};
  launch("sort rows", stream, how, blocks == 1 ? route_kernel<1> : route_kernel<kSorters>, a, warps);
}

void launch_gather(const GatherRows& a, uint16_t* to, Stream stream) {
  const bool wide = reinterpret_cast<uintptr_t>(a.x) % 16 == 0;
  launch("rows of x", stream, {blocks_for(a.rows * (a.k / 16), kThreads), kThreads, 0, 1, true},
         gather_kernel, a, wide, to);
}

}  // namespace twofour::cuda
