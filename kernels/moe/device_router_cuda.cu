#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/floats/device_rows.cuh"
#include "kernels/moe/device_router.h"

namespace twofour::cuda {
namespace {

constexpr int kMostGroups = 64;

/// Maps floats to integers that sort in the same order. 0 is below all of them.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The index of the largest of `count` keys in shared memory. If keys are equal, the lowest index is taken.
/// Sets the key to 0.
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

/// Excludes experts whose group is not among the best groups. `groups` has room for the keys of the groups.
__device__ void keep_groups(const RouterRule& r, const float* choice, uint32_t* keys, uint32_t* groups) {
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

/// The scores of all experts, computed by one warp. They are stored for the weights, for the choice, and as
/// sortable keys.
struct Scores {
  float weights[kMostRouted], choice[kMostRouted];
  alignas(16) uint32_t keys[kMostRouted];
  uint32_t groups[kMostGroups];
  uint16_t chosen[kMostRouted];  ///< by place
};
template <class Load>
__device__ void score_experts(const RouterRule& r, const Load& load, Scores& s, int32_t* error) {
  const int lane = static_cast<int>(threadIdx.x) % 32, experts = static_cast<int>(r.experts);
  float most = -INFINITY, sum = 0;
#pragma unroll 1
  for (int base = lane; base < experts; base += 128) {
    float some[4];
    load(base, some);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (base + 32 * i >= experts) break;
      if (!isfinite(some[i])) *error = 1;
      s.weights[base + 32 * i] = some[i];
      most = fmaxf(most, some[i]);
    }
  }
  most = largest_of_warp(most);
  const bool is_softmax = r.scores == RouterScores::kSoftmax;
#pragma unroll 1
  for (int e = lane; e < experts; e += 32) {
    const float x = s.weights[e];
    const bool is_softplus = r.scores == RouterScores::kSqrtSoftplus;
    float score = expf(is_softmax ? x - most : is_softplus ? -fabsf(x) : -x);
    if (r.scores == RouterScores::kSigmoid) score = __frcp_rn(1.0f + score);
    if (is_softplus) score = sqrtf(fmaxf(x, 0.0f) + log1pf(score));
    s.weights[e] = score;
    sum += score;
  }
  const float share = is_softmax ? __frcp_rn(sum_of_warp(sum)) : 1.0f;
#pragma unroll 1
  for (int e = lane; e < (experts + 3) / 4 * 4; e += 32) {
    s.keys[e] = 0;
    if (e >= experts) continue;
    const float score = s.weights[e] * share;
    s.weights[e] = score;
    s.choice[e] = score + (r.correction != nullptr ? r.correction[e] : 0.0f);
    s.keys[e] = ordered(s.choice[e]);
  }
  __syncwarp();
  if (r.groups > 1) keep_groups(r, s.choice, s.keys, s.groups);
}

/// Chooses the experts of token number `token`, in one block. The rank of an expert is the number of experts
/// with a larger key, or with the same key and a lower id. `load(from, to)` loads the logits from + 32 i, and
/// 0 for those after the last.
template <class Load>
__device__ void choose_for_token(const RouterRule& r, int64_t token, const Load& load, int32_t* ids,
                                 float* weights, int32_t* error, Scores& s) {
  const int experts = static_cast<int>(r.experts), top_k = static_cast<int>(r.top_k);
  const int32_t* given = r.table != nullptr ? r.table + r.tokens[token] * r.top_k : nullptr;
  if (threadIdx.x < 32) score_experts(r, load, s, error);
  __syncthreads();
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x); e < experts && given == nullptr;
       e += static_cast<int>(blockDim.x)) {
    const uint32_t own = s.keys[e];
    int place = 0;
#pragma unroll 2
    for (int f = 0; f < experts; f += 4) {
      const uint4 others = *reinterpret_cast<const uint4*>(s.keys + f);
      place += others.x > own || (others.x == own && f < e);
      place += others.y > own || (others.y == own && f + 1 < e);
      place += others.z > own || (others.z == own && f + 2 < e);
      place += others.w > own || (others.w == own && f + 3 < e);
    }
    if (place < top_k) s.chosen[place] = static_cast<uint16_t>(e);
  }
#pragma unroll 1
  for (int t = static_cast<int>(threadIdx.x); t < top_k && given != nullptr;
       t += static_cast<int>(blockDim.x))
    s.chosen[t] = static_cast<uint16_t>(given[t]);
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  float sum = 0;
#pragma unroll 1
  for (int t = lane; t < top_k; t += 32) sum += s.weights[s.chosen[t]];
  sum = sum_of_warp(sum);
  const float factor =
      static_cast<float>(r.scaling) * (r.renormalized ? __frcp_rn(fmaxf(sum, 1e-20f)) : 1.0f);
#pragma unroll 1
  for (int t = lane; t < top_k; t += 32) {
    ids[t] = s.chosen[t];
    weights[t] = s.weights[s.chosen[t]] * factor;
  }
}

