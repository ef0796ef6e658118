#pragma once
#include "kernels/device/warpgroup.cuh"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/multiply/many_rows_store.cuh"
#include "kernels/multiply/many_rows_width.cuh"

/// The work of a block of the kernel for many rows, and how its warps divide it.

namespace twofour::cuda {

template <class Tiles>
struct ManyRowsArgs {
  Tiles weights;
  ManyRows rows;
  int32_t steps, column_tiles;
  CUtensorMap boxes;  ///< boxes of sorted x, for PairedRows
};

/// The steps of an item that one block multiplies.
struct ItemPart {
  int item, begin, end;
};

/// The work of a block, or of a pair of blocks. Blocks take whole items in turn. The steps of the last items
/// are divided equally among all blocks. Within its share, a block starts with the last item, so that its
/// sums are ready when the next block finishes the rest of that item and adds them.
struct Schedule {
  static constexpr int kWorthSteps = 8;  ///< steps that sharing must save per block
  static constexpr int kLeastSteps = 8;  ///< smallest number of steps of a block
  int steps, block, blocks, rounds, first, begin, end, last, parts;

  /// The schedule of block (or pair) number `block_` of `blocks_`.
  __device__ __forceinline__ Schedule(int items, int steps_, int block_, int blocks_)
      : steps(steps_), block(block_), blocks(blocks_) {
    const int rest = items % blocks;
    rounds = items / blocks;
    int shared = 0;
    if (rest > 0 && (blocks - rest) * steps >= kWorthSteps * blocks) {
      shared = rest;
      if (rounds > 0) shared += blocks, --rounds;
    } else if (block < rest) {
      ++rounds;
    }
    first = items - shared;
    const int sharers = max(1, min(blocks, shared * steps / kLeastSteps));
    begin = shared * steps / sharers * block + min(block, shared * steps % sharers);
    end = begin + shared * steps / sharers + (block < shared * steps % sharers);
    if (block >= sharers) begin = end = 0;
    last = (end - 1) / steps;
    parts = rounds + (begin < end ? last - begin / steps + 1 : 0);
  }
  __device__ __forceinline__ ItemPart at(int i) const {
    if (i < rounds) return {block + i * blocks, 0, steps};
    const int item = last - (i - rounds), before = item * steps;
    return {first + item, max(begin - before, 0), min(end - before, steps)};
  }
};

/// The position of a warp in a ring of stages.
struct RingPlace {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance(int steps, int stages) {
    slot += steps;
    if (slot >= stages) slot -= stages, parity ^= 1;
  }
};

/// An item is a tile of columns with the rows of a record.
struct Item {
  int column_tile;
  Route::Record record;
};

/// The item of part i of the block, or an empty item.
template <class Tiles>
__device__ __forceinline__ Item item_of(const ManyRowsArgs<Tiles>& a, const Schedule& schedule, int i) {
  if (i >= schedule.parts) return {};
  const int item = schedule.at(i).item, record = item / a.column_tiles;
  return {item - record * a.column_tiles, a.rows.route->records[record]};
}

/// Describes a part of an item to the multiplying warps, in shared memory. Converting warps prepare it ahead,
/// because multiplying warps would be idle meanwhile.
template <class Width>
struct alignas(16) SharedPart {
  int32_t steps;  ///< 0 after the last part
  int32_t count;  ///< rows
  int32_t column_tile;
  bool continues, breaks;  ///< the previous block has sums of the item; the next adds this one's
  alignas(16) StoredRow rows[Width::kMost];
};

/// A ring of parts. Each part has two barriers: the first completes when the part is written, the second when
/// it is no longer needed.
template <class Width>
struct PartRing {
  static constexpr int kSize = 3;
  static constexpr int kBytes = kSize * (static_cast<int>(sizeof(SharedPart<Width>)) + 16);
  SharedPart<Width>* parts;
  uint32_t made, done;

  __device__ __forceinline__ explicit PartRing(uint8_t* at)
      : parts(reinterpret_cast<SharedPart<Width>*>(at)),
        made(shared_address(parts + kSize)),
        done(made + kSize * 8) {}
  /// Initializes the barriers. One thread calls it.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kSize; ++i) {
      init_barrier(made + i * 8, kConvertThreads<Width>);
      init_barrier(done + i * 8, Width::kWarpgroups * kWarpgroup);
    }
  }
};

