#include <algorithm>

#include "kernels/attention/device_compressed.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
/// The number of keys that a block takes at a time.
constexpr int kKeys = 64;
/// The number of rows in one launch.
constexpr int64_t kMostRows = 65535;

/// The keys of a query: the tokens of its window, then entries. Each is a value, too.
struct QueryKeys {
  int64_t begin, position;
  int window, count;       ///< number of tokens, and of all keys
  const int32_t* entries;  ///< the entries that were chosen; null: all, in order

  __device__ __forceinline__ QueryKeys(const DeviceChosenAttention& in, int64_t query) {
    begin = begin_of(in.tokens) - in.first, position = begin_of(in.tokens) + query;
    window = static_cast<int>(min(position + 1, in.window));
    const int64_t all = in.ratio > 0 ? (position + 1) / in.ratio : 0;
    count = window + static_cast<int>(min(all, in.most));
    entries = all > in.most ? in.chosen + query * in.most : nullptr;
  }
  __device__ __forceinline__ const float* row(const DeviceChosenAttention& in, int key) const {
    if (key < window) return row_at(in.rows, begin, position + 1 - window + key);
    const int64_t entry = entries != nullptr ? entries[key - window] : key - window;
    return in.entries + entry * in.size;
  }
};

/// The softmax of one head over the keys so far, in one warp.
struct RunningSoftmax {
  float most, sum;

  /// The sink is a key with the value 0.
  explicit __device__ __forceinline__ RunningSoftmax(float sink) : most(sink), sum(1) {}

  /// Turns the scores of `count` keys, `kHeads` floats apart, into weights. Returns the factor of what was
  /// summed before.
  template <int kHeads>
  __device__ __forceinline__ float add(float* scores, int count) {
    static_assert(kKeys == 64);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float a = lane < count ? scores[lane * kHeads] : -INFINITY;
    const float b = lane + 32 < count ? scores[(lane + 32) * kHeads] : -INFINITY;
    const float now = fmaxf(most, largest_of_warp(fmaxf(a, b)));
    const float factor = expf(most - now), x = expf(a - now), y = expf(b - now);
    if (lane < count) scores[lane * kHeads] = x;
    if (lane + 32 < count) scores[(lane + 32) * kHeads] = y;
    most = now;
    sum = sum * factor + sum_of_warp(x + y);
    return factor;
  }
};

/// One query of a few heads in each block, over all of its keys. A warp computes scores of kAtOnce whole keys
/// at a time, and a thread has one number in 256 of all values. Rows have at most 32 * kEach numbers.
template <int kEach, int kHeads, int kAtOnce>
__global__ void __launch_bounds__(kThreads)
    attend_chosen_kernel(const __grid_constant__ DeviceChosenAttention in) {
  constexpr int kSize = kEach * 32, kTurns = (kSize + kThreads - 1) / kThreads;
  __shared__ const float* keys[kKeys];
  __shared__ __align__(16) float scores[kKeys][kHeads];  // of a key for each head; later its weights
  __shared__ float factors[kHeads], sums[kHeads], mixed[kHeads][kSize];
  static_assert(kHeads <= kWarps && kKeys <= kThreads);
  release_successor();
  wait_for_predecessor();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int size = static_cast<int>(in.size), heads = static_cast<int>(in.heads);
  const int head0 = static_cast<int>(blockIdx.x) * kHeads;
  const int64_t query = blockIdx.y;
  const QueryKeys own(in, query);
  float q[kHeads][kEach];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float* head = in.q + (query * heads + min(head0 + h, heads - 1)) * size;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int column = lane + 32 * i;
      q[h][i] = column < size ? head[column] * in.scale : 0.0f;
    }
  }
  RunningSoftmax softmax(in.sinks[min(head0 + warp % kHeads, heads - 1)]);
  float values[kHeads][kTurns] = {};

  for (int at = 0; at < own.count; at += kKeys) {
    const int count = min(kKeys, own.count - at);
    if (thread < count) keys[thread] = own.row(in, at + thread);
    __syncthreads();

    // Scores
    for (int key = warp * kAtOnce; key < count; key += kWarps * kAtOnce) {
      const float* rows[kAtOnce];
      float products[kAtOnce][kHeads] = {};
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) rows[j] = keys[min(key + j, count - 1)];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int column = lane + 32 * i;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const float k = column < size ? rows[j][column] : 0.0f;
#pragma unroll
          for (int h = 0; h < kHeads; ++h) products[j][h] += q[h][i] * k;
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float product = sum_of_warp(products[j][h]);
          if (lane == 0 && key + j < count) scores[key + j][h] = product;
        }
      }
    }
    __syncthreads();

    // Softmax
    if (warp < kHeads) {
      const float factor = softmax.template add<kHeads>(&scores[0][warp], count);
      if (lane == 0) factors[warp] = factor;
    }
    __syncthreads();

    // Values
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kTurns; ++i) values[h][i] *= factors[h];
    }