constexpr int kChooseThreads = 128;
__global__ void __launch_bounds__(kChooseThreads)
    choose_kernel(const __grid_constant__ RouterRule r, const float* logits, int32_t* ids, float* weights,
                  int32_t* error) {
  release_successor();
  wait_for_predecessor();
  const int64_t token = blockIdx.x;
  const auto load = [&](int from, float(&to)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[i] = from + 32 * i < r.experts ? __ldcg(logits + token * r.experts + from + 32 * i) : 0.0f;
  };
  __shared__ Scores scores;
  choose_for_token(r, token, load, ids + token * r.top_k, weights + token * r.top_k, error, scores);
}

/// Sends a logit to the warp that chooses. The logit has arrived when the upper half of its word is not zero.
__device__ __forceinline__ void send_logit(uint64_t* to, float logit) {
  store_relaxed(to, uint64_t{1} << 32 | __float_as_uint(logit));
}
/// Receives four of `count` logits, 32 apart, beginning at `from`. Logits after the last are 0. All four are
/// loaded together.
__device__ __forceinline__ void receive_logits(uint64_t* from, int count, float (&to)[4]) {
  uint64_t words[4];
  bool are_there;
  do {
    are_there = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = 32 * i < count ? load_relaxed(from + 32 * i) : uint64_t{1} << 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) are_there = are_there && words[i] >> 32 != 0;
  } while (!are_there);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (32 * i < count) store_relaxed(from + 32 * i, 0);
    to[i] = __uint_as_float(static_cast<uint32_t>(words[i]));
  }
}

/// The shared memory of a block without the row of the token. It holds `ahead` pieces per warp, and then the
/// scores.
__host__ __device__ constexpr int route_shared(int ahead) {
  const int pieces = kRowWarps * ahead * RowPiece<MatrixFormat::bf16>::kBytes;
  return pieces > static_cast<int>(sizeof(Scores)) ? pieces : static_cast<int>(sizeof(Scores));
}
static_assert(sizeof(Scores) % 16 == 0);
/// The largest number of pieces of a row that a warp copies at a time.
constexpr int kMostPieces = 4;