/// Writes the parts of a block. Converting warps do this, and each thread looks up some rows.
template <class Tiles, class Width>
struct PartMaker {
  const ManyRowsArgs<Tiles>& args;
  const Schedule& schedule;
  PartRing<Width> ring;
  RingPlace place;
  Item item, next;  ///< the items of the part to make and of the next part
  static constexpr int kEach = (Width::kMost + kConvertThreads<Width> - 1) / kConvertThreads<Width>;
  StoredRow rows[kEach];  ///< rows of `item`

  __device__ __forceinline__ PartMaker(const ManyRowsArgs<Tiles>& a, const Schedule& s,
                                       const PartRing<Width>& r)
      : args(a), schedule(s), ring(r), item(item_of(a, s, 0)), next(item_of(a, s, 1)) {
    load_rows();
  }

  /// The index of the thread among the converting threads.
  __device__ static __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x) % kConvertThreads<Width>;
  }

  __device__ __forceinline__ void load_rows() {
    const ManyRows& r = args.rows;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int mine = thread() + i * kConvertThreads<Width>;
      const int at = item.record.begin + mine;
      rows[i] = {};
      if (mine >= item.record.count) continue;
      const float weight = r.sorted_weight ? r.sorted_weight[at] : 1, x_factor = r.x_factor ? *r.x_factor : 1;
      rows[i] = {static_cast<uint32_t>(r.active ? at : r.sorted[at]),
                 weight * (r.global_scale[item.record.expert] * Tiles::kDecodedFactor * x_factor)};
    }
  }

  /// Writes part i of the block. After the last part, writes the end mark.
  __device__ __forceinline__ void make(int i) {
    const ItemPart part = i < schedule.parts ? schedule.at(i) : ItemPart{};
    wait_phase(ring.done + place.slot * 8, place.parity ^ 1);
    SharedPart<Width>& to = ring.parts[place.slot];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int mine = thread() + j * kConvertThreads<Width>;
      if (mine < Width::kMost) to.rows[mine] = rows[j];
    }
    if (thread() == 0) {
      to.steps = part.end - part.begin, to.count = item.record.count, to.column_tile = item.column_tile;
      to.continues = part.begin > 0, to.breaks = part.end < args.steps;
    }
    arrive(ring.made + place.slot * 8);
    place.advance(1, PartRing<Width>::kSize);
    item = next, next = item_of(args, schedule, i + 2);
    load_rows();
  }
};

/// The sums of a part of an item that one block passes to another. There is a float4 from every lane, for
/// each warp and each eight rows.
template <class Width>
struct SharedSums {
  float4* sums;    ///< sums of this warp
  int32_t* ready;  ///< counter of this warp, 0 at first
  static constexpr int kTiles = Width::kTiles, kWarps = 4 * Width::kWarpgroups;
  static_assert(kWarps <= kBlockWarps && 64 * kTiles * Width::kWarpgroups * Width::kMost <= kBlockSums);
  static constexpr int kWarp = kTiles * Width::kMost / 8 * 32;

  __device__ __forceinline__ SharedSums(const ManyRows& r, int block, int warp)
      : sums(reinterpret_cast<float4*>(r.parts) + (int64_t{block} * kWarps + warp) * kWarp),
        ready(r.parts_ready + block * kWarps + warp) {}

  __device__ __forceinline__ void send(const Sums<Width>& mine, int count, int lane) const {
#pragma unroll
    for (int b = 0; b < Width::kMost / 8; ++b) {
      if (8 * b >= count) break;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        __stcg(sums + (kTiles * b + tile) * 32 + lane, float4{mine[tile][4 * b], mine[tile][4 * b + 1],
                                                              mine[tile][4 * b + 2], mine[tile][4 * b + 3]});
    }
    __threadfence();
    __syncwarp();
    if (lane == 0) store_release(ready, 1);
  }
  /// Waits for the sums of the other block and adds them.
  __device__ __forceinline__ void receive(Sums<Width>& mine, int count, int lane) const {
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
      for (int tile = 0; tile < kTiles; ++tile) {
        const float4 v = __ldcg(sums + (kTiles * b + tile) * 32 + lane);
        mine[tile][4 * b] += v.x, mine[tile][4 * b + 1] += v.y;
        mine[tile][4 * b + 2] += v.z, mine[tile][4 * b + 3] += v.w;
      }
    }
  }
};

}  // namespace twofour::cuda
