#include <algorithm>

#include "kernels/attention/device_attention.h"
#include "kernels/attention/device_heads.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

/// The number of query heads in a block that share a key head. Each of four lanes has the weights of one
/// head.
constexpr int kHeads = 4;
/// The largest number of parts of a head. One warp has a lane for each part.
constexpr int kMostSplits = 32;

struct SplitPlan {
  int chunks, splits;  ///< `chunks` divide the heads of a group, `splits` the keys
};
SplitPlan split_plan(const DeviceAttention& in) {
  const auto chunks = static_cast<int>((in.heads / in.kv_heads + kHeads - 1) / kHeads);
  const auto others = static_cast<int>(in.kv_heads) * chunks;
  return {chunks, std::clamp(multiprocessors() / others, 1, kMostSplits)};
}

/// The shared memory of a block, for heads of at most 32 * kEach numbers. The code is short and uses few
/// registers: in a running model, instructions must be fetched each time, and the product after this kernel
/// starts early if there is room.
template <int kEach>
struct Shared {
  static constexpr int kSize = kEach * 32, kKeys = kEach <= 4 ? 72 : 48;
  /// The stride of rows of keys allows eight rows to be read at once.
  static constexpr int kKeyStride = kSize + 4;
  /// The number of floats of a block's result for a head: the largest score, the sum of weights, and from the
  /// fifth float on the values.
  static constexpr int kPartStride = kSize + 4;

  float keys[kKeys][kKeyStride], values[kKeys][kSize];
  float q[kHeads][kSize], own[2][kSize];
  float4 weights[kKeys];  ///< weights of a key for each head
  float most[kWarps][kHeads], sums[kWarps][kHeads], factors[kHeads];
  float found[kHeads][kMostSplits];
  int is_last;
};

/// Copies `rows` rows of `size` numbers. Source rows are `from_stride` numbers apart, and destination rows
/// `to_stride`. One warp copies a row.
__device__ __noinline__ void copy_rows(const float* from, int64_t from_stride, int rows, int size,
                                       uint32_t to, int to_stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = static_cast<int>(threadIdx.x) / 32;
  const bool is_wide = size % 4 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
  from += first * from_stride, to += static_cast<uint32_t>(first * to_stride) * 4;
#pragma unroll 1
  for (int row = first; row < rows; row += kWarps) {
#pragma unroll 1
    for (int i = is_wide ? lane * 4 : lane; i < size; i += is_wide ? 128 : 32)
      is_wide ? copy_async16(to + i * 4, from + i) : copy_async4(to + i * 4, from + i);
    from += kWarps * from_stride, to += static_cast<uint32_t>(kWarps * to_stride) * 4;
  }
  commit_copies();
}

/// Computes the factor of each part of a head, and 0 for parts after the last. One warp works on each head.
__device__ __forceinline__ void weigh_parts(const DeviceAttention& in, const float* parts, int head0,
                                            int heads, int splits, int stride,
                                            float (&found)[kHeads][kMostSplits]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (warp >= kHeads) return;
  const int64_t head = head0 + min(warp, heads - 1);
  float2 figures = {-INFINITY, 0};
  if (lane < splits)
    figures = __ldcg(reinterpret_cast<const float2*>(parts + (head * splits + lane) * stride));
  const float sink = in.sinks != nullptr ? in.sinks[head] : -INFINITY;
  const float most = largest_of_warp(fmaxf(sink, figures.x));
  const float factor = expf(figures.x - most);
  float total = sum_of_warp(figures.y * factor);
  if (in.sinks != nullptr) total += expf(sink - most);
  found[warp][lane] = factor * __frcp_rn(total);
}

