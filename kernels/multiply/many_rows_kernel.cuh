#pragma once
#include "kernels/device/warpgroup.cuh"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/multiply/many_rows_width.cuh"
#include "kernels/numbers/swiglu.cuh"

/// The many-row kernel: a block multiplies 256 columns of an expert with up to kMostRows of its rows, and
/// goes on to the next such item. Warpgroup 0 copies ahead into a ring of stages, weights and rows of x; the
/// others decode the weights of 128 columns each into registers and multiply.

namespace twofour::cuda {

inline constexpr int kManyRowsThreads = 3 * kWarpgroup;
inline constexpr int kCopyWarps = 4;
/// Registers of a thread: together those that the block starts with, 168 each, or it would wait for more for
/// ever.
inline constexpr int kCopyRegisters = 72, kMultiplyRegisters = 216;
inline constexpr int kRowBytes = 128;  ///< of 64 k of a row of x

template <class Tiles>
struct ManyRowsArgs {
  Tiles weights;
  ManyRows rows;
  int32_t steps, column_tiles;
};

/// Offsets in shared memory.
template <class Tiles>
struct ManyRowsShared {
  static constexpr int kX = 0;  ///< of a stage: for each 64 k kMostRows rows
  static constexpr int kWeights = Tiles::kStepK / 64 * kMostRows * kRowBytes;
  static constexpr int kStage = (kWeights + Tiles::kBytes + 1023) / 1024 * 1024;
  static constexpr int kLists = 128;               ///< of the head, after the barriers: rows and factors
  static constexpr int kRows = kLists + 2 * 1024;  ///< of x, of each warp that copies
  static constexpr int kHead = kRows + kCopyWarps * kMostRows * 4;
  static constexpr int kStages = ((227 << 10) - 1024 - kHead) / kStage / kCopyWarps * kCopyWarps;
  static constexpr int kBytes = kStages * kStage + kHead + 1024;  ///< to begin on a multiple of 1024
  static_assert(16 * kStages <= kLists && kStages > 0, "barriers before the lists");
};

/// Where a warp that copies is: a step of an item.
struct CopyPlace {
  int item, step;
  /// The next item of the block, and the next, until the step is one of its.
  __device__ __forceinline__ void normalize(int steps) {
    for (; step >= steps; step -= steps) item += static_cast<int>(gridDim.x);
  }
};

/// Copies steps ahead of the warpgroups that multiply, each warp every fourth, into stages of its own. `rows`
/// [kMostRows] is the warp's: where rows of x of its item begin, in units of 16 bytes.
template <class Tiles>
__device__ __forceinline__ void copy_ahead(const ManyRowsArgs<Tiles>& a, uint8_t* stages, uint32_t full,
                                           uint32_t empty, uint32_t* rows) {
  using Shared = ManyRowsShared<Tiles>;
  constexpr int kOwn = Shared::kStages / kCopyWarps, kUnderWay = kOwn - 1;  // stages; other steps under way
  const ManyRows& r = a.rows;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int items = r.route->active * a.column_tiles, chunk = lane % 8, first_row = lane / 8;
  const uint32_t stages_at = shared_address(stages), row_units = static_cast<uint32_t>(r.k) / 8;
  static_assert(Tiles::kStepK == 64, "a row of x in a stage is 128 bytes");
  const uint32_t to_even = static_cast<uint32_t>(first_row * kRowBytes + (chunk ^ first_row) * 16),
                 to_odd = to_even ^ 64;
  typename Tiles::Copier copier;

  const auto record_of = [&](int item) {
    return item < items ? r.route->records[item / a.column_tiles] : Route::Record{};
  };
  int sources[kMostRows / 32] = {};  // of rows lane, lane + 32, ...
  const auto find_sources = [&](const Route::Record& record) {
#pragma unroll
    for (int i = 0; i < kMostRows / 32; ++i) {
      const int row = lane + 32 * i;
      if (row < record.count) sources[i] = r.x_is_sorted ? record.begin + row : r.sorted[record.begin + row];
    }
  };
  int slot = warp, done = warp, under_way = 0;
  uint32_t parity = 1;
  const auto finish = [&] {
    Tiles::finish(stages + done * Shared::kStage + Shared::kWeights, lane, r.gated);
    fence_for_wgmma();
    __syncwarp();
    if (lane == 0) arrive(full + done * 8);
    done = done + kCopyWarps < Shared::kStages ? done + kCopyWarps : warp;
  };
  CopyPlace at{static_cast<int>(blockIdx.x), warp};
  at.normalize(a.steps);
  Route::Record record = record_of(at.item);
  find_sources(record);
#pragma unroll 1
  while (at.item < items) {
    const int count = record.count;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kMostRows / 32; ++i) {
      int row = sources[i];
      if (!r.x_is_sorted && r.rows_per_x > 1)
        row = static_cast<int>(static_cast<uint64_t>(row) * r.x_multiplier >> 36);
      rows[lane + 32 * i] = static_cast<uint32_t>(row) * row_units;
    }
    __syncwarp();
    copier.start(a.weights, r, record.expert, at.item % a.column_tiles, at.step, lane);
    CopyPlace next{at.item + static_cast<int>(gridDim.x), 0};
    next.step = at.step + (a.steps - at.step + kCopyWarps - 1) / kCopyWarps * kCopyWarps - a.steps;
    next.normalize(a.steps);
    record = record_of(next.item);
    bool is_first = true;
#pragma unroll 1
    for (int step = at.step; step < a.steps; step += kCopyWarps) {
      // Where the stage is still in use, what is under way is finished first
      const bool is_free = __shfl_sync(0xFFFFFFFFu, is_phase_over(empty + slot * 8, parity), 0);
      if (!is_free && under_way > 0) {
        wait_copies<0>();
        for (; under_way > 0; --under_way) finish();
      }
      wait_phase(empty + slot * 8, parity);
      const uint32_t stage = stages_at + slot * Shared::kStage;
      copier.copy(a.weights, stage + Shared::kWeights, kCopyWarps, lane, r.gated);
      const auto* x = reinterpret_cast<const uint8_t*>(r.x + step * Tiles::kStepK + chunk * 8);
      const uint32_t even = stage + to_even, odd = stage + to_odd;
#pragma unroll 1
      for (int i = 0; i < count; i += 32) {
        uint32_t units[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) units[j] = rows[i + 4 * j + first_row];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (i + 4 * j + first_row < count)
            copy_async16((j % 2 ? odd : even) + static_cast<uint32_t>((i + 4 * j) * kRowBytes),
                         x + uint64_t{units[j]} * 16);
        }
      }
      commit_copies();
      if (is_first) find_sources(record);
      is_first = false;
      slot += kCopyWarps;
      if (slot >= Shared::kStages) slot = warp, parity ^= 1;
      if (++under_way > kUnderWay) {
        wait_copies<kUnderWay>();
        finish();
        --under_way;
      }
    }
    at = next;
  }
  wait_copies<0>();
  for (; under_way > 0; --under_way) finish();
}

