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
  static constexpr int kHead = 3072;  ///< barriers, then rows and factors of each warpgroup
  static constexpr int kStages = ((227 << 10) - 1024 - kHead) / kStage;
  static constexpr int kLists = 1024;
  static constexpr int kBytes = kStages * kStage + kHead + 1024;  ///< to begin on a multiple of 1024
  static_assert(16 * kStages <= kLists, "barriers before the lists");
};

/// Copies a stage ahead of the warpgroups that multiply.
template <class Tiles>
__device__ __forceinline__ void copy_ahead(const ManyRowsArgs<Tiles>& a, uint8_t* stages, uint32_t full,
                                           uint32_t empty) {
  using Shared = ManyRowsShared<Tiles>;
  constexpr int kLag = Shared::kStages / 2;  // steps whose copies are under way
  constexpr int kOwn = kMostRows / 16;
  const ManyRows& r = a.rows;
  const int thread = static_cast<int>(threadIdx.x), items = r.route->active * a.column_tiles;
  const int chunk = thread % 8, first_row = thread / 8;
  const uint32_t stages_at = shared_address(stages);
  typename Tiles::Copier copier(thread);

  const auto record_of = [&](int item) {
    return item < items ? r.route->records[item / a.column_tiles] : Route::Record{};
  };
  int sources[kOwn] = {};  // rows of x, of an item
  const auto find_sources = [&](const Route::Record& record) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = first_row + 16 * i;
      if (row < record.count) sources[i] = r.x_is_sorted ? record.begin + row : r.sorted[record.begin + row];
    }
  };
  int slot = 0, done = 0, under_way = 0;
  uint32_t parity = 1;
  const auto finish = [&] {
    Tiles::finish(stages + done * Shared::kStage + Shared::kWeights, thread, r.gated);
    fence_for_wgmma();
    __syncwarp();
    if (thread % 32 == 0) arrive(full + done * 8);
    done = done + 1 == Shared::kStages ? 0 : done + 1;
  };
  int item = static_cast<int>(blockIdx.x);
  Route::Record record = record_of(item);
  find_sources(record);
#pragma unroll 1
  for (; item < items; item += static_cast<int>(gridDim.x)) {
    copier.start(a.weights, r, record.expert, item % a.column_tiles);
    const uint16_t* from[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      int row = sources[i];
      if (!r.x_is_sorted && r.rows_per_x > 1)
        row = static_cast<int>(static_cast<uint64_t>(row) * r.x_multiplier >> 36);
      from[i] = r.x + static_cast<int64_t>(row) * r.k + chunk * 8;
    }
    const int count = record.count;
    record = record_of(item + static_cast<int>(gridDim.x));
#pragma unroll 1
    for (int step = 0; step < a.steps; ++step) {
      wait_phase(empty + slot * 8, parity);
      const uint32_t stage = stages_at + slot * Shared::kStage;
      copier.copy(a.weights, stage + Shared::kWeights);
#pragma unroll
      for (int part = 0; part < Tiles::kStepK / 64; ++part) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const int row = first_row + 16 * i;
          if (row < count)
            copy_async16(stage + static_cast<uint32_t>((part * kMostRows + row) * kRowBytes +
                                                       ((chunk ^ row % 8) * 16)),
                         from[i] + part * 64);
        }
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) from[i] += Tiles::kStepK;
      commit_copies();
      if (++slot == Shared::kStages) slot = 0, parity ^= 1;
      if (under_way == kLag) {
        wait_copies<kLag>();
        finish();
      } else {
        ++under_way;
      }
      if (step == 0) find_sources(record);
    }
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
      init_barrier(full + s * 8, 4);   // a lane of each warp that copies
      init_barrier(empty + s * 8, 8);  // a lane of each warp that multiplies
    }
    fence_barriers();
  }
  __syncthreads();
  wait_for_predecessor();
  release_successor();
  if (threadIdx.x < kWarpgroup) {
    leave_registers<kCopyRegisters>();
    copy_ahead(a, stages, full, empty);
  } else {
    take_registers<kMultiplyRegisters>();
    const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
    uint8_t* lists = head + Shared::kLists + warpgroup * 1024;
    const int items = a.rows.route->active * a.column_tiles;
    RingPlace ring;
#pragma unroll 1
    for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
      const Route::Record record = a.rows.route->records[item / a.column_tiles];
      const int tile = item % a.column_tiles;
      for_width(__shfl_sync(0xFFFFFFFFu, record.count, 0), [&]<int kRows>() {
        multiply_item<kRows>(a, record, tile, warpgroup, stages, full, empty, lists, ring);
      });
    }
  }
}

}  // namespace twofour::cuda