/// Reduces the results of all blocks for the heads. The last block calls it.
template <int kEach>
__device__ __forceinline__ void join_parts(const DeviceAttention& in, int head0, int heads, int splits,
                                           const float* parts, Shared<kEach>& shared, float* out) {
  constexpr int kSize = Shared<kEach>::kSize, kStride = Shared<kEach>::kPartStride;
  const int thread = static_cast<int>(threadIdx.x), value_size = static_cast<int>(in.value_size);
  // A thread has two numbers of a head. It loads all parts of these numbers before it uses any.
  constexpr int kAhead = 16, kPairs = kSize / 2, kRounds = (kHeads * kPairs + kThreads - 1) / kThreads;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int i = round * kThreads + thread, h = min(i / kPairs, kHeads - 1), column = i % kPairs * 2;
    const float* part = parts + (head0 + min(h, heads - 1)) * splits * kStride;
    float2 some[kAhead], value = {0, 0};
    const auto fetch = [&](int s0) {
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        some[s] = {0, 0};
        if (s0 + s < splits)
          some[s] = __ldcg(reinterpret_cast<const float2*>(part + (s0 + s) * kStride + 4 + column));
      }
    };
    fetch(0);
    if (round == 0) {
      weigh_parts(in, parts, head0, heads, splits, kStride, shared.found);
      __syncthreads();
    }
#pragma unroll 1
    for (int s0 = 0;;) {
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        const float by = shared.found[h][s0 + s];
        value.x += some[s].x * by, value.y += some[s].y * by;
      }
      s0 += kAhead;
      if (s0 >= splits) break;
      fetch(s0);
    }
    float* to = out + (head0 + h) * value_size + column;
    if (i >= heads * kPairs) continue;
    if (column < value_size) to[0] = value.x;
    if (column + 1 < value_size) to[1] = value.y;
  }
}

/// Computes one query of up to four heads of a group, over a share of the keys, a few keys at a time. The
/// last block for these heads adds the results of all blocks.
template <int kEach>
__global__ void __launch_bounds__(kThreads, kEach <= 4 ? 2 : 1)
    attend_one_kernel(const __grid_constant__ DeviceAttention in, const __grid_constant__ PreparedHeads own,
                      float* out, float* parts, int32_t* done, int chunks) {
  using Room = Shared<kEach>;
  constexpr int kSize = Room::kSize, kStride = Room::kPartStride, kKeys = Room::kKeys;
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  Room& shared = *reinterpret_cast<Room*>(shared_bytes);
  const int group = static_cast<int>(in.heads / in.kv_heads), kv = static_cast<int>(blockIdx.x) / chunks;
  const int first = static_cast<int>(blockIdx.x) % chunks * kHeads;  // of the group
  const int heads = min(kHeads, group - first), head0 = kv * group + first;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int head_size = static_cast<int>(in.head_size), value_size = static_cast<int>(in.value_size);
  // The position and the keys before it are complete, because the preceding kernel let this kernel start only
  // after its own predecessors had ended.
  const int position = *in.position, keys = position + 1;
  const int from = in.window > 0 ? max(0, keys - static_cast<int>(in.window)) : 0;
  const int splits = static_cast<int>(gridDim.y), each = max((keys - from + splits - 1) / splits, 16);
  const int begin = from + static_cast<int>(blockIdx.y) * each, end = min(keys, begin + each);
  const int own_key = position >= begin && position < end ? position - begin : -1;  // of the keys here
  const int64_t key_step = in.kv_heads * head_size, value_step = in.kv_heads * value_size;
  const auto copy_keys = [&](int key) {
    copy_rows(in.k + key * key_step + kv * head_size, key_step, min(kKeys, min(position, end) - key),
              head_size, shared_address(shared.keys), Room::kKeyStride);
  };
  const auto copy_values = [&](int key) {
    copy_rows(in.v + key * value_step + kv * value_size, value_step, min(kKeys, min(position, end) - key),
              value_size, shared_address(shared.values), kSize);
  };
  copy_keys(begin);
  copy_values(begin);

  // Prepare the heads of the token: the queries, then the key and the value, with one warp for each.
  static_assert(kHeads + 2 <= kWarps);
  {
    // Write zeros after a head, and for heads that the group lacks.
#pragma unroll 1
    for (int i = thread; i < kHeads * kSize; i += kThreads) (&shared.q[0][0])[i] = 0;
#pragma unroll 1
    for (int i = thread; i < kKeys * (kSize - head_size); i += kThreads)
      shared.keys[i / (kSize - head_size)][head_size + i % (kSize - head_size)] = 0;
    const int which = max(0, warp - heads + 1);
    const HeadRows& row = own.rows[min(which, 2)];
    const HeadAhead<kEach> ahead(row, position);
    __syncthreads();
    wait_for_predecessor();
    release_successor();
    if (warp < heads + (own_key >= 0 ? 2 : 0)) {
      float* to = which == 0 ? shared.q[warp] : shared.own[which - 1];
      prepare_head(row, ahead, head_of(row, row.x, which == 0 ? head0 + warp : kv), to);
      if (which == 0) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) to[lane + 32 * i] *= in.scale;
      } else {
        float* stored = row.out + (static_cast<int64_t>(position) * in.kv_heads + kv) * row.head_size;
        const int own_row = min(own_key, kKeys - 1);
        float* staged = which == 1 ? shared.keys[own_row] : shared.values[own_row];
#pragma unroll 1
        for (int i = lane; i < row.head_size; i += 32) {
          stored[i] = to[i];
          if (own_key < kKeys) staged[i] = to[i];
        }
      }
    }
  }

  // Four lanes share a key. Each has a quarter of the key's numbers, and later the weight of one head. For
  // the values, a thread has one number of all four heads, for some of the keys.
  constexpr int kTurns = kThreads / kSize, kPass = kThreads / 4;
  const int quarter = lane % 4, d = thread % kSize, turn = thread / kSize;
  const auto weight_of = [&](int key) -> float& {
    return reinterpret_cast<float*>(&shared.weights[key])[quarter];
  };
  float most = -INFINITY, sum = 0, mixed[kHeads] = {};
