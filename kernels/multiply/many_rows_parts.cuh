#pragma once
#include "kernels/device/warpgroup.cuh"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/multiply/many_rows_store.cuh"
#include "kernels/multiply/many_rows_width.cuh"

/// What a block of the many-row kernel multiplies, and how its warps come to know of it.

namespace twofour::cuda {

template <class Tiles>
struct ManyRowsArgs {
  Tiles weights;
  ManyRows rows;
  int32_t steps, column_tiles;
};

/// Steps of an item that a block multiplies.
struct ItemPart {
  int item, begin, end;
};

/// What a block multiplies: items in turn with the other blocks; the last ones by steps, as many as another
/// block. Of those it starts with the last, so that the block behind it, which adds its sums of the rest of
/// that item, finds them there in the end.
struct Schedule {
  static constexpr int kWorthSteps = 8;  ///< that each block must be spared by it
  static constexpr int kLeastSteps = 8;  ///< of a block
  int steps, rounds, first, begin, end, last, parts;

  __device__ __forceinline__ Schedule(int items, int steps_) : steps(steps_) {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
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
    if (i < rounds) return {static_cast<int>(blockIdx.x + i * gridDim.x), 0, steps};
    const int item = last - (i - rounds), before = item * steps;
    return {first + item, max(begin - before, 0), min(end - before, steps)};
  }
};

/// Where a warp is in a ring.
struct RingPlace {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance(int steps, int stages) {
    slot += steps;
    if (slot >= stages) slot -= stages, parity ^= 1;
  }
};

/// An item: a tile of columns and the rows of a record.
struct Item {
  int column_tile;
  Route::Record record;
};

/// That of the block's part i, or none.
template <class Tiles>
__device__ __forceinline__ Item item_of(const ManyRowsArgs<Tiles>& a, const Schedule& schedule, int i) {
  if (i >= schedule.parts) return {};
  const int item = schedule.at(i).item, record = item / a.column_tiles;
  return {item - record * a.column_tiles, a.rows.route->records[record]};
}

/// What the warps that multiply need to know of a part of an item, in shared memory. Warps that convert look
/// it up ahead, as those that multiply would do nothing meanwhile.
template <class Width>
struct alignas(16) SharedPart {
  int32_t steps;  ///< 0 after the last part
  int32_t count;  ///< rows
  int32_t column_tile;
  bool continues, breaks;  ///< the block before has sums of the item; the block behind adds them
  alignas(16) StoredRow rows[Width::kMost];
};

/// A ring of them. Each has a barrier for when it is made and one for when it is done with.
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
  /// By one thread.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kSize; ++i) {
      init_barrier(made + i * 8, kWarpgroup);  // the threads that convert
      init_barrier(done + i * 8, Width::kWarpgroups * kWarpgroup);
    }
  }
};

/// Makes the parts of a block, by the warpgroup that converts: a thread a row.
template <class Tiles, class Width>
struct PartMaker {
  const ManyRowsArgs<Tiles>& args;
  const Schedule& schedule;
  PartRing<Width> ring;
  RingPlace place;
  Item item, next;  ///< of the part to make, and of the one after it
  StoredRow row;    ///< of `item`

  __device__ __forceinline__ PartMaker(const ManyRowsArgs<Tiles>& a, const Schedule& s,
                                       const PartRing<Width>& r)
      : args(a), schedule(s), ring(r), item(item_of(a, s, 0)), next(item_of(a, s, 1)) {
    load_row();
  }

  __device__ __forceinline__ void load_row() {
    const ManyRows& r = args.rows;
    const int mine = static_cast<int>(threadIdx.x % kWarpgroup), at = item.record.begin + mine;
    row = {};
    if (mine >= item.record.count) return;
    const float weight = r.sorted_weight ? r.sorted_weight[at] : 1, x_factor = r.x_factor ? *r.x_factor : 1;
    row = {static_cast<uint32_t>(r.active ? at : r.sorted[at]),
           weight * (r.global_scale[item.record.expert] * Tiles::kDecodedFactor * x_factor)};
  }

  /// Makes the block's part i; behind the last one, the mark of the end.
  __device__ __forceinline__ void make(int i) {
    const int mine = static_cast<int>(threadIdx.x % kWarpgroup);
    const ItemPart part = i < schedule.parts ? schedule.at(i) : ItemPart{};
    wait_phase(ring.done + place.slot * 8, place.parity ^ 1);
    SharedPart<Width>& to = ring.parts[place.slot];
    if (mine < Width::kMost) to.rows[mine] = row;
    if (mine == 0) {
      to.steps = part.end - part.begin, to.count = item.record.count, to.column_tile = item.column_tile;
      to.continues = part.begin > 0, to.breaks = part.end < args.steps;
    }
    arrive(ring.made + place.slot * 8);
    place.advance(1, PartRing<Width>::kSize);
    item = next, next = item_of(args, schedule, i + 2);
    load_row();
  }
};

}  // namespace twofour::cuda
