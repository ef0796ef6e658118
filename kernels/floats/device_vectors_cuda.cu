#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"
#include "kernels/floats/device_vectors.h"
#include "kernels/floats/input_row.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 256, kWideThreads = 512;

__device__ __forceinline__ int64_t own_index() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

/// Calls `f(i)` for each i below `count`.
template <class F>
__global__ void __launch_bounds__(kThreads) each_kernel(int64_t count, const __grid_constant__ F f) {
  release_successor();
  wait_for_predecessor();
  const int64_t i = own_index();
  if (i < count) f(i);
}

template <class F>
void for_each(const char* where, int64_t count, Stream stream, const F& f) {
  if (count == 0) return;
  launch(where, stream, {blocks_for(count, kThreads), kThreads, 0, 1, true}, each_kernel<F>, count, f);
}

struct Gate {
  const float *gate, *up;
  int64_t n, stride;
  GateUnits units;
  float* out;
  __device__ void operator()(int64_t i) const {
    const int64_t at = i / n * stride + i % n;
    out[i] = gate_unit(gate[at], up[at], units);
  }
};

struct Add {
  float* x;
  const float* y;
  __device__ void operator()(int64_t i) const { x[i] += y[i]; }
};

struct Subtract {
  const float *x, *y;
  float* out;
  __device__ void operator()(int64_t i) const { out[i] = x[i] - y[i]; }
};

struct ScaleRow {
  float* x;
  const float* factors;
  int64_t n;
  __device__ void operator()(int64_t i) const { x[i] *= factors[i / n]; }
};

struct ScaleByGate {
  float* x;
  const float* gates;
  int64_t n;
  __device__ void operator()(int64_t i) const { x[i] *= 1.0f / (1.0f + expf(-gates[i / n])); }
};

struct Gather {
  const float* x;
  const int32_t* rows;
  int64_t n;
  float* out;
  __device__ void operator()(int64_t i) const { out[i] = x[rows[i / n] * n + i % n]; }
};

struct Scatter {
  const float* x;
  const int32_t* rows;
  const float* weights;
  int64_t n;
  float* out;
  __device__ void operator()(int64_t i) const { out[rows[i / n] * n + i % n] += weights[i / n] * x[i]; }
};

struct AddWeighted {
  const float *x, *weights;
  int64_t count, n;
  float* out;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / n, column = i % n;
    float sum = out[i];
    for (int64_t t = 0; t < count; ++t) sum += weights[row * count + t] * x[(row * count + t) * n + column];
    out[i] = sum;
  }
};

/// Reduces the values of all threads of a block in a fixed order: first within each warp, then across warps.
template <class T, class Join>
__device__ T of_block(T x, const Join& join) {
  constexpr int kWarps = kWideThreads / 32;
  __shared__ T all[kWideThreads];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto join_places = [&](T* places, int count) {
    for (int apart = count / 2; apart > 0; apart /= 2) {
      __syncwarp();
      if (lane < apart) places[lane] = join(places[lane], places[lane + apart]);
    }
    __syncwarp();
  };
  __syncthreads();
  all[threadIdx.x] = x;
  join_places(all + 32 * warp, 32);
  __syncthreads();
  if (warp == 0) {
    const T own = all[32 * (lane % kWarps)];
    __syncwarp();
    if (lane < kWarps) all[lane] = own;
    join_places(all, kWarps);
  }
  __syncthreads();
  return all[0];
}

__device__ double sum_of_block(double x) {
  return of_block(x, [](double a, double b) { return a + b; });
}

/// Runs as one block, because there are few rows at a time.
__global__ void __launch_bounds__(kWideThreads)
    norms_kernel(const float* x, const float* weights, int64_t m, int64_t n, double* out) {
  double sum = 0;
  for (int64_t i = 0; i < m; ++i) {
    double squares = 0;
    for (int64_t j = threadIdx.x; j < n; j += kWideThreads)
      squares += static_cast<double>(x[i * n + j]) * static_cast<double>(x[i * n + j]);
    sum += fabs(static_cast<double>(weights[i])) * sqrt(sum_of_block(squares));
  }
  if (threadIdx.x == 0) *out += sum;
}

