#include "formats/atom.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"
#include "tools/bench/fp8/fp8_multiply.h"

/// Quantization for the FP8 route has three steps. It finds the largest magnitude of each row and stores it
/// in place of the scale, turns it into a scale, and encodes the numbers.

namespace twofour::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float largest_magnitude(float mine) {
  return __uint_as_float(block_largest<kThreads>(__float_as_uint(mine)));
}

/// Finds the largest weight of a row, by one block. Products are rounded as in dequantize_to_fp8.
__global__ void __launch_bounds__(kThreads)
    largest_weight_kernel(DenseMatrices d, const float* global_scale, float* largest) {
  const int64_t row = blockIdx.x, groups = d.k / kGroup;
  const float g = global_scale[row / d.n];
  float mine = 0;
  for (int64_t group = threadIdx.x; group < groups; group += kThreads) {
    const uint8_t* codes = d.codes + (row * groups + group) * 8;
    unsigned code = 0;  // magnitudes sort like their codes without the sign
    for (int i = 0; i < 8; ++i) code = max(code, max(codes[i] & 7u, codes[i] >> 4 & 7u));
    const float scale = e4m3_to_float(d.scales[row * groups + group]);
    mine = fmaxf(mine, fabsf(__fmul_rn(__fmul_rn(e2m1_to_float(code), scale), g)));
  }
  const float all = largest_magnitude(mine);
  if (threadIdx.x == 0) largest[row] = all;
}

__global__ void __launch_bounds__(kThreads)
    largest_activation_kernel(const void* x, Float type, int64_t k, float* largest) {
  const int64_t row = blockIdx.x;
  float mine = 0;
  for (int64_t i = threadIdx.x * 8; i < k; i += kThreads * 8) {
    float eight[8];
    load_eight(x, type, row * k + i, true, eight);
#pragma unroll
    for (int j = 0; j < 8; ++j) mine = fmaxf(mine, fabsf(eight[j]));
  }
  const float all = largest_magnitude(mine);
  if (threadIdx.x == 0) largest[row] = all;
}

__device__ __forceinline__ float scale_of(float largest) {
  const float scale = __fdiv_rn(largest, kE4m3Max);
  return scale == 0.0f ? 1.0f : scale;
}

/// Turns largest magnitudes into scales. For scaling by tensor, a single block does this.
__global__ void __launch_bounds__(kThreads) scales_kernel(float* scales, int64_t rows, bool tensor) {
  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x, stride = int64_t{gridDim.x} * kThreads;
  float of_tensor = 0;
  if (tensor) {
    for (int64_t row = first; row < rows; row += stride) of_tensor = fmaxf(of_tensor, scales[row]);
    of_tensor = largest_magnitude(of_tensor);
  }
  for (int64_t row = first; row < rows; row += stride)
    scales[row] = scale_of(tensor ? of_tensor : scales[row]);
}

void launch_scales(const char* where, float* scales, int64_t rows, Fp8Scaling scaling, Stream stream) {
  const bool tensor = scaling == Fp8Scaling::tensor;
  launch(where, stream, {tensor ? dim3(1) : blocks_for(rows, kThreads), kThreads}, scales_kernel, scales,
         rows, tensor);
}

/// Encodes 8 numbers in each thread.
__global__ void __launch_bounds__(kThreads) encode_kernel(QuantizeToFp8 a) {
  const int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (item >= a.m * (a.k / 8)) return;
  const float scale = a.scales[item / (a.k / 8)];
  float x[8];
  load_eight(a.x, a.type, item * 8, true, x);
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint32_t code = e4m3_from_float(__fdiv_rn(x[i], scale));
    if (e4m3_is_nan(code)) code = kE4m3Nan;
    words[i / 4] |= code << 8 * (i % 4);
  }
  reinterpret_cast<uint2*>(a.codes)[item] = {words[0], words[1]};
}

}  // namespace

void fp8_scales_of_weights(const DenseMatrices& d, const float* global_scale, Fp8Scaling scaling,
                           float* scales, Stream stream) {
  constexpr const char* kWhere = "fp8_scales_of_weights";
  const int64_t rows = d.e * d.n;
  expect(d.e >= 0 && d.n >= 0 && d.k >= 0 && d.k % kGroup == 0 && d.e < 65536 && d.n < (1 << 15), kWhere,
         "K a multiple of 16", std::to_string(d.n) + " x " + std::to_string(d.k));
  if (rows == 0) return;
  launch(kWhere, stream, {dim3(static_cast<unsigned>(rows)), kThreads}, largest_weight_kernel, d,
         global_scale, scales);
  launch_scales(kWhere, scales, rows, scaling, stream);
}

void quantize_to_fp8(const QuantizeToFp8& a, Stream stream) {
  constexpr const char* kWhere = "quantize_to_fp8";
  expect(a.m >= 0 && a.m < (int64_t{1} << 31) && a.k >= 0 && a.k % kGroup == 0, kWhere, "K a multiple of 16",
         std::to_string(a.m) + " x " + std::to_string(a.k));
  expect((reinterpret_cast<uintptr_t>(a.x) | reinterpret_cast<uintptr_t>(a.codes)) % 16 == 0, kWhere,
         "activations and codes on multiples of 16 bytes", "another address");
  if (a.m == 0 || a.k == 0) return;
  launch(kWhere, stream, {dim3(static_cast<unsigned>(a.m)), kThreads}, largest_activation_kernel, a.x, a.type,
         a.k, a.scales);
  launch_scales(kWhere, a.scales, a.m, a.scaling, stream);
  launch(kWhere, stream, {blocks_for(a.m * (a.k / 8), kThreads), kThreads}, encode_kernel, a);
}

}  // namespace twofour::cuda
