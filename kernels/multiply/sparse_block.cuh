#pragma once
#include "kernels/multiply/sparse_warp.cuh"

/// Data that the warps of a block of the 2:4 multiplication share: the layout of shared memory, a converted
/// row of x, and the experts of a token.

namespace twofour::cuda {

inline constexpr int kStages = 3;
inline constexpr int kMaxThreads = 256;
/// The largest K for a converted row of x. A longer row would leave too little shared memory for stages.
inline constexpr int kMaxRawK = 16384;

/// The source of a warp's x: PreparedRows, raw activations, which are converted, or PreparedRows of several
/// experts along K (Epilogue::tokens).
enum class RowSource { prepared, raw, tokens };

/// The number of tiles of eight rows that a kernel for `tile_m` rows multiplies, including missing rows: 1, 2
/// or 4.
__host__ __device__ constexpr int row_tiles(int tile_m) { return tile_m <= 8 ? 1 : tile_m <= 16 ? 2 : 4; }

/// The number of tiles of 128 columns that a block finishes. A tile of gates and the tile of their ups count
/// as one.
__host__ __device__ inline int parts_of(const SparseArgs& a) { return a.gated ? a.warps_n / 2 : a.warps_n; }

/// Plans the shared memory of a block. The sums of a warp overwrite the warp's own stages after these are
/// read.
inline SharedPlan plan_shared(const SparseArgs& a) {
  SharedPlan plan{};
  const int warps = a.warps_k * a.warps_n, factors = row_tiles(a.tile_m) * 32;
  const int block_steps = a.raw ? (a.least_steps + (a.one_more > 0 ? 1 : 0)) * a.warps_k : 0;
  const int list = a.epilogue == Epilogue::tokens ? (a.segments * 4 + 15) / 16 * 16 : 0;
  plan.experts = plan.list + list;
  plan.weights = plan.experts + list;
  plan.state = plan.weights + list;
  plan.x = plan.state + 16;
  plan.x_factors = plan.x + block_steps * kStepK * 2;
  plan.received = (plan.x_factors + block_steps * 4 + 127) / 128 * 128;
  const int sums = parts_of(a) * a.tile_m;
  plan.scales = plan.received;
  if (a.cluster > 1)
    plan.scales += (sums + a.cluster - 1) / a.cluster * a.cluster * (a.gated ? 2 : 1) * kWarpColumns * 4;
  // If rows of x take the memory that a fourth block of a multiprocessor would need, every lane converts the
  // scales that it needs.
  plan.stages = plan.scales + (a.raw || a.epilogue == Epilogue::tokens ? warps * kScaleBytes : 0);
  plan.stage = kStageBytes + (a.raw ? 0 : a.tile_m * kStepK * 2 + factors);
  plan.bytes = plan.stages + warps * kStages * plan.stage;
  return plan;
}

/// Converts a row of x for a block: the steps of 64 k that its warps multiply. All warps work together.
__device__ __forceinline__ void convert_row(const SparseArgs& a, uint8_t* shared, int row, int rank) {
  const int eighth = static_cast<int>(threadIdx.x % 8), turn = static_cast<int>(blockDim.x / 8);
  const int steps = (a.least_steps + (a.one_more > 0 ? 1 : 0)) * a.warps_k;
  const auto* x = static_cast<const uint4*>(a.raw) + static_cast<int64_t>(row) * a.k_steps * 8 + eighth;
  const auto load = [&](int at) {
    const int step = ((at >> a.warps_k_log2) * a.cluster + rank) * a.warps_k + (at & (a.warps_k - 1));
    return at < steps && step < a.k_steps ? __ldg(x + step * 8) : uint4{};
  };
  int at = static_cast<int>(threadIdx.x / 8);
  uint4 next = load(at), after = load(at + turn);
#pragma unroll 1
  for (int last = at | 3; last - 3 < steps; at += turn, last += turn) {  // whole warps
    const uint4 bits = next;
    next = after, after = load(at + 2 * turn);
    const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
    uint32_t most = 0;  // the largest magnitude; magnitudes sort like their bits
#pragma unroll
    for (int t = 0; t < 4; ++t) most = __vmaxu2(most, pairs[t] & 0x7FFF7FFFu);
#pragma unroll
    for (int d = 4; d > 0; d /= 2) most = __vmaxu2(most, __shfl_xor_sync(0xFFFFFFFFu, most, d));
    const float2 two = load_pair(&most, a.raw_type, 0);
    const uint32_t largest = max(__float_as_uint(two.x), __float_as_uint(two.y));
    if (at < steps) {
      const auto [scale, factor] = half_scale(largest);
      auto* to = reinterpret_cast<uint32_t*>(shared + a.shared.x) + at * 32 + eighth / 4 * 16 + eighth % 4;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float2 v = load_pair(&pairs[t], a.raw_type, 0);
        to[t * 4] = half2_of(v.x * scale, v.y * scale);
      }
      if (eighth == 0) reinterpret_cast<float*>(shared + a.shared.x_factors)[at] = factor;
    }
  }
}

/// Finds the rows of a token whose experts are on this device. Writes the rows to `list` and their experts to
/// `experts`. Returns their number.
__device__ __forceinline__ int find_segments(const SparseArgs& a, int* list, int* experts,
                                             int* count_of_all) {
  if (threadIdx.x < 32) {
    int count = 0;
    for (int t0 = 0; t0 < a.segments; t0 += 32) {
      const int t = t0 + static_cast<int>(threadIdx.x);
      const int row = static_cast<int>(blockIdx.z) * a.segments + t;
      const int e = t < a.segments ? local_expert(a.rows, row) : -1;
      const unsigned here = __ballot_sync(0xFFFFFFFFu, e >= 0);
      const int place = count + __popc(here & ((1u << threadIdx.x) - 1));
      if (e >= 0) {
        list[place] = row;
        experts[place] = e;
      }
      count += __popc(here);
    }
    if (threadIdx.x == 0) *count_of_all = count;
  }
  __syncthreads();
  return *count_of_all;
}

/// Computes the factors of the products of segments.
__device__ __forceinline__ void weigh_segments(const SparseArgs& a, const int* list, const int* experts,
                                               int segments, float* weights) {
  for (int s = static_cast<int>(threadIdx.x); s < segments; s += static_cast<int>(blockDim.x))
    weights[s] = a.global_scale[experts[s]] * (a.row_weight ? a.row_weight[list[s]] : 1.0f);
  __syncthreads();
}

/// The position of the next step of a warp: the segment (an expert along K), and the K step in the segment.
struct StepCursor {
  int segment, step;
  __device__ __forceinline__ void advance(int by, int steps) {
    step += by;
    while (step >= steps) step -= steps, ++segment;
  }
};

}  // namespace twofour::cuda
