#pragma once
#include <type_traits>

#include "kernels/multiply/many_rows_parts.cuh"

/// The kernel for many rows. A block multiplies columns of an expert, up to 128 per multiplying warpgroup, by
/// up to Width::kMost of the expert's rows. Then it continues with its next item. Some warps copy weights and
/// rows of x ahead into a ring of stages. Some warps convert the block scales in the stages and look up rows.
/// Warpgroups decode the weights of their columns into registers and multiply.

namespace twofour::cuda {

/// The number of warpgroups of a block that copy and convert, and the number of threads of a block.
template <class Width>
inline constexpr int kHelpers = (Width::kCopyWarps + Width::kConvertWarps) / 4;
template <class Width>
inline constexpr int kManyRowsThreads = (kHelpers<Width> + Width::kWarpgroups) * kWarpgroup;
/// The registers of a thread when the block starts. The registers of the block's warpgroups must add up to
/// the same total; otherwise the block would wait forever for registers.
template <class Width>
inline constexpr int kStartRegisters = 65536 / kManyRowsThreads<Width> / 8 * 8;
inline constexpr int kRowBytes = 128;  ///< bytes of 64 k of a row of x

/// Offsets in shared memory, in bytes.
template <class Tiles, class Width>
struct ManyRowsShared {
  static constexpr int kX = 0;  ///< activations of a stage, with Width::kMost rows for each 64 k
  static constexpr int kWeights = Tiles::kStepK / 64 * Width::kMost * kRowBytes;
  static constexpr int kUnits = Width::kWarpgroups / 2;  ///< units of weights; two warpgroups multiply one
  static constexpr int kStage = (kWeights + kUnits * Tiles::kBytes + 1023) / 1024 * 1024;
  static constexpr int kParts = 256;  ///< parts of the head, after the barriers
  static constexpr int kHead = kParts + PartRing<Width>::kBytes;
  /// The number of turns of converting warps. The number of stages is a multiple of it, so a stage is always
  /// converted by the same warps.
  static constexpr int kTurns = Width::kConvertWarps / Width::kConvertTogether;
  static constexpr int kStages = ((227 << 10) - 1024 - kHead) / kStage / kTurns * kTurns;
  static constexpr int kBytes = kStages * kStage + kHead + 1024;  ///< 1024 bytes of space for alignment
  static_assert(24 * kStages <= kParts, "barriers before the parts");
  static_assert(kStages >= 4 && Width::kMost % 16 == 0);
};

/// The unit of weights that is number u of the block in an item.
template <class Width>
__device__ __forceinline__ int unit_of(int column_tile, int u) {
  if constexpr (Width::kBlocks > 1)
    return column_tile * Width::kBlocks + static_cast<int>(blockIdx.x % Width::kBlocks);
  return column_tile * (Width::kWarpgroups / 2) + u;
}

/// Copies rows of x from any addresses. A thread copies 16 bytes of every sixteenth row.
template <class Width>
struct ScatteredRows {
  static constexpr int kApart = 16, kEach = Width::kMost / kApart;
  const ManyRows& rows;
  int row, chunk, count;  ///< `count` is of rows, from the warp's first four on
  uint32_t to;
  const uint8_t* x;
  uint32_t units[kEach];  ///< offsets of rows in units of 16 bytes; after the last row, that row again

  template <class Tiles>
  __device__ __forceinline__ ScatteredRows(const ManyRowsArgs<Tiles>& a, int thread)
      : rows(a.rows),
        row(thread / 8),
        chunk(thread % 8),
        to(static_cast<uint32_t>(row * kRowBytes + (chunk ^ row % 8) * 16)) {}

  /// Moves to a step of the rows of a record.
  __device__ __forceinline__ void start(const Route::Record& record, int step) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int sorted = record.begin + min(row + kApart * j, record.count - 1);
      int of_x = rows.x_is_sorted ? sorted : rows.sorted[sorted];
      if (!rows.x_is_sorted && rows.rows_per_x > 1)
        of_x = static_cast<int>(static_cast<uint64_t>(of_x) * rows.x_multiplier >> 36);
      units[j] = static_cast<uint32_t>(of_x) * (static_cast<uint32_t>(rows.k) / 8);
    }
    x = reinterpret_cast<const uint8_t*>(rows.x) + step * kRowBytes + chunk * 16;
    count = record.count - row / 4 * 4;
  }
  /// Starts the copies of a step and advances to the next step.
  __device__ __forceinline__ void copy(uint32_t stage, uint32_t /*landed*/) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (kApart * j < count) copy_async16(stage + to + kApart * j * kRowBytes, x + uint64_t{units[j]} * 16);
    }
    x += kRowBytes;
  }
};

