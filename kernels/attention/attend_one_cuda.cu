#include <algorithm>

#include "kernels/attention/device_attention.h"
#include "kernels/attention/device_heads.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

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
  return {chunks, std::clamp(2 * multiprocessors() / others, 1, kMostSplits)};
}

/// One query of up to four heads of a group, and a share of the keys. The last block of the heads adds up
/// what all have found.
template <int kEach>
__global__ void __launch_bounds__(kThreads)
    attend_one_kernel(const __grid_constant__ DeviceAttention in, const __grid_constant__ PreparedHeads own,
                      float* out, float* parts, int32_t* done, int chunks) {
  constexpr int kSize = kEach * 32;
  __shared__ float found[kWarps][kHeads][kSize], largest_of[kWarps][kHeads], sum_of[kWarps][kHeads];
  __shared__ bool is_last;
  release_successor();
  const int64_t group = in.heads / in.kv_heads, kv = blockIdx.x / chunks;
  const int64_t first = static_cast<int64_t>(blockIdx.x) % chunks * kHeads;  // of the group
  const int heads = static_cast<int>(min(int64_t{kHeads}, group - first));
  const int64_t head0 = kv * group + first;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // The position and the keys before it are there since the token before.
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
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int d = lane + 32 * i;
        a[j][i] = d < in.head_size && key < end ? in.k[row * in.head_size + d] : 0.0f;
        b[j][i] = d < in.value_size && key < end ? in.v[row * in.value_size + d] : 0.0f;
      }
    }
  };
  fetch(begin + warp);
  wait_for_predecessor();

  // The token's own heads
  if (warp < heads)
    prepare_head(own.rows[0], own.rows[0].x + (head0 + warp) * in.head_size, position, found[warp][0]);
  if (has_own && warp < 2) {
    const HeadRows& row = own.rows[1 + warp];
    prepare_head(row, row.x + kv * row.head_size, position, found[warp][1]);
    float* to = row.out + (position * in.kv_heads + kv) * row.head_size;
    for (int64_t i = lane; i < row.head_size; i += 32) to[i] = found[warp][1][i];
  }
  __syncthreads();

  float q[kHeads][kEach], mixed[kHeads][kEach] = {}, largest[kHeads], sums[kHeads] = {}, own_scores[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    largest[h] = -INFINITY;
    own_scores[h] = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int d = lane + 32 * i;
      q[h][i] = h < heads && d < in.head_size ? found[h][0][d] * in.scale : 0.0f;
      if (has_own && d < in.head_size) own_scores[h] += q[h][i] * found[0][1][d];
    }
  }

  // Keys
  for (int64_t key = begin + warp; key < end; key += kWarps * kKeysAtOnce) {
    float scores[kKeysAtOnce][kHeads];
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        scores[j][h] = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) scores[j][h] += q[h][i] * a[j][i];
      }
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) scores[j][h] += __shfl_xor_sync(~0u, scores[j][h], apart);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float now = largest[h];
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
        if (key + j * kWarps >= end) scores[j][h] = -INFINITY;
        now = fmaxf(now, scores[j][h]);
      }
      const float factor = expf(largest[h] - now);
      largest[h] = now;
      sums[h] *= factor;
#pragma unroll
      for (int i = 0; i < kEach; ++i) mixed[h][i] *= factor;
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
        const float weight = expf(scores[j][h] - now);
        sums[h] += weight;
        // What is masked may be no number.
#pragma unroll
        for (int i = 0; i < kEach; ++i) mixed[h][i] += weight > 0 ? weight * b[j][i] : 0.0f;
      }
    }
    fetch(key + kWarps * kKeysAtOnce);
  }

  // The token's own key
  if (has_own && warp == 0) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int apart = 16; apart > 0; apart /= 2) own_scores[h] += __shfl_xor_sync(~0u, own_scores[h], apart);
      const float now = fmaxf(largest[h], own_scores[h]);
      const float factor = expf(largest[h] - now), weight = expf(own_scores[h] - now);
      largest[h] = now;
      sums[h] = sums[h] * factor + weight;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int d = lane + 32 * i;
        mixed[h][i] = mixed[h][i] * factor + (d < in.value_size ? weight * found[1][1][d] : 0.0f);
      }
    }
  }
  __syncthreads();

  // Warps
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) found[warp][h][lane + 32 * i] = mixed[h][i];
    if (lane == 0) largest_of[warp][h] = largest[h], sum_of[warp][h] = sums[h];
  }
  __syncthreads();
  const int64_t stride = kSize + 2;
  if (warp < heads) {
    const int h = warp;
    float most = -INFINITY, sum = 0, values[kEach] = {};
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, largest_of[w][h]);
    const float base = most == -INFINITY ? 0.0f : most;
    for (int w = 0; w < kWarps; ++w) {
      const float factor = expf(largest_of[w][h] - base);
      sum += sum_of[w][h] * factor;
#pragma unroll
      for (int i = 0; i < kEach; ++i) values[i] += found[w][h][lane + 32 * i] * factor;
    }
    float* part = parts + ((head0 + h) * gridDim.y + blockIdx.y) * stride;
#pragma unroll
    for (int i = 0; i < kEach; ++i) part[2 + lane + 32 * i] = values[i];
    if (lane == 0) part[0] = most, part[1] = sum;
  }

  // Blocks
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(done + blockIdx.x, 1) == static_cast<int32_t>(gridDim.y) - 1;
    if (is_last) done[blockIdx.x] = 0;
  }
  __syncthreads();
  if (!is_last || warp >= heads) return;
  __threadfence();
  const int64_t head = head0 + warp;
  const float sink = in.sinks != nullptr ? in.sinks[head] : -INFINITY;
  const float* part = parts + head * gridDim.y * stride;
  // A lane has the figures of every 32nd part.
  const int splits = static_cast<int>(gridDim.y);
  float most = sink, sum = 0, factors[kMostSplits / 32], values[kEach] = {};
#pragma unroll
  for (int i = 0; i < kMostSplits / 32; ++i) {
    factors[i] = lane + 32 * i < splits ? __ldcg(part + (lane + 32 * i) * stride) : -INFINITY;
    most = fmaxf(most, factors[i]);
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
#pragma unroll
  for (int i = 0; i < kMostSplits / 32; ++i) {
    factors[i] = expf(factors[i] - most);
    if (lane + 32 * i < splits) sum += __ldcg(part + (lane + 32 * i) * stride + 1) * factors[i];
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  if (in.sinks != nullptr) sum += expf(sink - most);
#pragma unroll
  for (int w = 0; w < kMostSplits / 32; ++w) {
#pragma unroll 8
    for (int s = 0; s < min(32, splits - 32 * w); ++s) {
      const float factor = __shfl_sync(~0u, factors[w], s);
      const float* from = part + (32 * w + s) * stride + 2 + lane;
#pragma unroll
      for (int i = 0; i < kEach; ++i) values[i] += __ldcg(from + 32 * i) * factor;
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (lane + 32 * i < in.value_size) out[head * in.value_size + lane + 32 * i] = values[i] / sum;
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
                             in.heads * plan.splits * (each_of(in) * 32 + 2) * int64_t{sizeof(float)});
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
