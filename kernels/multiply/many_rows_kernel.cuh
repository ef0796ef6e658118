#pragma once
#include "kernels/multiply/many_rows_parts.cuh"

/// The many-row kernel: a block multiplies columns of an expert, 128 for each warpgroup that multiplies, with
/// up to Width::kMost of its rows, and goes on to the next such item. A warpgroup copies ahead into a ring of
/// stages, weights and rows of x, one converts block scales there and looks up rows, the others decode the
/// weights of their columns into registers and multiply.

namespace twofour::cuda {

/// Threads of a block: warpgroups that multiply, one that copies and one that converts.
template <class Width>
inline constexpr int kManyRowsThreads = (2 + Width::kWarpgroups) * kWarpgroup;
/// Registers of a thread as the block starts: those of its warpgroups must add up to them, or it would wait
/// for more for ever.
template <class Width>
inline constexpr int kStartRegisters = 65536 / kManyRowsThreads<Width> / 8 * 8;
inline constexpr int kRowBytes = 128;  ///< of 64 k of a row of x

/// Offsets in shared memory.
template <class Tiles, class Width>
struct ManyRowsShared {
  static constexpr int kX = 0;  ///< of a stage: for each 64 k Width::kMost rows
  static constexpr int kWeights = Tiles::kStepK / 64 * Width::kMost * kRowBytes;
  static constexpr int kTiles = Width::kWarpgroups / 2;  ///< of 256 columns
  static constexpr int kStage = (kWeights + kTiles * Tiles::kBytes + 1023) / 1024 * 1024;
  static constexpr int kParts = 256;  ///< of the head, after the barriers
  static constexpr int kHead = kParts + PartRing<Width>::kBytes;
  /// A multiple of the warps that convert, so that a stage is one warp's for ever.
  static constexpr int kStages = ((227 << 10) - 1024 - kHead) / kStage / 4 * 4;
  static constexpr int kBytes = kStages * kStage + kHead + 1024;  ///< to begin on a multiple of 1024
  static_assert(24 * kStages <= kParts, "barriers before the parts");
  static_assert(kStages >= 8 && Width::kMost % 16 == 0 && Width::kMost <= kWarpgroup);
};

/// Copies steps ahead of the warpgroups that multiply.
template <class Tiles, class Width>
__device__ __forceinline__ void copy_ahead(const ManyRowsArgs<Tiles>& a, const Schedule& schedule,
                                           uint8_t* stages, uint32_t landed, uint32_t empty) {
  using Shared = ManyRowsShared<Tiles, Width>;
  constexpr int kApart = 16, kEach = Width::kMost / kApart;  // rows of x of a lane: one of its first 16, ...
  const ManyRows& r = a.rows;
  const int thread = static_cast<int>(threadIdx.x), row = thread / 8, chunk = thread % 8;
  const uint32_t to_x = static_cast<uint32_t>(row * kRowBytes + (chunk ^ row % 8) * 16);
  static_assert(Tiles::kStepK == 64, "a row of x in a stage is 128 bytes");
  Item next = item_of(a, schedule, 0);
  RingPlace ring;
#pragma unroll 1
  for (int i = 0; i < schedule.parts; ++i) {
    const ItemPart part = schedule.at(i);
    const Item item = next;
    next = item_of(a, schedule, i + 1);
    const Route::Record& record = item.record;
    uint32_t units[kEach];  // of 16 bytes, to where rows begin; after the last row that one again
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int sorted = record.begin + min(row + kApart * j, record.count - 1);
      int of_x = r.x_is_sorted ? sorted : r.sorted[sorted];
      if (!r.x_is_sorted && r.rows_per_x > 1)
        of_x = static_cast<int>(static_cast<uint64_t>(of_x) * r.x_multiplier >> 36);
      units[j] = static_cast<uint32_t>(of_x) * (static_cast<uint32_t>(r.k) / 8);
    }
    typename Tiles::Copier copiers[Shared::kTiles];
#pragma unroll
    for (int t = 0; t < Shared::kTiles; ++t)
      copiers[t].start(a.weights, r, record.expert, item.column_tile * Shared::kTiles + t, part.begin,
                       thread);
    const auto* x = reinterpret_cast<const uint8_t*>(r.x) + part.begin * kRowBytes + chunk * 16;
    const int rows = record.count - row / 4 * 4;  // of the warp's first four on
#pragma unroll 1
    for (int step = part.begin; step < part.end; ++step, x += kRowBytes) {
      wait_phase(empty + ring.slot * 8, ring.parity ^ 1);
      const uint32_t stage = shared_address(stages) + ring.slot * Shared::kStage;
#pragma unroll
      for (int t = 0; t < Shared::kTiles; ++t)
        copiers[t].copy(a.weights, stage + Shared::kWeights + t * Tiles::kBytes, thread, r.gated);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (kApart * j < rows)
          copy_async16(stage + to_x + kApart * j * kRowBytes, x + uint64_t{units[j]} * 16);
      }
      arrive_when_copied(landed + ring.slot * 8);
      ring.advance(1, Shared::kStages);
    }
  }
}