/// Numbers that are not negative are in the order of their bits.
__global__ void __launch_bounds__(kThreads) largest_kernel(const float* x, int64_t count, float* most) {
  float largest = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = own_index(); i < count; i += step) largest = fmaxf(largest, fabsf(x[i]));
  for (int apart = 16; apart > 0; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, apart));
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int*>(most), __float_as_int(largest));
}

struct Top {
  float value;
  int32_t index;
};

/// Takes the larger of two values, or the first value if they are equal.
struct Better {
  __device__ Top operator()(Top a, Top b) const {
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
  }
};

constexpr int kChoiceBlocks = 128;

/// The results of blocks, each for a share of a row.
struct ChoiceParts {
  Top tops[kChoiceBlocks];
  double sums[kChoiceBlocks];  ///< sums of exp(x - top)
  int32_t done;
};

__global__ void __launch_bounds__(kWideThreads)
    choose_token_kernel(const float* logits, int64_t n, ChoiceParts* parts, TokenState* state,
                        LogitFigures* history) {
  __shared__ bool is_last;
  release_successor();
  wait_for_predecessor();
  const int64_t each = (n + kChoiceBlocks - 1) / kChoiceBlocks, begin = blockIdx.x * each,
                end = min(n, begin + each);
  Top top{-INFINITY, static_cast<int32_t>(n)};
  bool has_nan = false;
  for (int64_t i = begin + threadIdx.x; i < end; i += kWideThreads) {
    has_nan = has_nan || isnan(logits[i]);
    top = Better()(top, {logits[i], static_cast<int32_t>(i)});
  }
  top = of_block(top, Better());
  double sum = has_nan ? static_cast<double>(NAN) : 0.0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kWideThreads)
    sum += static_cast<double>(expf(logits[i] - top.value));
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) {
    parts->tops[blockIdx.x] = top;
    parts->sums[blockIdx.x] = sum;
    is_last = add_acquire_release(&parts->done, 1) == kChoiceBlocks - 1;
    if (is_last) parts->done = 0;
  }
  __syncthreads();
  if (!is_last) return;
  const bool has_part = threadIdx.x < kChoiceBlocks;
  const Top own = has_part ? parts->tops[threadIdx.x] : Top{-INFINITY, static_cast<int32_t>(n)};
  top = of_block(own, Better());
  // A block without numbers has no largest logit.
  const bool counts = has_part && own.index < n;
  sum =
      sum_of_block(counts ? parts->sums[threadIdx.x] * exp(static_cast<double>(own.value - top.value)) : 0.0);
  if (threadIdx.x != 0) return;
  history[state->position] = {
      static_cast<double>(top.value) + log(sum), 0, top.value, top.value, top.index < n ? top.index : 0, 0};
  state->token = top.index < n ? top.index : 0;
  ++state->position;
}

__global__ void __launch_bounds__(kWideThreads)
    figures_kernel(const float* logits, int64_t n, const int32_t* tokens, const float* other,
                   const LogitFigures* other_figures, LogitFigures* out) {
  release_successor();
  wait_for_predecessor();
  const int64_t row = blockIdx.x;
  const float* x = logits + row * n;
  Top top{-INFINITY, 0};
  bool has_nan = false;
  for (int64_t i = threadIdx.x; i < n; i += kWideThreads) {
    has_nan = has_nan || isnan(x[i]);
    if (x[i] > top.value) top = {x[i], static_cast<int32_t>(i)};
  }
  if (top.value == -INFINITY) top.index = static_cast<int32_t>(n);
  top = of_block(top, Better());
  if (top.index == n) top.index = 0;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kWideThreads) sum += static_cast<double>(expf(x[i] - top.value));
  sum = sum_of_block(has_nan ? static_cast<double>(NAN) : sum);
  const double log_sum = static_cast<double>(top.value) + log(sum);
  double divergence = 0;
  if (other != nullptr) {
    const double other_sum = other_figures[row].log_sum;
    const float* y = other + row * n;
    for (int64_t i = threadIdx.x; i < n; i += kWideThreads) {
      const double p = static_cast<double>(y[i]) - other_sum, q = static_cast<double>(x[i]) - log_sum;
      divergence += static_cast<double>(expf(static_cast<float>(p))) * (p - q);
    }
    divergence = sum_of_block(divergence);
  }
  if (threadIdx.x != 0) return;
  out[row] = {log_sum, divergence, tokens != nullptr ? x[tokens[row]] : top.value, top.value, top.index, 0};
}

}  // namespace

