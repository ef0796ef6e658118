#include "kernels/attention/device_attention.h"
#include "kernels/attention/device_heads.cuh"
#include "kernels/device/launch.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kNormThreads = 256;

__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(const __grid_constant__ RmsNorm n) {
  __shared__ double sums[kNormThreads / 32];
  release_successor();
  wait_for_predecessor();
  const float* x = n.x + blockIdx.x * n.stride;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n.size; i += kNormThreads)
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  sum = sum_of_warp(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (const double s : sums) sum += s;
  const auto factor = static_cast<float>(1.0 / sqrt(sum / static_cast<double>(n.size) + n.epsilon));
  float* out = n.out + blockIdx.x * n.out_stride;
  for (int64_t i = threadIdx.x; i < n.size; i += kNormThreads) out[i] = x[i] * factor * n.weight[i];
}

/// Prepares one head in each warp.
__global__ void __launch_bounds__(kThreads) prepare_kernel(const __grid_constant__ PreparedHeads all) {
  __shared__ float heads[kWarps][kMostHeadSize];
  release_successor();
  wait_for_predecessor();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int64_t head = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  const int64_t row = blockIdx.y;
  int which = 0;
  while (which < all.count && head >= all.rows[which].heads) head -= all.rows[which++].heads;
  if (which == all.count) return;
  const HeadRows& h = all.rows[which];
  float* own = heads[warp];
  const int64_t begin = all.begin;
  const HeadAhead<kMostHeadSize / 32> ahead(h, begin + row);
  prepare_head(h, ahead, head_of(h, h.x + row * h.stride, head), own);
  float* out = h.out + ((h.out_by_position ? begin : 0) + row) * h.out_stride + head * h.head_size;
  for (int64_t i = lane; i < h.head_size; i += 32) out[i] = own[i];
}

__global__ void __launch_bounds__(kThreads) gate_kernel(const __grid_constant__ HeadGates g) {
  release_successor();
  wait_for_predecessor();
  const int64_t row = blockIdx.x / g.heads, head = blockIdx.x % g.heads;
  const float* gates = g.gates + row * g.stride + head * g.head_stride;
  float* x = g.x + (row * g.heads + head) * g.size;
  for (int64_t i = threadIdx.x; i < g.size; i += kThreads) x[i] *= 1.0f / (1.0f + expf(-gates[i]));
}

__global__ void __launch_bounds__(kThreads) latent_kernel(const __grid_constant__ LatentHeads l) {
  release_successor();
  wait_for_predecessor();
  const int64_t row = blockIdx.x / l.heads, head = blockIdx.x % l.heads;
  const int64_t own = l.head_size - l.rotated, width = own + l.value_size;
  const float *both = l.both + (row * l.heads + head) * width,
              *low = l.low + (row + 1) * l.low_stride - l.rotated;
  float *key = l.keys + (row * l.heads + head) * l.head_size,
        *value = l.values + (row * l.heads + head) * l.value_size;
  for (int64_t i = threadIdx.x; i < l.head_size; i += kThreads) key[i] = i < own ? both[i] : low[i - own];
  for (int64_t i = threadIdx.x; i < l.value_size; i += kThreads) value[i] = both[own + i];
}

}  // namespace

void rms_norm(const RmsNorm& n, Stream stream) {
  if (n.m == 0) return;
  launch("rms_norm", stream, {dim3(static_cast<unsigned>(n.m)), kNormThreads, 0, 1, true}, rms_norm_kernel,
         n);
}

void prepare_heads(const PreparedHeads& all, Stream stream) {
  int64_t heads = 0, m = 0;
  for (int i = 0; i < all.count; ++i) {
    const HeadRows& h = all.rows[i];
    expect(h.head_size <= kMostHeadSize, "heads",
           "at most " + std::to_string(kMostHeadSize) + " numbers a head for CUDA",
           std::to_string(h.head_size));
    heads += h.heads, m = h.m;
  }
  constexpr int64_t kMostRows = 65535;
  for (int64_t first = 0; first < m; first += kMostRows) {
    PreparedHeads some = all;
    const int64_t rows = m - first < kMostRows ? m - first : kMostRows;
    some.begin += first;
    for (HeadRows& h : some.rows) {
      if (h.x == nullptr) continue;
      h.x += first * h.stride;
      if (!h.out_by_position) h.out += first * h.out_stride;
    }
    launch("heads", stream,
           {dim3(static_cast<unsigned>((heads + kWarps - 1) / kWarps), static_cast<unsigned>(rows)), kThreads,
            0, 1, true},
           prepare_kernel, some);
  }
}

void gate_heads(const HeadGates& g, Stream stream) {
  if (g.m == 0) return;
  launch("gates of heads", stream, {dim3(static_cast<unsigned>(g.m * g.heads)), kThreads, 0, 1, true},
         gate_kernel, g);
}

void split_latent_heads(const LatentHeads& l, Stream stream) {
  if (l.m == 0) return;
  launch("latent heads", stream, {dim3(static_cast<unsigned>(l.m * l.heads)), kThreads, 0, 1, true},
         latent_kernel, l);
}

}  // namespace twofour::cuda
