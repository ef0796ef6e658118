#include <algorithm>

#include "kernels/attention/device_compressed.cuh"

namespace twofour::cuda {
namespace {

constexpr int kScoreThreads = 128, kScoreWarps = kScoreThreads / 32;
/// The number of entries that a warp scores at a time.
constexpr int kEntries = 4;
constexpr int kChooseThreads = 512, kChooseWarps = kChooseThreads / 32;

/// The number of entries that a token may see; 0 if it sees all of them.
__device__ __forceinline__ int64_t entries_to_score(const DeviceEntryScores& in, int64_t token) {
  const int64_t count = (begin_of(in.tokens) + token + 1) / in.ratio;
  return count > in.most ? count : 0;
}

/// The floats of shared memory of a block that scores entries: keys, then queries. Queries are `size` + 1
/// floats apart, so that the lanes of a warp read different banks.
int64_t score_floats(const DeviceEntryScores& in) {
  return kScoreWarps * kEntries * in.size + in.heads * (in.size + 1);
}

/// The sum over heads of weight * max(0, q k), for a token (block y) and some entries.
__global__ void __launch_bounds__(kScoreThreads) score_kernel(const __grid_constant__ DeviceEntryScores in) {
  extern __shared__ float4 shared[];
  release_successor();
  wait_for_predecessor();
  const int64_t token = blockIdx.y, count = entries_to_score(in, token);
  if (count == 0) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int size = static_cast<int>(in.size), heads = static_cast<int>(in.heads);
  float* keys = reinterpret_cast<float*>(shared) + warp * kEntries * size;
  float* queries = reinterpret_cast<float*>(shared) + kScoreWarps * kEntries * size;
  const float *from = in.q + token * heads * size, *weights = in.weights + token * in.weight_stride;
  for (int i = thread; i < heads * size; i += kScoreThreads)
    queries[i / size * (size + 1) + i % size] = from[i];
  __syncthreads();
  const int64_t step = static_cast<int64_t>(gridDim.x) * kScoreWarps * kEntries;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * kScoreWarps + warp) * kEntries; first < count;
       first += step) {
    for (int i = lane; i < kEntries * size; i += 32)
      keys[i] = first + i / size < count ? in.keys[first * size + i] : 0.0f;
    __syncwarp();
    float scores[kEntries] = {};
    for (int head = lane; head < heads; head += 32) {
      const float* q = queries + head * (size + 1);
      float products[kEntries] = {};
      for (int c = 0; c < size; c += 4) {
#pragma unroll
        for (int e = 0; e < kEntries; ++e) {
          const float4 k = *reinterpret_cast<const float4*>(keys + e * size + c);
          products[e] += q[c] * k.x + q[c + 1] * k.y + q[c + 2] * k.z + q[c + 3] * k.w;
        }
      }
#pragma unroll
      for (int e = 0; e < kEntries; ++e) {
        // A product that is no number stays none.
        scores[e] += weights[head] * (products[e] < 0 ? 0.0f : products[e]);
      }
    }
#pragma unroll
    for (int e = 0; e < kEntries; ++e) {
      const float score = sum_of_warp(scores[e]);
      if (lane == 0 && first + e < count) in.scores[token * in.entries + first + e] = score;
    }
    __syncwarp();
  }
}

