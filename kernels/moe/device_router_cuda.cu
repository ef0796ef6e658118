#include "kernels/device/launch.cuh"
#include "kernels/floats/device_rows.cuh"
#include "kernels/moe/device_router.h"

namespace twofour::cuda {
namespace {

constexpr int kMostGroups = 64;

__device__ __forceinline__ float total_of_warp(float x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}

/// Sorts as the floats do, 0 below all of them.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Of `count` keys in shared memory the place of the largest, the first of equal ones, which becomes 0.
__device__ int take_largest(uint32_t* keys, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t most = 0;
  int place = count;
  for (int i = lane; i < count; i += 32) {
    if (keys[i] > most) most = keys[i], place = i;
  }
  const uint32_t largest = __reduce_max_sync(~0u, most);
  place = static_cast<int>(__reduce_min_sync(~0u, most == largest ? static_cast<unsigned>(place) : ~0u));
  if (place >= count) return 0;
  if (lane == 0) keys[place] = 0;
  __syncwarp();
  return place;
}

/// Takes experts out of the choice whose group is not among the best.
__device__ void keep_groups(const RouterRule& r, const float* choice, uint32_t* keys) {
  __shared__ uint32_t groups[kMostGroups];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int size = static_cast<int>(r.experts / r.groups), count = static_cast<int>(r.groups);
  for (int g = lane; g < count; g += 32) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = g * size; i < (g + 1) * size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    groups[g] = ordered(r.sums_two ? first + second : first);
  }
  __syncwarp();
  uint64_t kept = 0;
  for (int64_t i = 0; i < r.kept_groups; ++i) kept |= uint64_t{1} << take_largest(groups, count);
  for (int e = lane; e < r.experts; e += 32) {
    if ((kept >> (e / size) & 1) == 0) keys[e] = 1;
  }
  __syncwarp();
}

/// The choice for one token, by a warp.
__device__ void choose_for_token(const RouterRule& r, const float* logits, int32_t* ids, float* weights,
                                 int32_t* error) {
  __shared__ float scores[kMostRouted];
  __shared__ float choice[kMostRouted];
  __shared__ uint32_t keys[kMostRouted];
  const int lane = static_cast<int>(threadIdx.x) % 32, experts = static_cast<int>(r.experts);
  float most = -INFINITY, sum = 0;
  for (int base = lane; base < experts; base += 128) {
    float some[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) some[i] = base + 32 * i < experts ? __ldcg(logits + base + 32 * i) : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (base + 32 * i >= experts) break;
      if (!isfinite(some[i])) *error = 1;
      scores[base + 32 * i] = some[i];
      most = fmaxf(most, some[i]);
    }
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
  for (int e = lane; e < experts; e += 32) {
    const float x = scores[e];
    scores[e] = r.sigmoid ? 1.0f / (1.0f + expf(-x)) : expf(x - most);
    sum += scores[e];
  }
  sum = total_of_warp(sum);
  const bool is_corrected = r.correction != nullptr;
  for (int e = lane; e < experts; e += 32) {
    if (!r.sigmoid) scores[e] /= sum;
    choice[e] = scores[e] + (is_corrected ? r.correction[e] : 0.0f);
    keys[e] = ordered(choice[e]);
  }
  __syncwarp();
  if (r.groups > 1) keep_groups(r, choice, keys);
  double chosen = r.sigmoid ? 1e-20 : 0;
  for (int64_t t = 0; t < r.top_k; ++t) {
    const int e = take_largest(keys, experts);
    chosen += static_cast<double>(scores[e]);
    if (lane == 0) {
      ids[t] = e;
      choice[t] = static_cast<float>(e);  // scores for the choice are keys by now
    }
  }
  __syncwarp();
  const double factor = r.scaling / (r.renormalized ? chosen : 1);
  for (int64_t t = lane; t < r.top_k; t += 32)
    weights[t] = static_cast<float>(static_cast<double>(scores[static_cast<int>(choice[t])]) * factor);
}

__global__ void __launch_bounds__(32) choose_kernel(const __grid_constant__ RouterRule r, const float* logits,
                                                    int32_t* ids, float* weights, int32_t* error) {
  release_successor();
  wait_for_predecessor();
  const int64_t token = blockIdx.x;
  choose_for_token(r, logits + token * r.experts, ids + token * r.top_k, weights + token * r.top_k, error);
}

/// Logits by a warp each; the last block chooses. Weights are asked for before the kernels before this end.
template <bool kIsBf16>
__global__ void __launch_bounds__(kRowThreads) route_kernel(const __grid_constant__ RoutedToken t) {
  extern __shared__ float4 shared[];
  __shared__ bool is_last;
  release_successor();
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  RowAhead<MatrixFormat::bf16> ahead;
  if (kIsBf16 && e < t.router.n) ahead.fetch(t.router, e, threadIdx.x % 32 * 8);
  wait_for_predecessor();
  const SharedRow x{reinterpret_cast<float*>(shared), (t.router.k + 7) / 8 * 4};
  load_input(t.in, 0, t.router.k, x);
  if (blockIdx.x == 0) {
    for (int64_t i = threadIdx.x; i < t.router.k; i += kRowThreads) t.normed[i] = x.at(i);
  }
  if (e < t.router.n) {
    float sum;
    if constexpr (kIsBf16) {
      sum = sum_of_warp(dot_row(t.router, e, x, ahead));
    } else {
      sum = dot_any_row(t.router, e, x);
    }
    if (threadIdx.x % 32 == 0)
      t.logits[e] = sum * t.router.global_scale + (t.router.bias != nullptr ? t.router.bias[e] : 0.0f);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(t.done, 1) == static_cast<int32_t>(gridDim.x) - 1;
    if (is_last) *t.done = 0;
  }
  __syncthreads();
  if (!is_last || threadIdx.x >= 32) return;
  __threadfence();
  choose_for_token(t.rule, t.logits, t.ids, t.weights, t.error);
}

void check_rule(const RouterRule& r) {
  expect(r.experts > 0 && r.experts <= kMostRouted && r.groups <= kMostGroups, "router",
         "at most " + std::to_string(kMostRouted) + " experts in 64 groups for CUDA",
         std::to_string(r.experts) + " in " + std::to_string(r.groups));
  expect(r.top_k > 0 && r.top_k <= r.experts, "router", "1 to all experts a token", std::to_string(r.top_k));
}

}  // namespace

void choose_experts(const RouterRule& r, const float* logits, int64_t m, int32_t* ids, float* weights,
                    int32_t* error, Stream stream) {
  if (m == 0) return;
  check_rule(r);
  launch("router", stream, {dim3(static_cast<unsigned>(m)), 32, 0, 1, true}, choose_kernel, r, logits, ids,
         weights, error);
}

void route_token(const RoutedToken& t, Stream stream) {
  check_rule(t.rule);
  expect(t.router.n == t.rule.experts, "router", std::to_string(t.rule.experts) + " rows",
         std::to_string(t.router.n));
  const size_t shared = row_shared(t.router.k);
  constexpr size_t kMost = size_t{32} << 10;  // beside what the choice takes
  expect(shared <= kMost, "router", "a row that fits shared memory", std::to_string(t.router.k) + " numbers");
  launch(
      "router", stream,
      {dim3(static_cast<unsigned>((t.router.n + kRowWarps - 1) / kRowWarps)), kRowThreads, shared, 1, true},
      t.router.format == MatrixFormat::bf16 ? route_kernel<true> : route_kernel<false>, t);
}

}  // namespace twofour::cuda