/// Where a warpgroup that multiplies is in the ring.
struct RingPlace {
  int slot = 0;
  uint32_t parity = 0;
};

/// What becomes of an item's sums.
struct StoreSums {
  const ManyRows& r;
  const int* ids;        ///< rows of `out`
  const float* weights;  ///< factors
  int count, first;      ///< rows of the item, its first column

  __device__ __forceinline__ float finish(float v, float up, float factor) const {
    v *= factor;
    return !r.active ? v : r.gated ? swiglu(v, up * factor, r.limit) : square_of_positive(v);
  }

  /// Four neighbouring columns.
  __device__ __forceinline__ void operator()(int row, int column, float4 v, float4 up) const {
    const int columns = r.gated ? r.n / 2 : r.n;
    column += first;
    if (row >= count || column >= columns) return;
    const float factor = weights[row];
    v = {finish(v.x, up.x, factor), finish(v.y, up.y, factor), finish(v.z, up.z, factor),
         finish(v.w, up.w, factor)};
    const int64_t at = static_cast<int64_t>(ids[row]) * columns + column;
    if (r.out_type == Float::f32) {
      *reinterpret_cast<float4*>(static_cast<float*>(r.out) + at) = v;
    } else {
      const bool bf16 = r.out_type == Float::bf16;
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(r.out) + at) = {
          bf16 ? bfloat2_of(v.x, v.y) : half2_of(v.x, v.y), bf16 ? bfloat2_of(v.z, v.w) : half2_of(v.z, v.w)};
    }
  }

  /// Two neighbours in the order of permuted_k, of which `column` is the place of the first; BF16.
  __device__ __forceinline__ void operator()(int row, int column, float2 v, float2 up) const {
    const int columns = r.gated ? r.n / 2 : r.n;
    column += first;
    if (row >= count || column >= columns) return;
    const float factor = weights[row];
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(r.out) + static_cast<int64_t>(ids[row]) * columns +
                                 column) = bfloat2_of(finish(v.x, up.x, factor), finish(v.y, up.y, factor));
  }
};