/// Converts block scales of the stages, each warp those of every fourth when their copies have landed, and
/// hands them to the warpgroups that multiply, as the parts.
template <class Tiles, class Width>
__device__ __forceinline__ void convert_stages(const ManyRowsArgs<Tiles>& a, const Schedule& schedule,
                                               uint8_t* stages, uint32_t landed, uint32_t full,
                                               const PartRing<Width>& parts) {
  using Shared = ManyRowsShared<Tiles, Width>;
  constexpr int kWarps = kWarpgroup / 32;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32) % kWarps;
  PartMaker<Tiles, Width> maker(a, schedule, parts);
  RingPlace ring{warp, 0};
  int step = warp, end = 0;
#pragma unroll 1
  for (int i = 0; i < schedule.parts; ++i) {
    maker.make(i);
    const ItemPart part = schedule.at(i);
    end += part.end - part.begin;
#pragma unroll 1
    for (; step < end; step += kWarps) {
      wait_phase(landed + ring.slot * 8, ring.parity);
#pragma unroll
      for (int t = 0; t < Shared::kTiles; ++t)
        Tiles::finish(stages + ring.slot * Shared::kStage + Shared::kWeights + t * Tiles::kBytes, lane,
                      a.rows.gated);
      fence_for_wgmma();
      arrive(full + ring.slot * 8);
      ring.advance(kWarps, Shared::kStages);
    }
  }
  maker.make(schedule.parts);
}

/// Sums of a part of an item on their way from block to block: of each warp and row of eight a float4 of
/// every lane.
template <class Width>
struct SharedSums {
  float4* sums;    ///< of this warp
  int32_t* ready;  ///< of this warp, 0 at first
  static constexpr int kWarp = 2 * Width::kMost / 8 * 32, kWarps = 4 * Width::kWarpgroups;

  __device__ __forceinline__ SharedSums(const ManyRows& r, int block, int warp)
      : sums(reinterpret_cast<float4*>(r.parts) + (int64_t{block} * kWarps + warp) * kWarp),
        ready(r.parts_ready + block * kWarps + warp) {}

  __device__ __forceinline__ void send(const Sums<Width::kMost>& mine, int count, int lane) const {
#pragma unroll
    for (int b = 0; b < Width::kMost / 8; ++b) {
      if (8 * b >= count) break;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
        __stcg(sums + (2 * b + tile) * 32 + lane, float4{mine[tile][4 * b], mine[tile][4 * b + 1],
                                                         mine[tile][4 * b + 2], mine[tile][4 * b + 3]});
    }
    __threadfence();
    __syncwarp();
    if (lane == 0) store_release(ready, 1);
  }
  /// Adds them, when they are there.
  __device__ __forceinline__ void receive(Sums<Width::kMost>& mine, int count, int lane) const {
    if (lane == 0) {
      while (load_acquire(ready) == 0) {
      }
    }
    __syncwarp();
    __threadfence();
#pragma unroll
    for (int b = 0; b < Width::kMost / 8; ++b) {
      if (8 * b >= count) break;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const float4 v = __ldcg(sums + (2 * b + tile) * 32 + lane);
        mine[tile][4 * b] += v.x, mine[tile][4 * b + 1] += v.y;
        mine[tile][4 * b + 2] += v.z, mine[tile][4 * b + 3] += v.w;
      }
    }
  }
};

