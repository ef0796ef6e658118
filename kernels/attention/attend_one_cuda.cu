#include <algorithm>

#include "kernels/attention/device_attention.h"
#include "kernels/attention/device_heads.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

/// Query heads that a block has of one key head.
constexpr int kHeads = 4;
constexpr int kMostSplits = 64;
/// Keys that a warp of attend_one has under way.
constexpr int kKeysAtOnce = 4;

struct SplitPlan {
  int chunks, splits;  ///< of the heads of a group, and of the keys
};
SplitPlan split_plan(const DeviceAttention& in) {
  const auto chunks = static_cast<int>((in.heads / in.kv_heads + kHeads - 1) / kHeads);
  const auto others = static_cast<int>(in.kv_heads) * chunks;
  return {chunks, std::clamp(multiprocessors() / others, 1, kMostSplits)};
}

/// Adds up numbers of lanes `kApart` apart: the lower lane keeps the first half, the upper one the second.
template <int kApart, int kCount>
__device__ __forceinline__ void halve(float (&x)[16]) {
  const bool is_upper = (threadIdx.x & kApart) != 0;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float sent = is_upper ? x[i] : x[i + kCount / 2], kept = is_upper ? x[i + kCount / 2] : x[i];
    x[i] = kept + __shfl_xor_sync(~0u, sent, kApart);
  }
}
/// Sums over a warp of 16 numbers a lane: lanes 2 i and 2 i + 1 have that of the i-th.
__device__ __forceinline__ float sums_of_warp(float (&x)[16]) {
  halve<16, 16>(x);
  halve<8, 8>(x);
  halve<4, 4>(x);
  halve<2, 2>(x);
  return x[0] + __shfl_xor_sync(~0u, x[0], 1);
}

/// One query of up to four heads of a group, and a share of the keys. The last block of the heads adds up
/// what all have found.
template <int kEach>
__global__ void __launch_bounds__(kThreads, kEach <= 4 ? 2 : 1)
    attend_one_kernel(const __grid_constant__ DeviceAttention in, const __grid_constant__ PreparedHeads own,
                      float* out, float* parts, int32_t* done, int chunks) {
  constexpr int kSize = kEach * 32, kStride = kSize + 4;
  static_assert(kKeysAtOnce * kHeads == 16);
  __shared__ float found[kWarps][kHeads][kSize], largest_of[kWarps][kHeads], sum_of[kWarps][kHeads];
  __shared__ bool is_last;
  const int64_t group = in.heads / in.kv_heads, kv = blockIdx.x / chunks;
  const int64_t first = static_cast<int64_t>(blockIdx.x) % chunks * kHeads;  // of the group
  const int heads = static_cast<int>(min(int64_t{kHeads}, group - first));
  const int64_t head0 = kv * group + first;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head_size = static_cast<int>(in.head_size), value_size = static_cast<int>(in.value_size);
  // The position and the keys before it are there: the kernel before this one has let it start once those
  // before that had ended.
  const int64_t position = *in.position, keys = position + 1;
  const int64_t from = in.window > 0 ? max(int64_t{0}, keys - in.window) : 0;
  const int64_t each = max((keys - from + gridDim.y - 1) / gridDim.y, int64_t{16});
  const int64_t begin = from + blockIdx.y * each, end = min(position, begin + each);
  const bool has_own = begin <= position && position < begin + each;

  float a[kKeysAtOnce][kEach], b[kKeysAtOnce][kEach];
  const auto fetch = [&](int64_t key) {
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      const int64_t row = min(key + j * kWarps, position) * in.kv_heads + kv;
      const float *k = in.k + row * head_size + lane, *v = in.v + row * value_size + lane;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        a[j][i] = lane + 32 * i < head_size ? k[32 * i] : 0.0f;
        b[j][i] = lane + 32 * i < value_size ? v[32 * i] : 0.0f;
      }
    }
  };

  // The token's own heads: queries, then the key and the value, a warp each
  static_assert(kHeads + 2 <= kWarps);
  float q[kHeads][kEach], mixed[kHeads][kEach] = {};
  const auto prepare = [&] {
    const int which = max(0, warp - heads + 1);
    const HeadRows& row = own.rows[min(which, 2)];
    const HeadAhead<kEach> ahead(row, position);
    wait_for_predecessor();
    release_successor();
    if (warp < heads + (has_own ? 2 : 0)) {
      float* to = which == 0 ? found[warp][0] : found[which - 1][1];
      prepare_head(row, ahead, row.x + (which == 0 ? head0 + warp : kv) * row.head_size, to);
      float* stored = row.out + (position * in.kv_heads + kv) * row.head_size;
      for (int i = lane; which != 0 && i < row.head_size; i += 32) stored[i] = to[i];
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int d = lane + 32 * i;
        q[h][i] = h < heads && d < head_size ? found[h][0][d] * in.scale : 0.0f;
      }
    }
  };

  // Keys, the first ones asked for ahead of the token. Lanes 2 (4 j + h) and the next have the score of the
  // j-th and head h, the largest score of h so far, and of the weights of h those of every fourth.
  float largest = -INFINITY, sum = 0;
  bool is_first = true, is_own_left = has_own && warp == 0;