#pragma unroll 8
    for (int key = 0; key < count; ++key) {
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const int column = thread + i * kThreads;
        const float v = column < size ? keys[key][column] : 0.0f;
#pragma unroll
        for (int h = 0; h < kHeads; ++h) values[h][i] += scores[key][h] * v;
      }
    }
    __syncthreads();
  }

  if (warp < kHeads && lane == 0) sums[warp] = softmax.sum;
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int column = thread + i * kThreads;
      if (column < size) mixed[h][column] = values[h][i] / sums[h];
    }
  }
  __syncthreads();
  // The sum mixes values that turned by their own positions. Turned back by the query's, relative positions
  // are left.
  for (int h = 0; h < kHeads; ++h) rotate_row(mixed[h], size, in.frequencies, in.pairs, own.position, -1);
  __syncthreads();
  const int of_group = heads / static_cast<int>(in.groups);
  for (int h = 0; h < min(kHeads, heads - head0); ++h) {
    const int64_t group = (head0 + h) / of_group, head = (head0 + h) % of_group;
    float* out = in.out + ((group * in.tokens.m + query) * of_group + head) * size;
    for (int column = thread; column < size; column += kThreads) out[column] = mixed[h][column];
  }
}

template <int kEach, int kHeads, int kAtOnce>
void start_attend_chosen(const DeviceChosenAttention& in, Stream stream) {
  const dim3 grid(static_cast<unsigned>((in.heads + kHeads - 1) / kHeads),
                  static_cast<unsigned>(in.tokens.m));
  launch("attention to entries", stream, {grid, kThreads, 0, 1, true},
         attend_chosen_kernel<kEach, kHeads, kAtOnce>, in);
}

/// A single query has few blocks, so these have fewer heads and more keys on their way.
template <int kEach>
void start_attend_chosen(const DeviceChosenAttention& in, Stream stream) {
  in.tokens.m == 1 ? start_attend_chosen<kEach, 2, 4>(in, stream)
                   : start_attend_chosen<kEach, 4, 1>(in, stream);
}

}  // namespace

void attend_chosen(const DeviceChosenAttention& in, Stream stream) {
  check_row_size(in.size, in.pairs);
  expect(in.heads > 0 && in.groups > 0 && in.heads % in.groups == 0, "attention to entries",
         "heads in groups", std::to_string(in.heads) + " in " + std::to_string(in.groups));
  expect(in.tokens.m <= kMostRows, "attention to entries", "at most 65535 queries at a time",
         std::to_string(in.tokens.m));
  if (in.tokens.m == 0) return;
  if (in.size <= 64) return start_attend_chosen<2>(in, stream);
  if (in.size <= 128) return start_attend_chosen<4>(in, stream);
  if (in.size <= 256) return start_attend_chosen<8>(in, stream);
  start_attend_chosen<16>(in, stream);
}

}  // namespace twofour::cuda