/// One item: kRows rows of x, of which `record` has `count`.
template <int kRows, class Tiles>
__device__ __forceinline__ void multiply_item(const ManyRowsArgs<Tiles>& a, const Route::Record& record,
                                              int column_tile, int warpgroup, uint8_t* stages, uint32_t full,
                                              uint32_t empty, uint8_t* lists, RingPlace& ring) {
  using Shared = ManyRowsShared<Tiles>;
  const ManyRows& r = a.rows;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int mine = static_cast<int>(threadIdx.x % kWarpgroup);
  const typename Tiles::Reader read(warpgroup, warp, lane, r.gated);
  // Of the rows, for the end
  int row_id = 0;
  float row_weight = 1;
  if (mine < record.count) {
    row_id = r.sorted[record.begin + mine];
    if (r.sorted_weight) row_weight = r.sorted_weight[record.begin + mine];
  }
  float scale = r.global_scale[record.expert] * Tiles::kDecodedFactor;
  if (r.x_factor) scale *= *r.x_factor;

  float sums[2][kRows / 2];
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) sums[0][i] = sums[1][i] = 0;
  const auto weights_at = [&] { return stages + ring.slot * Shared::kStage + Shared::kWeights; };
  typename Tiles::Raw raw;
  wait_phase(full + ring.slot * 8, ring.parity);
  raw.load(read, weights_at());
#pragma unroll 1
  for (int step = 0; step < a.steps; ++step) {
    const int slot = ring.slot;
    if (++ring.slot == Shared::kStages) ring.slot = 0, ring.parity ^= 1;
    Tiles::template multiply<kRows>(raw, shared_address(stages + slot * Shared::kStage), sums, [&] {
      if (step + 1 == a.steps) return;
      wait_phase(full + ring.slot * 8, ring.parity);
      raw.load(read, weights_at());
    });
    if (lane == 0) arrive(empty + slot * 8);
  }

  // Finish
  auto* ids = reinterpret_cast<int*>(lists);
  auto* weights = reinterpret_cast<float*>(lists) + kMostRows;
  sync_warpgroup(1 + warpgroup);  // the item before is stored
  ids[mine] = r.active ? record.begin + mine : row_id;
  weights[mine] = row_weight * scale;
  sync_warpgroup(1 + warpgroup);
  const StoreSums store{r, ids, weights, record.count, (column_tile * 2 + warpgroup) * (r.gated ? 64 : 128)};
  Tiles::template give_sums<kRows>(sums, r.gated, warp, lane, store);
}

template <class Tiles>
__global__ void __launch_bounds__(kManyRowsThreads, 1)
    many_rows_kernel(const __grid_constant__ ManyRowsArgs<Tiles> a) {
  using Shared = ManyRowsShared<Tiles>;
  extern __shared__ uint8_t unaligned[];
  uint8_t* stages = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  uint8_t* head = stages + Shared::kStages * Shared::kStage;
  const uint32_t full = shared_address(head), empty = full + Shared::kStages * 8;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shared::kStages; ++s) {
      init_barrier(full + s * 8, 1);   // by the warp that copies
      init_barrier(empty + s * 8, 8);  // a lane of each warp that multiplies
    }
    fence_barriers();
  }
  __syncthreads();
  wait_for_predecessor();
  release_successor();
  if (threadIdx.x < kWarpgroup) {
    leave_registers<kCopyRegisters>();
    copy_ahead(a, stages, full, empty,
               reinterpret_cast<uint32_t*>(head + Shared::kRows) + threadIdx.x / 32 * kMostRows);
  } else {
    take_registers<kMultiplyRegisters>();
    const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
    uint8_t* lists = head + Shared::kLists + warpgroup * 1024;
    const int items = a.rows.route->active * a.column_tiles;
    const auto record_of = [&](int item) {
      return item < items ? a.rows.route->records[item / a.column_tiles] : Route::Record{};
    };
    RingPlace ring;
    Route::Record next = record_of(static_cast<int>(blockIdx.x));
#pragma unroll 1
    for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
      const Route::Record record = next;
      const int tile = item % a.column_tiles;
      next = record_of(item + static_cast<int>(gridDim.x));
      for_width(__shfl_sync(0xFFFFFFFFu, record.count, 0), [&]<int kRows>() {
        multiply_item<kRows>(a, record, tile, warpgroup, stages, full, empty, lists, ring);
      });
    }
  }
}

}  // namespace twofour::cuda