void gate_rows(const float* gate, const float* up, int64_t m, int64_t n, int64_t stride,
               const GateUnits& units, float* out, Stream stream) {
  for_each("gates", m * n, stream, Gate{gate, up, n, stride, units, out});
}

void add_floats(float* x, const float* y, int64_t count, Stream stream) {
  for_each("sum", count, stream, Add{x, y});
}

void subtract_floats(const float* x, const float* y, int64_t count, float* out, Stream stream) {
  for_each("difference", count, stream, Subtract{x, y, out});
}

void scale_rows(float* x, const float* factors, int64_t m, int64_t n, Stream stream) {
  for_each("rows", m * n, stream, ScaleRow{x, factors, n});
}

void find_largest(const float* x, int64_t count, float* most, Stream stream) {
  if (count == 0) return;
  constexpr int64_t kMostBlocks = 1024;
  const int64_t blocks = std::min(kMostBlocks, (count + kThreads - 1) / kThreads);
  launch("largest number", stream, {dim3(static_cast<unsigned>(blocks)), kThreads}, largest_kernel, x, count,
         most);
}

void scale_by_gates(float* x, const float* gates, int64_t m, int64_t n, Stream stream) {
  for_each("gates of rows", m * n, stream, ScaleByGate{x, gates, n});
}

void gather_rows(const float* x, const int32_t* rows, int64_t m, int64_t n, float* out, Stream stream) {
  for_each("rows of tokens", m * n, stream, Gather{x, rows, n, out});
}

void scatter_rows(const float* x, const int32_t* rows, const float* weights, int64_t m, int64_t n, float* out,
                  Stream stream) {
  for_each("sum of rows", m * n, stream, Scatter{x, rows, weights, n, out});
}

void add_weighted_rows(const float* x, const float* weights, int64_t m, int64_t count, int64_t n, float* out,
                       Stream stream) {
  for_each("sum of experts", m * n, stream, AddWeighted{x, weights, count, n, out});
}

void sum_of_norms(const float* x, const float* weights, int64_t m, int64_t n, double* sum, Stream stream) {
  if (m == 0) return;
  launch("sum of norms", stream, {dim3(1), kWideThreads}, norms_kernel, x, weights, m, n, sum);
}

void logit_figures(const float* logits, int64_t m, int64_t n, const int32_t* tokens, const float* other,
                   const LogitFigures* other_figures, LogitFigures* out, Stream stream) {
  if (m == 0) return;
  launch("figures of logits", stream, {dim3(static_cast<unsigned>(m)), kWideThreads, 0, 1, true},
         figures_kernel, logits, n, tokens, other, other_figures, out);
}

size_t choose_token_workspace() { return sizeof(ChoiceParts); }

void choose_token(const float* logits, int64_t n, void* workspace, TokenState* state, LogitFigures* history,
                  Stream stream) {
  launch("token", stream, {dim3(kChoiceBlocks), kWideThreads, 0, 1, true}, choose_token_kernel, logits, n,
         static_cast<ChoiceParts*>(workspace), state, history);
}

}  // namespace twofour::cuda