/// Copies sorted rows by TMA in boxes. Each block of a pair copies every other box to both blocks. One thread
/// starts the copies. Rows after the record's rows are copied, too.
struct SortedRows {
  static constexpr int kBoxRows = 64, kBoxBytes = kBoxRows * kRowBytes, kBlocks = PairedRows::kBlocks;
  static constexpr uint16_t kBoth = (1 << kBlocks) - 1;
  const CUtensorMap& map;
  bool starts;
  int boxes = 0, row = 0, k = 0;

  template <class Tiles>
  __device__ __forceinline__ SortedRows(const ManyRowsArgs<Tiles>& a, int thread)
      : map(a.boxes), starts(thread == 0) {}

  __device__ __forceinline__ void start(const Route::Record& record, int step) {
    boxes = (record.count + kBoxRows - 1) / kBoxRows, row = record.begin, k = step * 64;
  }
  __device__ __forceinline__ void copy(uint32_t stage, uint32_t landed) {
    if (starts) {
      expect_bytes(landed, boxes * kBoxBytes);
#pragma unroll
      for (int i = 0; i < PairedRows::kMost / kBoxRows / kBlocks; ++i) {
        const int box = static_cast<int>(blockIdx.x % kBlocks) + kBlocks * i;
        if (box < boxes)
          copy_box(stage + static_cast<uint32_t>(box * kBoxBytes), map, k, row + box * kBoxRows, landed,
                   kBoth);
      }
    }
    k += 64;
  }
};

/// Copies steps ahead of the multiplying warpgroups.
template <class Tiles, class Width>
__device__ __forceinline__ void copy_ahead(const ManyRowsArgs<Tiles>& a, const Schedule& schedule,
                                           uint8_t* stages, uint32_t landed, uint32_t empty) {
  using Shared = ManyRowsShared<Tiles, Width>;
  static_assert(Tiles::kStepK == 64, "a row of x in a stage is 128 bytes");
  constexpr int kShares = kWarpgroup / kCopyThreads<Width>;  // parts of 128 threads' copies for each thread
  const int thread = static_cast<int>(threadIdx.x);
  std::conditional_t<Width::kBlocks == 1, ScatteredRows<Width>, SortedRows> rows(a, thread);
  uint32_t first_stage[1] = {shared_address(stages)};
  settle(first_stage);  // otherwise its address would be recomputed in each step
  Item next = item_of(a, schedule, 0);
  RingPlace ring;
#pragma unroll 1
  for (int i = 0; i < schedule.parts; ++i) {
    const ItemPart part = schedule.at(i);
    const Item item = next;
    next = item_of(a, schedule, i + 1);
    rows.start(item.record, part.begin);
    typename Tiles::Copier copiers[Shared::kUnits][kShares];
#pragma unroll
    for (int u = 0; u < Shared::kUnits; ++u) {
#pragma unroll
      for (int s = 0; s < kShares; ++s)
        copiers[u][s].start(a.weights, a.rows, item.record.expert, unit_of<Width>(item.column_tile, u),
                            part.begin, thread + s * kCopyThreads<Width>);
    }
#pragma unroll 1
    for (int step = part.begin; step < part.end; ++step) {
      wait_phase(empty + ring.slot * 8, ring.parity ^ 1);
      const uint32_t stage = first_stage[0] + ring.slot * Shared::kStage;
      if constexpr (Width::kBlocks > 1) rows.copy(stage, landed + ring.slot * 8);
#pragma unroll
      for (int u = 0; u < Shared::kUnits; ++u) {
#pragma unroll
        for (int s = 0; s < kShares; ++s)
          copiers[u][s].copy(a.weights, stage + Shared::kWeights + u * Tiles::kBytes,
                             thread + s * kCopyThreads<Width>, a.rows.gated);
      }
      if constexpr (Width::kBlocks == 1) rows.copy(stage, landed + ring.slot * 8);
      arrive_when_copied(landed + ring.slot * 8);
      ring.advance(1, Shared::kStages);
    }
  }
}