template <class Tiles, class Width>
__device__ __forceinline__ void multiply_part(const ManyRowsArgs<Tiles>& a, const SharedPart<Width>& part,
                                              int steps, int warpgroup, uint8_t* stages, uint32_t full,
                                              uint32_t empty, RingPlace& ring) {
  using Shared = ManyRowsShared<Tiles, Width>;
  const ManyRows& r = a.rows;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const typename Tiles::Reader read(warpgroup % 2, warp, lane, r.gated);
  Sums<Width::kMost> sums;
  if constexpr (Tiles::kClearAll) clear<Width::kMost>(sums);
  const auto weights_at = [&] {
    return stages + ring.slot * Shared::kStage + Shared::kWeights + warpgroup / 2 * Tiles::kBytes;
  };
  typename Tiles::Raw raw;
  wait_phase(full + ring.slot * 8, ring.parity);
  raw.load(read, weights_at());
  for_width<Width::kMost>(__shfl_sync(0xFFFFFFFFu, part.count, 0), [&]<int kRows>() {
    if constexpr (!Tiles::kClearAll) clear<kRows>(sums);
#pragma unroll 1
    for (int left = steps; left > 0; --left) {
      const int slot = ring.slot;
      ring.advance(1, Shared::kStages);
      Tiles::template multiply<kRows>(raw, shared_address(stages + slot * Shared::kStage), sums, [&] {
        if (left == 1) return;
        wait_phase(full + ring.slot * 8, ring.parity);
        raw.load(read, weights_at());
      });
      arrive(empty + slot * 8);
    }
  });

  const int block = static_cast<int>(blockIdx.x), warp_of_block = warpgroup * 4 + warp;
  if (part.continues) SharedSums<Width>(r, block - 1, warp_of_block).receive(sums, part.count, lane);
  if (part.breaks) return SharedSums<Width>(r, block, warp_of_block).send(sums, part.count, lane);
  const int first = (part.column_tile * Width::kWarpgroups + warpgroup) * (r.gated ? 64 : 128);
  with_finish(r, [&]<Finish kFinish>() {
    Tiles::give_sums(sums, StoreSums<kFinish>(r, part.rows, part.count, first), warp, lane);
  });
}

/// Multiplies the parts of the block as they are made.
template <class Tiles, class Width>
__device__ __forceinline__ void multiply_parts(const ManyRowsArgs<Tiles>& a, int warpgroup, uint8_t* stages,
                                               uint32_t full, uint32_t empty, const PartRing<Width>& parts) {
  RingPlace ring, place;
#pragma unroll 1
  for (;;) {
    wait_phase(parts.made + place.slot * 8, place.parity);
    const SharedPart<Width>& part = parts.parts[place.slot];
    const int steps = __shfl_sync(0xFFFFFFFFu, part.steps, 0);  // for the compiler, the same in all lanes
    if (steps == 0) return;
    multiply_part<Tiles, Width>(a, part, steps, warpgroup, stages, full, empty, ring);
    arrive(parts.done + place.slot * 8);
    place.advance(1, PartRing<Width>::kSize);
  }
}

template <class Tiles, class Width>
__global__ void __launch_bounds__(kManyRowsThreads<Width>, 1)
    many_rows_kernel(const __grid_constant__ ManyRowsArgs<Tiles> a) {
  using Shared = ManyRowsShared<Tiles, Width>;
  static_assert(2 * Width::kCopyRegisters + Width::kWarpgroups * Width::kMultiplyRegisters ==
                (2 + Width::kWarpgroups) * kStartRegisters<Width>);
  extern __shared__ uint8_t unaligned[];
  uint8_t* stages = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  uint8_t* head = stages + Shared::kStages * Shared::kStage;
  const uint32_t landed = shared_address(head), full = landed + Shared::kStages * 8,
                 empty = full + Shared::kStages * 8;
  const PartRing<Width> parts(head + Shared::kParts);
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shared::kStages; ++s) {
      init_barrier(landed + s * 8, kWarpgroup);  // the threads that copy
      init_barrier(full + s * 8, 32);            // the warp that converts
      init_barrier(empty + s * 8, Width::kWarpgroups * kWarpgroup);
    }
    parts.init();
    fence_barriers();
  }
  __syncthreads();
  wait_for_predecessor();
  release_successor();
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - 2;
  if (warpgroup >= 0) {
    take_registers<Width::kMultiplyRegisters>();
    return multiply_parts<Tiles, Width>(a, warpgroup, stages, full, empty, parts);
  }
  leave_registers<Width::kCopyRegisters>();
  const Schedule schedule(a.rows.route->active * a.column_tiles, a.steps);
  if (warpgroup == -2) {
    copy_ahead<Tiles, Width>(a, schedule, stages, landed, empty);
  } else {
    convert_stages<Tiles, Width>(a, schedule, stages, landed, full, parts);
  }
}

}  // namespace twofour::cuda
