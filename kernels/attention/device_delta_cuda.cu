#include <cmath>

#include "kernels/attention/device_delta.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
/// The columns of a state in a warp.
constexpr int kColumns = 8;

__device__ __forceinline__ int64_t begin_of(const DeltaTokens& d) {
  return d.position != nullptr ? *d.position : d.begin;
}

__device__ __forceinline__ float sum_of_block(float x, float (&sums)[kWarps]) {
  x = sum_of_warp(x);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) x += sums[i];
  return x;
}

/// The convolution of one head of a token. Queries and keys become unit vectors, and value heads get their
/// gates. Block x is the token, and y the head: queries, then keys, then values.
__global__ void __launch_bounds__(kThreads) convolve_kernel(const __grid_constant__ DeltaTokens d) {
  __shared__ float sums[kWarps];
  release_successor();
  wait_for_predecessor();
  const DeltaColumns& c = d.columns;
  const int head = static_cast<int>(blockIdx.y), value_head = head - 2 * c.key_heads;
  const bool is_value = value_head >= 0;
  const int size = is_value ? c.value_size : c.key_size;
  const int first = is_value ? 2 * c.keys() + value_head * size : head * size;
  const int64_t token = blockIdx.x, begin = begin_of(d), position = begin + token;
  const float* row = d.x + token * c.count();
  float* mixed = d.mixed + token * c.channels() + first;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    const int channel = first + i, column = c.channel(channel);
    float sum = 0;
    for (int t = 0; t < d.kernel; ++t) {
      const int64_t at = position - d.kernel + 1 + t;
      if (at < 0) continue;
      const float x = at >= begin ? d.x[(at - begin) * c.count() + column]
                                  : d.window[at % d.kernel * c.channels() + channel];
      sum += d.convolution[channel * d.kernel + t] * x;
    }
    const float value = sum / (1.0f + expf(-sum));
    mixed[i] = value;
    squares += value * value;
    // If there is a single token, nothing reads this row of the window.
    if (d.m == 1) d.window[position % d.kernel * c.channels() + channel] = row[column];
  }
  if (!is_value) {
    float by = rsqrtf(sum_of_block(squares, sums) + 1e-6f);
    if (head < c.key_heads) by *= rsqrtf(static_cast<float>(size));
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) mixed[i] *= by;
  } else if (threadIdx.x == 0) {
    const float x = row[c.a(value_head)] + d.dt_bias[value_head];
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    float* gates = d.gates + token * 2 * c.value_heads + value_head;
    gates[0] = expf(-expf(d.a_log[value_head]) * softplus);
    gates[c.value_heads] = 1.0f / (1.0f + expf(-row[c.b(value_head)]));
  }
}

/// Keeps the inputs of the last tokens. Block y is the token, counted from the last one.
__global__ void __launch_bounds__(kThreads) keep_kernel(const __grid_constant__ DeltaTokens d) {
  release_successor();
  wait_for_predecessor();
  const DeltaColumns& c = d.columns;
  const int channel = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int64_t token = d.m - 1 - blockIdx.y, position = d.begin + token;
  if (channel >= c.channels()) return;
  d.window[position % d.kernel * c.channels() + channel] = d.x[token * c.count() + c.channel(channel)];
}

/// The part of a token that a warp reads.
template <int kRows>
struct DeltaToken {
  float q[kRows], k[kRows], v, decay, beta;

  __device__ __forceinline__ void load(const DeltaTokens& d, int64_t token, int head, int column) {
    const DeltaColumns& c = d.columns;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float *mixed = d.mixed + token * c.channels(), *gates = d.gates + token * 2 * c.value_heads + head;
    const float *query = mixed + head / c.group() * c.key_size, *key = query + c.keys();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = lane + 32 * r;
      q[r] = row < c.key_size ? query[row] : 0.0f;
      k[r] = row < c.key_size ? key[row] : 0.0f;
    }
    v = column < c.value_size ? mixed[2 * c.keys() + head * c.value_size + column] : 0.0f;
    decay = gates[0], beta = gates[c.value_heads];
  }
};

/// Sums each of 16 values over a warp. Lane l gets sum l / 2.
__device__ __forceinline__ float sums_of_warp(float (&x)[2 * kColumns]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = kColumns; half > 0; half /= 2) {
    const bool is_upper = (lane & (2 * half)) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float other = __shfl_xor_sync(~0u, is_upper ? x[i] : x[i + half], 2 * half);
      x[i] = (is_upper ? x[i + half] : x[i]) + other;
    }
  }
  return x[0] + __shfl_xor_sync(~0u, x[0], 1);
}