#pragma unroll 1
  for (int at = begin; at < end; at += kKeys) {
    const int count = min(kKeys, end - at);
    const int own_row = own_key - (at - begin);
    if (at != begin && own_row >= 0 && own_row < kKeys) {
#pragma unroll 1
      for (int i = thread; i < head_size; i += kThreads) shared.keys[own_row][i] = shared.own[0][i];
#pragma unroll 1
      for (int i = thread; i < value_size; i += kThreads) shared.values[own_row][i] = shared.own[1][i];
    }
    wait_copies<1>();
    __syncthreads();
    float now = most;
#pragma unroll 1
    for (int key = thread / 4; key - lane / 4 < count; key += kPass) {
      float products[kHeads] = {}, score = -INFINITY;
#pragma unroll 2
      for (int i = quarter * 4; i < kSize; i += 16) {
        const float4 k = *reinterpret_cast<const float4*>(&shared.keys[min(key, kKeys - 1)][i]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float4 q = *reinterpret_cast<const float4*>(&shared.q[h][i]);
          products[h] += q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w;
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        products[h] += __shfl_xor_sync(~0u, products[h], 1);
        products[h] += __shfl_xor_sync(~0u, products[h], 2);
        if (quarter == h) score = products[h];
      }
      if (key >= count) continue;
      weight_of(key) = score;
      now = fmaxf(now, score);
    }
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2) now = fmaxf(now, __shfl_xor_sync(~0u, now, apart));
    if (lane < kHeads) shared.most[warp][lane] = now;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) now = fmaxf(now, shared.most[w][quarter]);
    const float factor = expf(most - now);
    most = now, sum *= factor;
    if (thread < kHeads) shared.factors[thread] = factor;
#pragma unroll 1
    for (int key = thread / 4; key < count; key += kPass) {
      const float weight = expf(weight_of(key) - now);
      sum += weight;
      weight_of(key) = weight;
    }
    if (at + kKeys < end) {
      copy_keys(at + kKeys);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    if (d < value_size && turn < kTurns) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) mixed[h] *= shared.factors[h];
