#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"
#include "kernels/floats/device_gemm.h"

namespace twofour::cuda {
namespace {

constexpr int kTile = 64, kStep = 16, kThreads = 256;

__device__ float number_of(const Bf16Plane& p, int64_t row, int64_t k) {
  const int64_t at = p.turned ? k * p.stride + row : row * p.stride + k;
  return __bfloat162float(static_cast<const __nv_bfloat16*>(p.data)[at]);
}

/// Loads rows [r0, r0 + 64) and columns [k0, k0 + 16) of a plane into shared memory. Elements outside of the
/// plane become zeros.
__device__ void load_tile(const Bf16Plane& p, int64_t r0, int64_t rows, int64_t k0, int64_t k,
                          float (*to)[kTile + 4]) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kStep; i += kThreads) {
    const int row = p.turned ? i % kTile : i / kStep, column = p.turned ? i / kTile : i % kStep;
    to[column][row] = r0 + row < rows && k0 + column < k ? number_of(p, r0 + row, k0 + column) : 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads) plain_kernel(const __grid_constant__ PlaneProduct p) {
  __shared__ float a[kStep][kTile + 4], b[kStep][kTile + 4];
  const int64_t i0 = static_cast<int64_t>(blockIdx.x) * kTile, j0 = static_cast<int64_t>(blockIdx.y) * kTile;
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
  float sums[4][4] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += kStep) {
    load_tile(p.a, i0, p.m, k0, p.k, a);
    load_tile(p.b, j0, p.n, k0, p.k, b);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += a[k][row + i] * b[k][column + j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      if (i0 + row + i >= p.m || j0 + column + j >= p.n) continue;
      float* out = p.out + (i0 + row + i) * p.stride + j0 + column + j;
      *out = (p.adds ? *out : 0.0f) + p.scale * sums[i][j];
    }
  }
}

}  // namespace

void multiply_planes_plainly(const PlaneProduct& p, Stream stream) {
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  expect(tiles(p.n) < 65536, "product of planes", "fewer than 4194304 columns", std::to_string(p.n));
  launch("product of planes", stream, {dim3(tiles(p.m), tiles(p.n)), kThreads}, plain_kernel, p);
}

void MatrixProducts::product(const PlaneProduct& p, Stream stream) {
  if (p.m == 0 || p.n == 0) return;
  if (!library_.multiply(p, stream)) multiply_planes_plainly(p, stream);
}

/// Makes room for BF16 numbers. The old memory may be in use until the stream is done; freeing the memory
/// waits for that.
void* MatrixProducts::room(DeviceMemory& memory, int64_t numbers) {
  const auto bytes = static_cast<size_t>(numbers) * 2;
  if (memory.bytes() < bytes) {
    memory = DeviceMemory();
    memory = DeviceMemory(bytes);
  }
  return memory.as();
}

void MatrixProducts::set_rows(const float* x, int64_t m, int64_t k, Stream stream, int planes) {
  m_ = m, k_ = k, planes_ = planes;
  SplitPlanes to;
  for (int i = 0; i < planes; ++i) to.planes[i] = room(rows_[i], m * k);
  split_floats(x, m * k, to, stream);
}

void MatrixProducts::multiply(const DeviceMatrix& w, float* out, int64_t stride, bool adds, Stream stream) {
  expect(w.k == k_, "product of rows", std::to_string(w.k) + " numbers a row", std::to_string(k_));
  const int weight_planes = is_exact_in_bf16(w.format) ? 1 : planes_;
  const int64_t most =
      w.format == MatrixFormat::bf16 ? w.n : std::max<int64_t>(64, kChunkBytes / 2 / w.k / 64 * 64);
  for (int64_t n0 = 0; n0 < w.n; n0 += most) {
    const int64_t n = std::min(most, w.n - n0);
    const void* weights[3] = {w.weights};
    if (w.format != MatrixFormat::bf16) {
      SplitPlanes to;
      for (int i = 0; i < weight_planes; ++i) weights[i] = to.planes[i] = room(weights_[i], n * w.k);
      expand_rows(w, n0, n, to, stream);
    }
    PlaneProduct p{{rows_[0].as(), k_, false},
                   {weights[0], k_, false},
                   m_,
                   n,
                   k_,
                   out + n0,
                   stride,
                   w.global_scale,
                   adds};
    for (int order = 0; order < planes_; ++order) {
      for (int b = 0; b <= order && b < weight_planes; ++b) {
        p.a.data = rows_[order - b].as(), p.b.data = weights[b];
        product(p, stream);
        p.adds = true;
      }
    }
  }
  if (w.bias != nullptr) add_bias(out, m_, w.n, stride, w.bias, stream);
}

void MatrixProducts::multiply(std::span<const DeviceMatrix> matrices, float* out, int64_t stride,
                              Stream stream) {
  for (size_t i = 0; i < matrices.size();) {
    DeviceMatrix all = matrices[i++];
    const auto follows = [&](const DeviceMatrix& next) {
      return all.format == MatrixFormat::bf16 && next.format == MatrixFormat::bf16 && all.k == next.k &&
             all.bias == nullptr && next.bias == nullptr &&
             static_cast<const uint16_t*>(all.weights) + all.n * all.k == next.weights;
    };
    for (; i < matrices.size() && follows(matrices[i]); ++i) all.n += matrices[i].n;
    multiply(all, out, stride, false, stream);
    out += all.n;
  }
}

void MatrixProducts::add_products(float* sums, Stream stream) {
  const Bf16Plane high{rows_[0].as(), k_, true}, low{rows_[1].as(), k_, true};
  for (const auto& [a, b] : {std::pair(high, high), std::pair(high, low), std::pair(low, high)})
    product({a, b, k_, k_, m_, sums, k_, 1, true}, stream);
}

void MatrixProducts::add_cross_products(const float* a, int64_t n, float* sums, Stream stream) {
  void *a_high = room(others_[0], m_ * n), *a_low = room(others_[1], m_ * n);
  split_floats(a, m_ * n, {{a_high, a_low}}, stream);
  const Bf16Plane high{rows_[0].as(), k_, true}, low{rows_[1].as(), k_, true};
  const Bf16Plane other_high{a_high, n, true}, other_low{a_low, n, true};
  for (const auto& [left, right] :
       {std::pair(other_high, high), std::pair(other_high, low), std::pair(other_low, high)})
    product({left, right, n, k_, m_, sums, k_, 1, true}, stream);
}

}  // namespace twofour::cuda