/// Converts the block scales of stages after their copies have arrived. Single warps, or groups of
/// Width::kConvertTogether warps, take stages in turn. Passes stages and parts to the multiplying warpgroups.
template <class Tiles, class Width>
__device__ __forceinline__ void convert_stages(const ManyRowsArgs<Tiles>& a, const Schedule& schedule,
                                               uint8_t* stages, uint32_t landed, uint32_t full,
                                               const PartRing<Width>& parts) {
  using Shared = ManyRowsShared<Tiles, Width>;
  constexpr int kTogether = Width::kConvertTogether * 32, kApart = kConvertThreads<Width> / kTogether;
  const int thread = static_cast<int>(threadIdx.x) % kConvertThreads<Width>, first = thread / kTogether;
  PartMaker<Tiles, Width> maker(a, schedule, parts);
  RingPlace ring{first, 0};
  int step = first, end = 0;
#pragma unroll 1
  for (int i = 0; i < schedule.parts; ++i) {
    maker.make(i);
    const ItemPart part = schedule.at(i);
    end += part.end - part.begin;
#pragma unroll 1
    for (; step < end; step += kApart) {
      wait_phase(landed + ring.slot * 8, ring.parity);
#pragma unroll
      for (int u = 0; u < Shared::kUnits; ++u)
        Tiles::finish(stages + ring.slot * Shared::kStage + Shared::kWeights + u * Tiles::kBytes,
                      thread % kTogether, a.rows.gated);
      if constexpr (Width::kBlocks == 1) fence_for_wgmma();  // copies by TMA need no fence
      arrive(full + ring.slot * 8);
      ring.advance(kApart, Shared::kStages);
    }
  }
  maker.make(schedule.parts);
}

template <class Tiles, class Width>
__device__ __forceinline__ void multiply_part(const ManyRowsArgs<Tiles>& a, const SharedPart<Width>& part,
                                              int steps, int warpgroup, uint8_t* stages, uint32_t full,
                                              uint32_t empty, RingPlace& ring) {
  using Shared = ManyRowsShared<Tiles, Width>;
  const ManyRows& r = a.rows;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const typename Tiles::Reader read(warpgroup % 2, warp, lane, r.gated);
  Sums<Width> sums;
  if constexpr (Tiles::kClearAll) clear<Width::kMost>(sums);
  uint32_t empty_of_other = 0;
  if constexpr (Width::kBlocks > 1)
    empty_of_other = cluster_address(empty, (blockIdx.x + 1) % Width::kBlocks);
  const auto weights_at = [&] {
    return stages + ring.slot * Shared::kStage + Shared::kWeights + warpgroup / 2 * Tiles::kBytes;
  };
  typename Tiles::Raw raw;
  const auto load_next = [&] {
    wait_phase(full + ring.slot * 8, ring.parity);
    raw.load(read, weights_at());
  };
  load_next();
  for_width<Width::kMost>(__shfl_sync(0xFFFFFFFFu, part.count, 0), [&]<int kRows>() {
    if constexpr (!Tiles::kClearAll) clear<kRows>(sums);
    const auto release = [&](int slot) {
      arrive(empty + slot * 8);
      if constexpr (Width::kBlocks > 1) {
        if (lane == 0) arrive_at_other(empty_of_other + slot * 8);
      }
    };
    if constexpr (Width::kTiles == 1) {
      // Decode the next step while a step is multiplied. This was slower for up to 128 rows.
      typename Tiles::Decoded now;
      now.decode(raw);
#pragma unroll 1
      for (int left = steps; left > 0; --left) {
        const int slot = ring.slot;
        ring.advance(1, Shared::kStages);
        Tiles::template begin<kRows>(now, shared_address(stages + slot * Shared::kStage), sums);
        typename Tiles::Decoded then = now;  // without these copies, there are not enough registers (C7511)
        if (left > 1) load_next(), then.decode(raw);
        wait_wgmma<0>();
        now.keep_until_here(r.k == 0);
        release(slot);
        now = then;
      }
    } else {
#pragma unroll 1
      for (int left = steps; left > 0; --left) {
        const int slot = ring.slot;
        ring.advance(1, Shared::kStages);
        Tiles::template multiply<kRows>(raw, shared_address(stages + slot * Shared::kStage), sums, [&] {
          if (left > 1) load_next();
        });
        release(slot);
      }
    }
  });

  const int block = static_cast<int>(blockIdx.x), warp_of_block = warpgroup * 4 + warp;
  if (part.continues)
    SharedSums<Width>(r, block - Width::kBlocks, warp_of_block).receive(sums, part.count, lane);
  if (part.breaks) return SharedSums<Width>(r, block, warp_of_block).send(sums, part.count, lane);
  const int group = unit_of<Width>(part.column_tile, warpgroup / 2) * Width::kTiles +
                    (Width::kTiles > 1 ? warpgroup % 2 : 0);
  const int first = group * (r.gated ? 64 : 128);
  with_finish(r, [&]<Finish kFinish>() {
    Tiles::give_sums(sums, StoreSums<kFinish>(r, part.rows, part.count, first), warpgroup % 2, warp, lane);
  });
}