#pragma unroll 4
      for (int key = turn; key < count; key += kTurns) {
        const float4 w = shared.weights[key];
        const float v = shared.values[key][d];
        mixed[0] += w.x * v, mixed[1] += w.y * v, mixed[2] += w.z * v, mixed[3] += w.w * v;
      }
    }
    if (at + kKeys >= end) break;
    __syncthreads();
    copy_values(at + kKeys);
  }

  // Warps
#pragma unroll
  for (int apart = 4; apart < 32; apart *= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  if (lane < kHeads) shared.sums[warp][lane] = sum;
  float4* others = reinterpret_cast<float4*>(&shared.keys[0][0]);  // [kTurns - 1][kSize]
  if (turn > 0 && turn < kTurns) others[thread - kSize] = {mixed[0], mixed[1], mixed[2], mixed[3]};
  __syncthreads();
  const auto part_of = [&](int h) {
    return parts + ((head0 + h) * splits + static_cast<int>(blockIdx.y)) * kStride;
  };
  if (turn == 0) {
#pragma unroll
    for (int t = 0; t < kTurns - 1; ++t) {
      const float4 other = others[t * kSize + d];
      mixed[0] += other.x, mixed[1] += other.y, mixed[2] += other.z, mixed[3] += other.w;
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
      if (h < heads && d < value_size) part_of(h)[4 + d] = mixed[h];
  }
  if (thread < heads) {
    float sums = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sums += shared.sums[w][thread];
    *reinterpret_cast<float2*>(part_of(thread)) = make_float2(most, sums);
  }

  // Blocks
  __syncthreads();
  if (thread == 0) {
    shared.is_last = add_acquire_release(done + blockIdx.x, 1) == splits - 1;
    if (shared.is_last) done[blockIdx.x] = 0;
  }
  __syncthreads();
  if (!shared.is_last) return;
  join_parts<kEach>(in, head0, heads, splits, parts, shared, out);
}

int each_of(const DeviceAttention& in) {
  const int64_t size = std::max(in.head_size, in.value_size);
  return size <= 64 ? 2 : size <= 128 ? 4 : size <= 192 ? 6 : 8;
}

int64_t counters_bytes(const DeviceAttention& in, const SplitPlan& plan) {
  return align_up(in.kv_heads * plan.chunks * int64_t{sizeof(int32_t)});
}

}  // namespace

size_t attend_one_workspace(const DeviceAttention& in) {
  check_heads(in);
  const SplitPlan plan = split_plan(in);
  return static_cast<size_t>(counters_bytes(in, plan) +
                             in.heads * plan.splits * (each_of(in) * 32 + 4) * int64_t{sizeof(float)});
}

void attend_one(const DeviceAttention& in, const PreparedHeads& heads, float* out, void* workspace,
                Stream stream) {
  check_heads(in);
  expect(in.position != nullptr && heads.count == 3 && heads.rows[1].out == in.k && heads.rows[2].out == in.v,
         "attention of one query", "the token's query, key and value", "others");
  const SplitPlan plan = split_plan(in);
  auto* done = static_cast<int32_t*>(workspace);
  auto* parts = reinterpret_cast<float*>(static_cast<char*>(workspace) + counters_bytes(in, plan));
  const Launch how{dim3(static_cast<unsigned>(in.kv_heads * plan.chunks), static_cast<unsigned>(plan.splits)),
                   kThreads, 0, 1, true};
  const auto start = [&]<int kEach>() {
    Launch with = how;
    with.shared = sizeof(Shared<kEach>);
    launch("attention of one query", stream, with, attend_one_kernel<kEach>, in, heads, out, parts, done,
           plan.chunks);
  };
  switch (each_of(in)) {
    case 2:
      return start.template operator()<2>();
    case 4:
      return start.template operator()<4>();
    case 6:
      return start.template operator()<6>();
    default:
      return start.template operator()<8>();
  }
}

}  // namespace twofour::cuda