/// The delta rule for kColumns columns of a head in each warp. A lane has rows lane + 32 r of the state, for
/// key heads of at most 32 * kRows numbers.
template <int kRows>
__global__ void __launch_bounds__(kThreads) delta_kernel(const __grid_constant__ DeltaTokens d) {
  const DeltaColumns& c = d.columns;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.y);
  const int first = (static_cast<int>(blockIdx.x) * kWarps + warp) * kColumns;
  const int column = first + lane / 2 % kColumns;  // of the value and of the sums in this lane
  float* state = d.state + static_cast<int64_t>(head) * c.key_size * c.value_size;
  release_successor();
  // The position and the state are complete, since they come from earlier tokens: their work has ended
  // before that of this token begins.
  const bool is_first = begin_of(d) == 0;
  float s[kRows][kColumns];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const bool exists = !is_first && lane + 32 * r < c.key_size && first + n < c.value_size;
      s[r][n] = exists ? state[(lane + 32 * r) * c.value_size + first + n] : 0.0f;
    }
  }
  wait_for_predecessor();

  DeltaToken<kRows> next;
  next.load(d, 0, head, column);
#pragma unroll 1
  for (int64_t token = 0; token < d.m; ++token) {
    const DeltaToken<kRows> t = next;
    if (token + 1 < d.m) next.load(d, token + 1, head, column);
    // Products of the columns with the key, and after them with the query
    float products[2 * kColumns] = {}, both = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      both += t.q[r] * t.k[r];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        products[n] += t.k[r] * s[r][n];
        products[kColumns + n] += t.q[r] * s[r][n];
      }
    }
    both = sum_of_warp(both);
    const float sum = t.decay * sums_of_warp(products);
    // What the token writes is in the lower half of the warp, and what it reads of the old state in the
    // upper.
    const float written = t.beta * (t.v - sum);
    const float own = __shfl_xor_sync(~0u, written, 16);
    if (lane >= 16 && lane % 2 == 0 && column < c.value_size)
      d.out[(token * c.value_heads + head) * c.value_size + column] = sum + both * own;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const float by = __shfl_sync(~0u, written, 2 * n);
#pragma unroll
      for (int r = 0; r < kRows; ++r) s[r][n] = t.decay * s[r][n] + t.k[r] * by;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      if (lane + 32 * r < c.key_size && first + n < c.value_size)
        state[(lane + 32 * r) * c.value_size + first + n] = s[r][n];
    }
  }
}

/// Normalizes what a head of a token read and multiplies it by silu(z), in place. Block x is the token and
/// the head.
__global__ void __launch_bounds__(kThreads) gated_norm_kernel(const __grid_constant__ DeltaTokens d) {
  __shared__ float sums[kWarps];
  release_successor();
  wait_for_predecessor();
  const DeltaColumns& c = d.columns;
  const int64_t token = blockIdx.x / c.value_heads;
  const int head = static_cast<int>(blockIdx.x % c.value_heads);
  float* out = d.out + static_cast<int64_t>(blockIdx.x) * c.value_size;
  const float* row = d.x + token * c.count();
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < c.value_size; i += kThreads) squares += out[i] * out[i];
  const float by = rsqrtf(sum_of_block(squares, sums) / static_cast<float>(c.value_size) + d.epsilon);
  for (int i = static_cast<int>(threadIdx.x); i < c.value_size; i += kThreads) {
    const float z = row[c.z(head * c.value_size + i)];
    out[i] = out[i] * by * d.norm[i] * (z / (1.0f + expf(-z)));
  }
}

}  // namespace

void run_delta(const DeltaTokens& d, Stream stream) {
  if (d.m == 0) return;
  const DeltaColumns& c = d.columns;
  expect(c.key_size > 0 && c.key_size <= kMostKeySize, "linear attention",
         "key heads of at most " + std::to_string(kMostKeySize) + " numbers for CUDA",
         std::to_string(c.key_size));
  expect(c.key_heads > 0 && c.value_heads % c.key_heads == 0 && 2 * c.key_heads + c.value_heads < 65536,
         "linear attention", "value heads in groups", std::to_string(c.value_heads));
  expect(d.m == 1 || d.position == nullptr, "linear attention", "one token at a position in device memory",
         std::to_string(d.m));
  const auto tokens = static_cast<unsigned>(d.m), heads = static_cast<unsigned>(c.value_heads);
  launch("linear attention", stream,
         {dim3(tokens, static_cast<unsigned>(2 * c.key_heads) + heads), kThreads, 0, 1, true},
         convolve_kernel, d);
  if (d.m > 1) {
    const auto kept = static_cast<unsigned>(d.m < d.kernel ? d.m : d.kernel);
    launch("linear attention", stream,
           {dim3(blocks_for(c.channels(), kThreads).x, kept), kThreads, 0, 1, true}, keep_kernel, d);
  }
  const auto run = [&](auto kernel) {
    const dim3 grid(blocks_for(c.value_size, kWarps * kColumns).x, heads);
    launch("linear attention", stream, {grid, kThreads, 0, 1, true}, kernel, d);
  };
  if (c.key_size <= 32) {
    run(delta_kernel<1>);
  } else if (c.key_size <= 64) {
    run(delta_kernel<2>);
  } else if (c.key_size <= 128) {
    run(delta_kernel<4>);
  } else {
    run(delta_kernel<8>);
  }
  launch("linear attention", stream, {dim3(tokens * heads), kThreads, 0, 1, true}, gated_norm_kernel, d);
}

}  // namespace twofour::cuda