#pragma unroll 1
  for (int64_t key = begin + warp;; key += kWarps * kKeysAtOnce) {
    int64_t count = (end - key + kWarps - 1) / kWarps;
    if (key < end) fetch(key);
    if (is_first) prepare();
    is_first = false;
    if (key >= end) {
      if (!is_own_left) break;
      is_own_left = false, count = 1;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int d = lane + 32 * i;
        a[0][i] = d < head_size ? found[0][1][d] : 0.0f;
        b[0][i] = d < value_size ? found[1][1][d] : 0.0f;
      }
    }
    float scores[kKeysAtOnce * kHeads];
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float& score = scores[j * kHeads + h];
        score = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) score += q[h][i] * a[j][i];
      }
    }
    const float mine = sums_of_warp(scores), score = lane / (2 * kHeads) < count ? mine : -INFINITY;
    float now = fmaxf(largest, score);
    now = fmaxf(now, __shfl_xor_sync(~0u, now, 8));
    now = fmaxf(now, __shfl_xor_sync(~0u, now, 16));
    const float factor = expf(largest - now), weight = expf(score - now);
    largest = now;
    sum = sum * factor + weight;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float by = __shfl_sync(~0u, factor, 2 * h);
#pragma unroll
      for (int i = 0; i < kEach; ++i) mixed[h][i] *= by;
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
        const float w = __shfl_sync(~0u, weight, 2 * (kHeads * j + h));
        // What is masked may be no number.
#pragma unroll
        for (int i = 0; i < kEach; ++i) mixed[h][i] += w > 0 ? w * b[j][i] : 0.0f;
      }
    }
  }
  sum += __shfl_xor_sync(~0u, sum, 8);
  sum += __shfl_xor_sync(~0u, sum, 16);
  __syncthreads();

  // Warps
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) found[warp][h][lane + 32 * i] = mixed[h][i];
    if (lane == 2 * h) largest_of[warp][h] = largest, sum_of[warp][h] = sum;
  }
  __syncthreads();
  if (warp < heads) {
    const int h = warp;
    float most = -INFINITY, sums = 0, values[kEach] = {};
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, largest_of[w][h]);
    const float base = most == -INFINITY ? 0.0f : most;
    for (int w = 0; w < kWarps; ++w) {
      const float factor = expf(largest_of[w][h] - base);
      sums += sum_of[w][h] * factor;
#pragma unroll
      for (int i = 0; i < kEach; ++i) values[i] += found[w][h][lane + 32 * i] * factor;
    }
    float* part = parts + ((head0 + h) * gridDim.y + blockIdx.y) * kStride;
#pragma unroll
    for (int i = 0; i < kEach; i += 2)
      *reinterpret_cast<float2*>(part + 4 + lane * kEach + i) = make_float2(values[i], values[i + 1]);
    if (lane == 0) part[0] = most, part[1] = sums;
  }

  // Blocks
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = add_acquire_release(done + blockIdx.x, 1) == static_cast<int32_t>(gridDim.y) - 1;
    if (is_last) done[blockIdx.x] = 0;
  }
  __syncthreads();
  if (!is_last) return;
  // Two warps share the parts of a head, eight at a time; all are asked for before any figure is used. A lane
  // has the figures of every 32nd part.
  constexpr int kShare = kWarps / kHeads, kParts = 8;
  const int h = warp % kHeads, half = warp / kHeads, splits = static_cast<int>(gridDim.y);
  const int64_t head = head0 + min(h, heads - 1);
  const float* part = parts + head * gridDim.y * kStride;
  float2 some[kParts][kEach / 2];
  const auto fetch_parts = [&](int from) {
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const float* at = part + min(from + kShare * j, splits - 1) * kStride + 4 + lane * kEach;
#pragma unroll
      for (int i = 0; i < kEach / 2; ++i) some[j][i] = __ldcg(reinterpret_cast<const float2*>(at) + i);
    }
  };
  fetch_parts(half);
  const float sink = in.sinks != nullptr ? in.sinks[head] : -INFINITY;
  float most = sink, total = 0, factors[kMostSplits / 32], sums_of_parts[kMostSplits / 32],
        values[kEach] = {};
#pragma unroll
  for (int i = 0; i < kMostSplits / 32; ++i) {
    float2 figures = {-INFINITY, 0};
    if (lane + 32 * i < splits)
      figures = __ldcg(reinterpret_cast<const float2*>(part + (lane + 32 * i) * kStride));
    factors[i] = figures.x, sums_of_parts[i] = figures.y;
    most = fmaxf(most, figures.x);
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
#pragma unroll
  for (int i = 0; i < kMostSplits / 32; ++i) {
    factors[i] = expf(factors[i] - most);
    total += sums_of_parts[i] * factors[i];
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(~0u, total, apart);
  if (in.sinks != nullptr) total += expf(sink - most);
  static_assert(kMostSplits == 64);
#pragma unroll 1
  for (int from = half; from < splits; from += kShare * kParts) {
    if (from != half) fetch_parts(from);
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const int s = from + kShare * j;
      const float found_factor = __shfl_sync(~0u, s < 32 ? factors[0] : factors[1], s % 32);
      const float factor = s < splits ? found_factor : 0.0f;
#pragma unroll
      for (int i = 0; i < kEach / 2; ++i)
        values[2 * i] += some[j][i].x * factor, values[2 * i + 1] += some[j][i].y * factor;
    }
  }
  static_assert(kWarps == 2 * kHeads);
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (half == 1) found[0][h][lane + 32 * i] = values[i];
  __syncthreads();
  if (warp >= heads) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int d = lane + 32 * i;
    if (d < value_size) out[head * value_size + d] = (values[i] + found[0][h][d]) / total;
  }
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
  const char* where = "attention of one query";
  switch (each_of(in)) {
    case 2:
      return launch(where, stream, how, attend_one_kernel<2>, in, heads, out, parts, done, plan.chunks);
    case 4:
      return launch(where, stream, how, attend_one_kernel<4>, in, heads, out, parts, done, plan.chunks);
    case 6:
      return launch(where, stream, how, attend_one_kernel<6>, in, heads, out, parts, done, plan.chunks);
    default:
      return launch(where, stream, how, attend_one_kernel<8>, in, heads, out, parts, done, plan.chunks);
  }
}

}  // namespace twofour::cuda
