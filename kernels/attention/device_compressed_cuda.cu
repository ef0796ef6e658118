#include <algorithm>

#include "kernels/attention/device_compressed.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
/// The number of rows in one launch.
constexpr int64_t kMostRows = 65535;

/// The sum of the values of a block's threads. All threads get the result.
__device__ __forceinline__ float sum_over_block(float x, float (&sums)[kWarps]) {
  x = sum_of_warp(x);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) x += sums[i];
  return x;
}

/// Multiplies a row in shared memory by the Hadamard matrix, times size^-1/2. Behind step `half`, numbers
/// whose indices differ only in bits up to that one are mixed.
__device__ __forceinline__ void spread_row(float* row, int size) {
  for (int half = 1; half < size; half *= 2) {
    for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += kThreads) {
      const int j = i / half * 2 * half + i % half;
      const float a = row[j], b = row[j + half];
      row[j] = a + b;
      row[j + half] = a - b;
    }
    __syncthreads();
  }
  const float factor = rsqrtf(static_cast<float>(size));
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) row[i] *= factor;
}

/// Turns a row in shared memory. All threads of the block call it, after a barrier.
__device__ void turn_row(const RowTurn& t, float* row, int size, int64_t position) {
  __shared__ float sums[kWarps];
  if (t.is_normed) {
    float squares = 0;
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) squares += row[i] * row[i];
    const float mean = sum_over_block(squares, sums) / static_cast<float>(size);
    const float factor = 1.0f / sqrtf(mean + static_cast<float>(t.epsilon));
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads)
      row[i] *= t.norm != nullptr ? factor * t.norm[i] : factor;
    __syncthreads();
  }
  rotate_row(row, size, t.frequencies, t.pairs, position, 1);
  __syncthreads();
  if (t.is_spread) spread_row(row, size);
  __syncthreads();
}

/// One head of a token in each block.
__global__ void __launch_bounds__(kThreads) turn_kernel(const __grid_constant__ TurnedRows t) {
  __shared__ float row[kMostRowSize];
  release_successor();
  wait_for_predecessor();
  const int size = static_cast<int>(t.size);
  float* x = t.x + blockIdx.y * t.stride + blockIdx.x * t.size;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) row[i] = x[i];
  __syncthreads();
  const int64_t position = begin_of(t.tokens) + blockIdx.y;
  turn_row(t.turn, row, size, position);
  // The token whose row this replaces is before the window.
  float* kept = t.kept != nullptr && t.tokens.m == 1 ? t.kept + position % t.kept_count * t.size : nullptr;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    x[i] = row[i];
    if (kept != nullptr) kept[i] = row[i];
  }
}

/// One of the last tokens in each block.
__global__ void __launch_bounds__(kThreads)
    keep_rows_kernel(const __grid_constant__ TokenSpan tokens, const __grid_constant__ KeptRows r) {
  release_successor();
  wait_for_predecessor();
  const int64_t i = tokens.m - 1 - blockIdx.x, position = begin_of(tokens) + i;
  const float* from = r.rows + i * r.stride;
  float* to = r.kept + position % r.count * r.size;
  for (int64_t j = threadIdx.x; j < r.size; j += kThreads) to[j] = from[j];
}

/// One entry in each block. For each of its numbers by itself, it is the mean of the tokens' values, weighted
/// by the softmax of their gates. With overlap, the tokens of the entry before count with their first row of
/// values and gates, and its own tokens with their second row.
__global__ void __launch_bounds__(kThreads) entries_kernel(const __grid_constant__ EntryMakers e) {
  __shared__ float row[kMostRowSize];
  release_successor();
  wait_for_predecessor();
  const EntryMaker& maker = e.makers[blockIdx.y];
  const int width = static_cast<int>(maker.width);
  const int64_t columns = EntryMaker::columns(maker.width, e.overlaps);
  const int64_t begin = begin_of(e.tokens), entry = begin / e.ratio + blockIdx.x, own = entry * e.ratio;
  if (e.tokens.m == 1 && e.rows.kept != nullptr) {
    // No entry from this one on needs the token whose row this replaces.
    float* kept = e.rows.kept + begin % e.rows.count * e.rows.size + maker.first;
    for (int64_t i = threadIdx.x; i < 2 * columns; i += kThreads) kept[i] = e.rows.rows[maker.first + i];
  }
  if (own + e.ratio > begin + e.tokens.m) return;  // it is not complete
  const int64_t from = e.overlaps && entry > 0 ? own - e.ratio : own;
  const auto values_of = [&](int64_t token, int channel) {
    const int64_t column = e.overlaps && token >= own ? width + channel : channel;
    return row_at(e.rows, begin, token) + maker.first + column;
  };
  const auto gate_of = [&](int64_t token, int channel) {
    const int64_t column = e.overlaps && token >= own ? width + channel : channel;
    return values_of(token, channel)[columns] + maker.bias[token % e.ratio * columns + column];
  };
  for (int channel = static_cast<int>(threadIdx.x); channel < width; channel += kThreads) {
    float most = -INFINITY, total = 0, sum = 0;
#pragma unroll 4
    for (int64_t token = from; token < own + e.ratio; ++token) most = fmaxf(most, gate_of(token, channel));
#pragma unroll 4
    for (int64_t token = from; token < own + e.ratio; ++token) {
      const float weight = expf(gate_of(token, channel) - most);
      total += weight;
      sum += weight * *values_of(token, channel);
    }
    row[channel] = sum / total;
  }
  __syncthreads();
  turn_row(maker.turn, row, width, own);
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads)
    maker.entries[entry * maker.width + i] = row[i];
}

bool is_power_of_two(int64_t x) { return x > 0 && (x & (x - 1)) == 0; }

}  // namespace

void turn_rows(const TurnedRows& t, Stream stream) {
  check_row_size(t.size, t.turn.pairs);
  expect(!t.turn.is_spread || is_power_of_two(t.size), "compressed attention", "a power of two",
         std::to_string(t.size));
  for (int64_t first = 0; first < t.tokens.m; first += kMostRows) {
    TurnedRows some = t;
    some.tokens.begin += first, some.x += first * t.stride;
    some.tokens.m = std::min(kMostRows, t.tokens.m - first);
    const dim3 grid(static_cast<unsigned>(t.heads), static_cast<unsigned>(some.tokens.m));
    launch("rows of heads", stream, {grid, kThreads, 0, 1, true}, turn_kernel, some);
  }
}

void keep_rows(const TokenSpan& tokens, const KeptRows& rows, Stream stream) {
  if (rows.kept == nullptr || tokens.m == 0) return;
  const dim3 grid(static_cast<unsigned>(std::min(tokens.m, rows.count)));
  launch("rows that are kept", stream, {grid, kThreads, 0, 1, true}, keep_rows_kernel, tokens, rows);
}

void make_entries(const EntryMakers& e, Stream stream) {
  for (int i = 0; i < e.count; ++i) {
    const EntryMaker& maker = e.makers[i];
    check_row_size(maker.width, maker.turn.pairs);
    expect(!maker.turn.is_spread || is_power_of_two(maker.width), "compressed attention", "a power of two",
           std::to_string(maker.width));
  }
  // A single token completes one entry at most, and is kept.
  const int64_t count =
      e.tokens.m == 1 ? 1 : (e.tokens.begin + e.tokens.m) / e.ratio - e.tokens.begin / e.ratio;
  if (count == 0) return;
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(e.count));
  launch("compressed entries", stream, {grid, kThreads, 0, 1, true}, entries_kernel, e);
}

}  // namespace twofour::cuda