/// Each warp computes one logit, and the first block chooses. Copies of the first `ahead` pieces of weights
/// start before the preceding kernels end.
template <bool kIsBf16>
__global__ void __launch_bounds__(kRowThreads)
    route_kernel(const __grid_constant__ RoutedToken t, int ahead) {
  extern __shared__ float4 shared[];
  using Piece = RowPiece<MatrixFormat::bf16>;
  release_successor();
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32, k = t.router.k;
  auto& scores = *reinterpret_cast<Scores*>(shared);  // in the memory of the pieces
  uint8_t* pieces = reinterpret_cast<uint8_t*>(shared) + threadIdx.x / 32 * ahead * Piece::kBytes;
  const auto copy = [&](int64_t first) {
#pragma unroll 1
    for (int i = 0; i < ahead && first + i * Piece::kSpan < k; ++i)
      Piece::copy(t.router, e, first + i * Piece::kSpan, pieces + i * Piece::kBytes);
    commit_copies();
  };
  const SharedRow x{reinterpret_cast<float*>(shared) + route_shared(ahead) / 4, (k + 7) / 8 * 4};
  InputRow input(t.in, 0, k, x);
  if (kIsBf16 && e < t.router.n) copy(0);
  input.prepare();
  wait_for_predecessor();
  input.load();
  if (e < t.router.n) {
    float sum = 0;
    if constexpr (kIsBf16) {
#pragma unroll 1
      for (int64_t first = 0; first < k; first += ahead * Piece::kSpan) {
        if (first > 0) copy(first);
        wait_copies<0>();
        __syncwarp();
#pragma unroll 1
        for (int i = 0; i < ahead && first + i * Piece::kSpan < k; ++i)
          sum += Piece::dot(k, 0, first + i * Piece::kSpan, pieces + i * Piece::kBytes, x);
        __syncwarp();
      }
      sum = sum_of_warp(sum);
    } else {
      sum = dot_any_row(t.router, e, x);
    }
    if (threadIdx.x % 32 == 0) {
      sum *= t.router.global_scale * input.factor();
      send_logit(t.sent + e, t.router.bias != nullptr ? sum + t.router.bias[e] : sum);
    }
  }
  if (blockIdx.x != 0) return;
  const float factor = input.factor();
  for (int64_t i = threadIdx.x; i < k; i += kRowThreads) t.normed[i] = x.at(i) * factor;
  __syncthreads();
  const auto receive = [&](int from, float(&to)[4]) {
    receive_logits(t.sent + from, static_cast<int>(t.rule.experts) - from, to);
  };
  choose_for_token(t.rule, 0, receive, t.ids, t.weights, t.error, scores);
}

void check_rule(const RouterRule& r) {
  expect(r.experts > 0 && r.experts <= kMostRouted && r.groups <= kMostGroups, "router",
         "at most " + std::to_string(kMostRouted) + " experts in 64 groups for CUDA",
         std::to_string(r.experts) + " in " + std::to_string(r.groups));
  expect(r.top_k > 0 && r.top_k <= r.experts, "router", "1 to all experts a token", std::to_string(r.top_k));
  expect(r.table == nullptr || r.tokens != nullptr, "router", "the tokens of a table", "none");
}

}  // namespace

void choose_experts(const RouterRule& r, const float* logits, int64_t m, int32_t* ids, float* weights,
                    int32_t* error, Stream stream) {
  if (m == 0) return;
  check_rule(r);
  launch("router", stream, {dim3(static_cast<unsigned>(m)), kChooseThreads, 0, 1, true}, choose_kernel, r,
         logits, ids, weights, error);
}

void route_token(const RoutedToken& t, Stream stream) {
  check_rule(t.rule);
  expect(t.router.n == t.rule.experts, "router", std::to_string(t.rule.experts) + " rows",
         std::to_string(t.router.n));
  using Piece = RowPiece<MatrixFormat::bf16>;
  const bool is_bf16 = t.router.format == MatrixFormat::bf16 && Piece::takes(t.router.k, 0);
  const auto limit = static_cast<size_t>(shared_memory_limit());
  const auto shared_of = [&](int ahead) {
    return static_cast<size_t>(route_shared(ahead)) + row_shared(t.router.k);
  };
  const int64_t pieces = (t.router.k + Piece::kSpan - 1) / Piece::kSpan;
  int ahead = is_bf16 ? static_cast<int>(std::min<int64_t>(kMostPieces, pieces)) : 1;
  if (shared_of(ahead) > limit) ahead = 1;
  const size_t shared = shared_of(ahead);
  expect(shared <= limit, "router", "a row that fits shared memory", std::to_string(t.router.k) + " numbers");
  launch("router", stream, {blocks_for(t.router.n, kRowWarps), kRowThreads, shared, 1, true},
         is_bf16 ? route_kernel<true> : route_kernel<false>, t, ahead);
}

}  // namespace twofour::cuda
