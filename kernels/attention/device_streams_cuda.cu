#include <algorithm>

#include "kernels/attention/device_streams.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
/// The number of rows that a warp multiplies at a time, and of floats that are fetched at once.
constexpr int kRows = 4, kLine = 32;

/// The number of blocks that share the products of a token. A single token has blocks for all
/// multiprocessors.
int64_t parts_of(int64_t m) { return m < 16 ? 128 : 8; }

/// Sums over a part (block x) of the numbers of a token (block y): the products with each row of the mixer,
/// and at last the squares. A warp computes whole sums. `sums` is [m, parts, rows + 1].
__global__ void __launch_bounds__(kThreads)
    stream_products_kernel(const __grid_constant__ StreamMixer s, const float* x, int64_t rows, float* sums) {
  release_successor();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t width = s.streams * s.hidden, parts = gridDim.x;
  const int64_t each = (width + parts - 1) / parts, first = blockIdx.x * each, end = min(width, first + each);
  if (gridDim.y == 1) {
    // The weights of a single token are on their way before the streams are complete.
    for (int64_t row = warp; row < rows; row += kWarps) {
      for (int64_t i = first + lane * kLine; i < end; i += 32 * kLine)
        fetch_ahead(s.weight + row * width + i);
    }
  }
  wait_for_predecessor();
  const float* own = x + blockIdx.y * width;
  for (int64_t row0 = warp; row0 <= rows; row0 += kRows * kWarps) {
    const float* by[kRows];
    float products[kRows] = {};
#pragma unroll
    for (int j = 0; j < kRows; ++j)
      by[j] = row0 + j * kWarps < rows ? s.weight + (row0 + j * kWarps) * width : own;
#pragma unroll 2
    for (int64_t i = first + lane; i < end; i += 32) {
      const float v = own[i];
#pragma unroll
      for (int j = 0; j < kRows; ++j) products[j] += by[j][i] * v;
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int64_t row = row0 + j * kWarps;
      const float sum = sum_of_warp(products[j]);
      if (lane == 0 && row <= rows) sums[(blockIdx.y * parts + blockIdx.x) * (rows + 1) + row] = sum;
    }
  }
}

__device__ __forceinline__ float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

/// Divides `count` numbers, `step` apart, by their sum plus epsilon.
__device__ __forceinline__ void divide_by_sum(float* x, int count, int step, float epsilon) {
  float sum = epsilon;
  for (int i = 0; i < count; ++i) sum += x[i * step];
  for (int i = 0; i < count; ++i) x[i * step] /= sum;
}

/// The sum over lanes whose numbers differ only in the bits `first` and 2 * first.
__device__ __forceinline__ float sum_of_four(float x, int first) {
  x += __shfl_xor_sync(~0u, x, first);
  return x + __shfl_xor_sync(~0u, x, 2 * first);
}

/// normalize_mix() for four streams. A lane has the number in row lane / 4 and column lane % 4; the upper
/// half of the warp does the same.
__device__ void normalize_four(const StreamMixer& s, float* a) {
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const auto epsilon = static_cast<float>(s.epsilon);
  float x = a[lane], most = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
  x = expf(x - most);
  x = x / sum_of_four(x, 1) + epsilon;
  for (int64_t turn = 0; turn < s.iterations; ++turn) {
    if (turn > 0) x = __fdividef(x, sum_of_four(x, 1) + epsilon);
    x = __fdividef(x, sum_of_four(x, 4) + epsilon);
  }
  __syncwarp();
  a[lane] = x;
}

/// Sinkhorn's normalization of a matrix [n, n] in shared memory, by one warp: a softmax of each row; then
/// columns; then rows and columns by turns.
__device__ void normalize_mix(const StreamMixer& s, float* a) {
  if (s.streams == 4) return normalize_four(s, a);
  const int lane = static_cast<int>(threadIdx.x) % 32, n = static_cast<int>(s.streams);
  const auto epsilon = static_cast<float>(s.epsilon);
  for (int row = lane; row < n; row += 32) {
    float *x = a + row * n, most = x[0];
    for (int i = 1; i < n; ++i) most = fmaxf(most, x[i]);
    for (int i = 0; i < n; ++i) x[i] = expf(x[i] - most);
    divide_by_sum(x, n, 1, 0);
    for (int i = 0; i < n; ++i) x[i] += epsilon;
  }
  __syncwarp();
  for (int64_t turn = 0; turn < s.iterations; ++turn) {
    if (turn > 0) {
      for (int row = lane; row < n; row += 32) divide_by_sum(a + row * n, n, 1, epsilon);
    }
    __syncwarp();
    for (int column = lane; column < n; column += 32) divide_by_sum(a + column, n, n, epsilon);
    __syncwarp();
  }
}