/// Maps scores to integers that sort in the same order. Zeros of both signs are equal. Scores that are no
/// numbers come last.
__device__ __forceinline__ uint32_t sortable(float score) {
  if (isnan(score)) return 0;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The last of the largest scores that are chosen, and how many scores of its size are.
struct LeastChosen {
  uint32_t key;
  int equal;
};

/// Finds it digit by digit of 8 bits: counts the scores that begin like it, by their next digit.
__device__ LeastChosen find_least(const float* scores, int64_t count, int most) {
  __shared__ int counts[256];
  __shared__ LeastChosen found;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) found = {0, most};
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (thread < 256) counts[thread] = 0;
    __syncthreads();
    const uint32_t before = found.key;
    for (int64_t i = thread; i < count; i += kChooseThreads) {
      const uint32_t key = sortable(scores[i]);
      const bool begins_alike = shift == 24 || (key ^ before) >> (shift + 8) == 0;
      if (begins_alike) atomicAdd(&counts[key >> shift & 255u], 1);
    }
    __syncthreads();
    // Each lane has eight digits, lane 0 the largest ones.
    if (thread < 32) {
      const int digit0 = 255 - thread * 8, wanted = found.equal;
      int own = 0;
      for (int i = 0; i < 8; ++i) own += counts[digit0 - i];
      int up_to = own;
      for (int apart = 1; apart < 32; apart *= 2) {
        const int other = __shfl_up_sync(~0u, up_to, apart);
        if (thread >= apart) up_to += other;
      }
      int above = up_to - own;
      __syncwarp();
      if (above < wanted && wanted <= up_to) {
        int digit = digit0;
        while (above + counts[digit] < wanted) above += counts[digit--];
        found = {before | static_cast<uint32_t>(digit) << shift, wanted - above};
      }
    }
    __syncthreads();
  }
  return found;
}

/// The number of set flags of the block's threads before this one, and of all threads.
struct FlagCounts {
  int before, all;
};
__device__ __forceinline__ FlagCounts count_flags(bool flag, int (&of_warp)[kChooseWarps]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned flags = __ballot_sync(~0u, flag);
  if (lane == 0) of_warp[warp] = __popc(flags);
  __syncthreads();
  FlagCounts counts{__popc(flags & ((1u << lane) - 1)), 0};
  for (int w = 0; w < kChooseWarps; ++w) {
    if (w < warp) counts.before += of_warp[w];
    counts.all += of_warp[w];
  }
  __syncthreads();
  return counts;
}

/// Writes the entries of a token with the largest scores, in ascending order. Of equal scores the lowest
/// entry is chosen.
__global__ void __launch_bounds__(kChooseThreads)
    choose_entries_kernel(const __grid_constant__ DeviceEntryScores in) {
  __shared__ int of_warp[kChooseWarps];
  release_successor();
  wait_for_predecessor();
  const int64_t token = blockIdx.x, count = entries_to_score(in, token);
  if (count == 0) return;
  const float* scores = in.scores + token * in.entries;
  int32_t* to = in.chosen + token * in.most;
  const LeastChosen least = find_least(scores, count, static_cast<int>(in.most));
  int written = 0, equal = 0;
  for (int64_t first = 0; first < count; first += kChooseThreads) {
    const int64_t entry = first + threadIdx.x;
    const uint32_t key = entry < count ? sortable(scores[entry]) : 0;
    const bool is_equal = entry < count && key == least.key;
    const FlagCounts equals = count_flags(is_equal, of_warp);
    const bool is_chosen =
        entry < count && (key > least.key || (is_equal && equal + equals.before < least.equal));
    const FlagCounts chosen = count_flags(is_chosen, of_warp);
    if (is_chosen) to[written + chosen.before] = static_cast<int32_t>(entry);
    equal += equals.all, written += chosen.all;
  }
}

}  // namespace

void choose_entries(const DeviceEntryScores& in, Stream stream) {
  if (in.tokens.m == 0 || in.entries <= in.most) return;
  check_row_size(in.size, 0);
  const size_t shared = static_cast<size_t>(score_floats(in)) * sizeof(float);
  expect(in.size % 4 == 0 && shared <= static_cast<size_t>(shared_memory_limit()), "index of entries",
         "queries that fit shared memory",
         std::to_string(in.heads) + " heads of " + std::to_string(in.size) + " numbers");
  expect(in.tokens.m < 65536, "index of entries", "at most 65535 tokens at a time",
         std::to_string(in.tokens.m));
  const auto m = static_cast<unsigned>(in.tokens.m);
  const int64_t blocks = (in.entries + kScoreWarps * kEntries - 1) / (kScoreWarps * kEntries);
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(blocks, 2 * multiprocessors())), m);
  launch("scores of entries", stream, {grid, kScoreThreads, shared, 1, true}, score_kernel, in);
  launch("choice of entries", stream, {dim3(m), kChooseThreads, 0, 1, true}, choose_entries_kernel, in);
}

}  // namespace twofour::cuda
