#pragma once
#include <cstdint>

#include "kernels/device/ptx.cuh"
#include "kernels/multiply/many_rows.h"
#include "kernels/numbers/swiglu.cuh"

/// Stores the sums of an item. The multiplying warps do nothing else meanwhile. Without branches between
/// them, numbers are computed in parallel.

namespace twofour::cuda {

/// The way from sums to results. `gated` is silu(gate) * up and `squared` is relu(x)^2, both in BF16. `bf16`
/// and `other` are the sums themselves in BF16 or in another type.
enum class Finish { gated, squared, bf16, other };

/// Calls `f.template operator()<kFinish>()` with the Finish of a product.
template <class F>
__device__ __forceinline__ void with_finish(const ManyRows& r, const F& f) {
  if (r.gated) return f.template operator()<Finish::gated>();
  if (r.active) return f.template operator()<Finish::squared>();
  if (r.out_type == Float::bf16) return f.template operator()<Finish::bf16>();
  f.template operator()<Finish::other>();
}

/// The output for a row of an item: the row of the result, and a factor.
struct StoredRow {
  uint32_t id;
  float factor;
};

/// Loads a lane's rows of an item ahead of their use: rows 2t and 2t + 1 of each eight. Calls `use(b, 8b +
/// 2t, that row, the next row)`.
template <int kMost, class Use>
__device__ __forceinline__ void for_stored_rows(const StoredRow* rows, int count, int t, const Use& use) {
  const uint32_t at = shared_address(rows + 2 * t);
  uint4 next = load_shared(at);
#pragma unroll
  for (int b = 0; b < kMost / 8; ++b) {
    const uint4 two = next;
    if (8 * b >= count) break;
    if (b + 1 < kMost / 8) next = load_shared(at + (b + 1) * 64);
    use(b, 8 * b + 2 * t, StoredRow{two.x, __uint_as_float(two.y)}, StoredRow{two.z, __uint_as_float(two.w)});
  }
}

template <Finish kFinish>
struct StoreSums {
  static constexpr bool kGated = kFinish == Finish::gated;
  const StoredRow* rows;  ///< in shared memory
  int count, first;       ///< number of rows of the item, and its first column
  int columns;            ///< number of columns of the result
  float limit;
  void* out;
  Float type;

  /// Stores sums for the `count` rows of `rows` and columns from `first` on.
  __device__ __forceinline__ StoreSums(const ManyRows& r, const StoredRow* rows_, int count_, int first_)
      : rows(rows_),
        count(count_),
        first(first_),
        columns(kGated ? r.n / 2 : r.n),
        limit(r.limit),
        out(r.out),
        type(r.out_type) {}

  __device__ __forceinline__ float finish(float v, float up, float factor) const {
    v *= factor;
    if constexpr (kFinish == Finish::gated) return swiglu(v, up * factor, limit);
    if constexpr (kFinish == Finish::squared) return square_of_positive(v);
    return v;
  }
  __device__ __forceinline__ uint64_t place(StoredRow to, int column) const {
    return uint64_t{to.id} * static_cast<uint32_t>(columns) + static_cast<uint32_t>(column);
  }

  /// Stores four adjacent columns. If they are gated, `v` has the gates and `up` has the ups.
  __device__ __forceinline__ void operator()(int row, StoredRow to, int column, float4 v, float4 up) const {
    column += first;
    const bool here = row < count && column < columns;
    v = {finish(v.x, up.x, to.factor), finish(v.y, up.y, to.factor), finish(v.z, up.z, to.factor),
         finish(v.w, up.w, to.factor)};
    const uint64_t at = place(to, column);
    if constexpr (kFinish == Finish::other) {
      if (type == Float::f32) return store_if(here, static_cast<float*>(out) + at, v);
      store_if(here, static_cast<uint16_t*>(out) + at, uint2{half2_of(v.x, v.y), half2_of(v.z, v.w)});
    } else {
      store_if(here, static_cast<uint16_t*>(out) + at, uint2{bfloat2_of(v.x, v.y), bfloat2_of(v.z, v.w)});
    }
  }

  /// Stores two adjacent columns. If they are gated, `v` has the gates and `up` has the ups. In g8, columns
  /// are adjacent in the order of permuted_k.
  __device__ __forceinline__ void operator()(int row, StoredRow to, int column, float2 v, float2 up) const {
    column += first;
    const bool here = row < count && column < columns;
    v = {finish(v.x, up.x, to.factor), finish(v.y, up.y, to.factor)};
    const uint64_t at = place(to, column);
    if constexpr (kFinish == Finish::other) {
      if (type == Float::f32) return store_if(here, static_cast<float*>(out) + at, v);
      store_if(here, static_cast<uint16_t*>(out) + at, half2_of(v.x, v.y));
    } else {
      store_if(here, static_cast<uint16_t*>(out) + at, bfloat2_of(v.x, v.y));
    }
  }
};

}  // namespace twofour::cuda