/// Reads the streams of a token (block y) with the weights that follow from the sums. The first block of a
/// token also computes its mix.
__global__ void __launch_bounds__(kThreads)
    read_streams_kernel(const __grid_constant__ StreamMixer s, const float* x, const float* sums,
                        int64_t parts, int64_t rows, float* out, float* mix) {
  extern __shared__ float values[];  // [rows + 1] sums, later weights
  release_successor();
  wait_for_predecessor();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t n = s.streams, width = n * s.hidden, token = blockIdx.y;
  const bool mixes = blockIdx.x == 0 && !s.is_head;
  const float* own = sums + token * parts * (rows + 1);
  for (int64_t row = warp; row <= rows; row += kWarps) {
    if (!mixes && row >= n && row < rows) continue;
    float sum = 0;
    for (int64_t part = lane; part < parts; part += 32) sum += own[part * (rows + 1) + row];
    sum = sum_of_warp(sum);
    if (lane == 0) values[row] = sum;
  }
  __syncthreads();
  const float mean = values[rows] / static_cast<float>(width);
  const float factor = 1.0f / sqrtf(mean + static_cast<float>(s.norm_epsilon));
  const auto epsilon = static_cast<float>(s.epsilon);
  for (int64_t row = thread; row < (mixes ? rows : n); row += kThreads) {
    const float logit = values[row] * factor * s.scale[row < n ? 0 : row < 2 * n ? 1 : 2] + s.base[row];
    values[row] = row < n ? sigmoid_of(logit) + epsilon : row < 2 * n ? 2 * sigmoid_of(logit) : logit;
  }
  __syncthreads();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + thread;
  if (column < s.hidden) {
    float sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += values[j] * x[token * width + j * s.hidden + column];
    out[token * s.hidden + column] = sum;
  }
  if (!mixes) return;
  if (warp == 0) normalize_mix(s, values + 2 * n);
  __syncthreads();
  for (int64_t i = thread; i < n * (n + 1); i += kThreads) mix[token * n * (n + 1) + i] = values[n + i];
}

/// Numbers of a column of all streams of a token (block y) in each thread. kMost is the largest number of
/// streams.
template <int kMost>
__global__ void __launch_bounds__(kThreads)
    write_streams_kernel(const __grid_constant__ StreamMixer s, const float* mix, const float* y, float* x) {
  extern __shared__ float weights[];  // write [n], then mix [n, n]
  release_successor();
  wait_for_predecessor();
  const int n = static_cast<int>(s.streams), thread = static_cast<int>(threadIdx.x);
  const int64_t token = blockIdx.y, column = static_cast<int64_t>(blockIdx.x) * kThreads + thread;
  for (int i = thread; i < n * (n + 1); i += kThreads) weights[i] = mix[token * n * (n + 1) + i];
  __syncthreads();
  if (column >= s.hidden) return;
  float* own = x + token * n * s.hidden + column;
  const float output = y[token * s.hidden + column];
  float before[kMost];
#pragma unroll
  for (int j = 0; j < kMost; ++j) before[j] = j < n ? own[j * s.hidden] : 0.0f;
  for (int k = 0; k < n; ++k) {
    float sum = weights[k] * output;
    // The mix is used transposed: stream j, the row, counts in stream k.
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j < n) sum += weights[n + j * n + k] * before[j];
    }
    own[k * s.hidden] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    begin_streams_kernel(const float* from, int64_t streams, int64_t hidden, float* x) {
  release_successor();
  wait_for_predecessor();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, token = blockIdx.y;
  if (column >= hidden) return;
  const float value = from[token * hidden + column];
  for (int64_t j = 0; j < streams; ++j) x[(token * streams + j) * hidden + column] = value;
}

/// The number of tokens in one launch.
constexpr int64_t kMostTokens = 65535;

/// Calls `run(first, count, grid)` for tokens, with a block for 256 columns of a token.
template <class Run>
void by_tokens(int64_t m, int64_t hidden, const Run& run) {
  for (int64_t first = 0; first < m; first += kMostTokens) {
    const int64_t count = std::min(kMostTokens, m - first);
    dim3 grid = blocks_for(hidden, kThreads);
    grid.y = static_cast<unsigned>(count);
    run(first, count, grid);
  }
}

void check_streams(const StreamMixer& s) {
  expect(s.streams > 0 && s.streams <= kMostStreams && s.hidden > 0, "residual streams",
         "at most " + std::to_string(kMostStreams) + " streams for CUDA", std::to_string(s.streams));
}

}  // namespace

size_t mix_streams_workspace(const StreamMixer& s, int64_t m) {
  return static_cast<size_t>(m * parts_of(m) * (s.rows() + 1)) * sizeof(float);
}

void mix_streams(const StreamMixer& s, const float* x, int64_t m, float* out, float* mix, void* workspace,
                 Stream stream) {
  check_streams(s);
  const int64_t rows = s.rows(), parts = parts_of(m), width = s.streams * s.hidden;
  by_tokens(m, s.hidden, [&](int64_t first, int64_t count, const dim3& grid) {
    float* sums = static_cast<float*>(workspace) + first * parts * (rows + 1);
    const dim3 products(static_cast<unsigned>(parts), static_cast<unsigned>(count));
    launch("residual streams", stream, {products, kThreads, 0, 1, true}, stream_products_kernel, s,
           x + first * width, rows, sums);
    const size_t shared = static_cast<size_t>(rows + 1) * sizeof(float);
    launch("residual streams", stream, {grid, kThreads, shared, 1, true}, read_streams_kernel, s,
           x + first * width, sums, parts, rows, out + first * s.hidden,
           s.is_head ? nullptr : mix + first * s.mix());
  });
}

void write_streams(const StreamMixer& s, const float* mix, const float* y, int64_t m, float* x,
                   Stream stream) {
  check_streams(s);
  by_tokens(m, s.hidden, [&](int64_t first, int64_t, const dim3& grid) {
    const size_t shared = static_cast<size_t>(s.mix()) * sizeof(float);
    launch("residual streams", stream, {grid, kThreads, shared, 1, true},
           s.streams <= 4 ? write_streams_kernel<4> : write_streams_kernel<kMostStreams>, s,
           mix + first * s.mix(), y + first * s.hidden, x + first * s.streams * s.hidden);
  });
}

void begin_streams(const float* from, int64_t m, int64_t streams, int64_t hidden, float* x, Stream stream) {
  by_tokens(m, hidden, [&](int64_t first, int64_t, const dim3& grid) {
    launch("residual streams", stream, {grid, kThreads, 0, 1, true}, begin_streams_kernel,
           from + first * hidden, streams, hidden, x + first * streams * hidden);
  });
}

}  // namespace twofour::cuda