/// Multiplies the parts of the block as soon as they are ready.
template <class Tiles, class Width>
__device__ __forceinline__ void multiply_parts(const ManyRowsArgs<Tiles>& a, int warpgroup, uint8_t* stages,
                                               uint32_t full, uint32_t empty, const PartRing<Width>& parts) {
  RingPlace ring, place;
#pragma unroll 1
  for (;;) {
    wait_phase(parts.made + place.slot * 8, place.parity);
    const SharedPart<Width>& part = parts.parts[place.slot];
    const int steps = __shfl_sync(0xFFFFFFFFu, part.steps, 0);  // tells the compiler: equal in all lanes
    if (steps == 0) return;
    multiply_part<Tiles, Width>(a, part, steps, warpgroup, stages, full, empty, ring);
    arrive(parts.done + place.slot * 8);
    place.advance(1, PartRing<Width>::kSize);
  }
}

/// Synchronizes all threads of the blocks that share rows of x.
template <class Width>
__device__ __forceinline__ void meet() {
  if constexpr (Width::kBlocks > 1) {
    __syncwarp();
    cluster_sync();
  } else {
    __syncthreads();
  }
}

template <class Tiles, class Width>
__global__ void __launch_bounds__(kManyRowsThreads<Width>, 1)
    many_rows_kernel(const __grid_constant__ ManyRowsArgs<Tiles> a) {
  using Shared = ManyRowsShared<Tiles, Width>;
  constexpr int kOthers = Width::kBlocks - 1;
  static_assert(kHelpers<Width> * Width::kCopyRegisters + Width::kWarpgroups * Width::kMultiplyRegisters ==
                (kHelpers<Width> + Width::kWarpgroups) * kStartRegisters<Width>);
  extern __shared__ uint8_t unaligned[];
  uint8_t* stages = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  uint8_t* head = stages + Shared::kStages * Shared::kStage;
  const uint32_t landed = shared_address(head), full = landed + Shared::kStages * 8,
                 empty = full + Shared::kStages * 8;
  const PartRing<Width> parts(head + Shared::kParts);
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shared::kStages; ++s) {
      // Copying threads and the thread that starts TMA arrive at the first barrier, converting threads at the
      // second, and multiplying threads and one lane of each multiplying warp of the other block at the
      // third.
      init_barrier(landed + s * 8, kCopyThreads<Width> + kOthers);
      init_barrier(full + s * 8, 32 * Width::kConvertTogether);
      init_barrier(empty + s * 8, Width::kWarpgroups * (kWarpgroup + 4 * kOthers));
    }
    parts.init();
    fence_barriers();
  }
  meet<Width>();
  wait_for_predecessor();
  release_successor();
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - kHelpers<Width>;
  if (warpgroup >= 0) {
    take_registers<Width::kMultiplyRegisters>();
    multiply_parts<Tiles, Width>(a, warpgroup, stages, full, empty, parts);
  } else {
    leave_registers<Width::kCopyRegisters>();
    const Schedule schedule(a.rows.route->active * a.column_tiles, a.steps,
                            static_cast<int>(blockIdx.x) / Width::kBlocks,
                            static_cast<int>(gridDim.x) / Width::kBlocks);
    if (threadIdx.x < kCopyThreads<Width>) {
      copy_ahead<Tiles, Width>(a, schedule, stages, landed, empty);
    } else {
      convert_stages<Tiles, Width>(a, schedule, stages, landed, full, parts);
    }
  }
  if constexpr (Width::kBlocks > 1) meet<Width>();  // no block may end while another block writes to it
}

}  // namespace twofour::cuda
