#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/half.h"
#include "formats/layouts/gate_up_interleaved8.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"
#include "kernels/numbers/swiglu.cuh"
#include "kernels/pack/device_pack.h"

namespace twofour::cuda {
namespace {

using Layout = GateUpInterleaved8;
constexpr int kThreads = 256;

void check_dense(const char* where, const DenseMatrices& d) {
  expect(d.e >= 0 && d.n >= 0 && d.k >= 0 && d.k % kGroup == 0 && d.e < 65536 && d.n < (1 << 22) &&
             d.k < (1 << 24),
         where, "K a multiple of 16", std::to_string(d.n) + " x " + std::to_string(d.k));
}

/// Copies rows of codes to their places in the layout, 16 bytes at a time (kWide) or one byte at a time.
template <bool kWide>
__global__ void __launch_bounds__(kThreads) pack_codes_kernel(DenseMatrices d, Shape shape, uint8_t* weight) {
  constexpr uint32_t kPiece = kWide ? 16 : 1;
  const auto pieces = static_cast<uint32_t>(d.k / 2) / kPiece;
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x, row = item / pieces;
  if (row >= d.n) return;
  const int64_t pitch = d.k / 2, col = int64_t{item % pieces} * kPiece, first_row = blockIdx.y * d.n;
  const uint8_t* from = d.codes + (first_row + Layout::source_row(shape, row)) * pitch + col;
  uint8_t* to = weight + (first_row + row) * pitch + col;
  if constexpr (kWide) {
    __stcs(reinterpret_cast<uint4*>(to), __ldcs(reinterpret_cast<const uint4*>(from)));
  } else {
    *to = *from;
  }
}

/// Writes four scales of a row, which are adjacent, in each thread. Writes padding, too.
__global__ void __launch_bounds__(kThreads) pack_scales_kernel(DenseMatrices d, Shape shape, uint8_t* scale) {
  const Part part = Layout::part(1, shape);
  const int64_t offset = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * 4, e = blockIdx.y;
  if (offset >= part.bytes()) return;
  const Source s = Layout::source(1, shape, {e, offset / part.cols, offset % part.cols});
  uint8_t four[4] = {};
  if (s.byte != kPadding) {
    const int64_t groups = shape.groups();
    for (int i = 0; i < 4 && s.group + i < groups; ++i)
      four[i] = d.scales[(e * d.n + s.n) * groups + s.group + i];
  }
  uint8_t* to = scale + e * part.bytes() + offset;
  for (int i = 0; i < 4; ++i) to[i] = four[i];
}

/// Loads the eight code bytes of a group, at any alignment.
__device__ __forceinline__ uint64_t load_codes(const uint8_t* from) {
  if (reinterpret_cast<uintptr_t>(from) % 8 == 0) return *reinterpret_cast<const uint64_t*>(from);
  uint64_t codes = 0;
  for (int i = 0; i < 8; ++i) codes |= uint64_t{from[i]} << 8 * i;
  return codes;
}

/// Dequantizes 16 weights in each thread. With kFp8, the result is E4M3 with a scale for each row; otherwise
/// it is BF16.
template <bool kFp8>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(DenseMatrices d, const float* global_scale, const float* row_scale, uint8_t* out) {
  const int64_t group = blockIdx.x * int64_t{kThreads} + threadIdx.x, groups = d.k / kGroup;
  if (group >= d.e * d.n * groups) return;
  const int64_t row = group / groups;
  const float g = global_scale[row / d.n], scale = e4m3_to_float(d.scales[group]);
  const uint64_t codes = load_codes(d.codes + group * 8);
  const auto weight = [&](unsigned code) { return __fmul_rn(__fmul_rn(e2m1_to_float(code), scale), g); };
  uint32_t words[kFp8 ? 4 : 8] = {};
  if constexpr (kFp8) {
    // Compute eight magnitudes. A byte permutation picks the magnitudes of four codes, and signs are added
    // afterwards.
    const float divisor = row_scale[row];
    uint32_t table[2] = {};
#pragma unroll
    for (unsigned i = 0; i < 8; ++i)
      table[i / 4] |= uint32_t{e4m3_from_float(__fdiv_rn(weight(i), divisor))} << 8 * (i % 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto four = static_cast<uint32_t>(codes >> 16 * i) & 0xFFFFu;
      const uint32_t signs =
          (four & 0x8u) << 4 | (four & 0x80u) << 8 | (four & 0x800u) << 12 | (four & 0x8000u) << 16;
      words[i] = __byte_perm(table[0], table[1], four & 0x7777u) ^ signs;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      words[i / 2] |= uint32_t{bf16_from_float(weight(static_cast<unsigned>(codes >> 4 * i) & 15u))}
                      << 16 * (i % 2);
  }
  constexpr int kBytes = kFp8 ? kGroup : 2 * kGroup;
  auto* to = reinterpret_cast<uint4*>(out + group * kBytes);
#pragma unroll
  for (int i = 0; i < kBytes / 16; ++i)
    to[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
}

template <bool kFp8>
void dequantize(const char* where, const DenseMatrices& d, const float* global_scale, const float* row_scale,
                void* out, Stream stream) {
  check_dense(where, d);
  expect(reinterpret_cast<uintptr_t>(out) % 16 == 0, where, "an output on a multiple of 16 bytes",
         "another address");
  const int64_t groups = d.e * d.n * (d.k / kGroup);
  if (groups == 0) return;
  launch(where, stream, {blocks_for(groups, kThreads), kThreads}, dequantize_kernel<kFp8>, d, global_scale,
         row_scale, static_cast<uint8_t*>(out));
}

/// Quantizes 16 activations of a row in each thread.
__global__ void __launch_bounds__(kThreads) quantize_kernel(const __grid_constant__ QuantizeActivations a) {
  const int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x, groups = a.k / kGroup;
  if (item >= a.m * groups) return;
  const int64_t row = item / groups, group = item % groups;

  // Find the matrix.
  int64_t e = 0, first = 0, tile_row = 0;
  if (a.experts > 1) {
    int64_t end = a.experts;
    while (end - e > 1) {
      const int64_t middle = (e + end) / 2;
      (a.row_begin[middle] <= row ? e : end) = middle;
    }
    first = a.row_begin[e];
    if (a.order == ScaleOrder::tiles) tile_row = a.tile_begin[e];
  }

  // Load
  float x[kGroup];
  const int64_t x_item = a.rows_per_x == 1 ? item : row / a.rows_per_x * groups + group;
  const bool wide = reinterpret_cast<uintptr_t>(a.x) % 16 == 0;
#pragma unroll
  for (int i = 0; i < kGroup; i += 8) {
    if (a.interleaved) {
      float up[8];
      load_eight(a.x, a.type, 2 * (x_item * kGroup + i), wide, x + i);
      load_eight(a.x, a.type, 2 * (x_item * kGroup + i) + 8, wide, up);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[i + j] = swiglu(x[i + j], up[j], a.limit);
    } else {
      load_eight(a.x, a.type, x_item * kGroup + i, wide, x + i);
    }
  }
  if (a.row_weight) {
    const float weight = a.row_weight[row];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = __fmul_rn(x[i], weight);
  }
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) largest = max(largest, __float_as_uint(x[i]) & 0x7FFFFFFFu);

  // The block scale by ModelOpt's max rule
  const float g = a.global_scale[e];
  float wanted = __fdiv_rn(__uint_as_float(largest), __fmul_rn(kE2m1Max, g));
  if (wanted == 0.0f) wanted = 1.0f;
  if (wanted < 0x1p-9f) wanted = 0x1p-9f;
  const uint8_t scale = e4m3_from_float(wanted);
  const float step = __fmul_rn(e4m3_to_float(scale), g);
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < kGroup; ++i)
    words[i / 8] |= e2m1_from_float(__fadd_rn(__fdiv_rn(x[i], step), 0.0f)) << 4 * (i % 8);

  // Store
  *reinterpret_cast<uint2*>(a.codes + item * 8) = {words[0], words[1]};
  if (a.order == ScaleOrder::rows) {
    a.scales[item] = scale;
    return;
  }
  const Shape shape{1, a.m, a.k};
  const Stored s = Layout::place(shape, {0, tile_row + row - first, group, 8});
  a.scales[s.at.row * Layout::part(1, shape).cols + s.at.col] = scale;
}

}  // namespace

void pack_g8(const DenseMatrices& d, bool gated, uint8_t* weight, uint8_t* scale, Stream stream) {
  constexpr const char* kWhere = "pack_g8";
  check_dense(kWhere, d);
  expect(!gated || d.n % 16 == 0, kWhere, "rows of gate and up in multiples of 8", std::to_string(d.n));
  if (d.e == 0 || d.n == 0 || d.k == 0) return;
  const Shape shape{1, d.n, d.k, gated};
  const int64_t pitch = d.k / 2, scale_bytes = Layout::part(1, shape).bytes();
  const bool wide = pitch % 16 == 0 &&
                    (reinterpret_cast<uintptr_t>(d.codes) | reinterpret_cast<uintptr_t>(weight)) % 16 == 0;
  const auto e = static_cast<unsigned>(d.e);
  const int64_t pieces = d.n * (wide ? pitch / 16 : pitch);
  expect(pieces <= 0x7FFFFFFF, kWhere, "at most 2^31 bytes an expert", std::to_string(pieces));
  launch(kWhere, stream, {dim3(blocks_for(pieces, kThreads).x, e), kThreads},
         wide ? pack_codes_kernel<true> : pack_codes_kernel<false>, d, shape, weight);
  launch(kWhere, stream, {dim3(blocks_for(scale_bytes / 4, kThreads).x, e), kThreads}, pack_scales_kernel, d,
         shape, scale);
}

void dequantize_to_bf16(const DenseMatrices& d, const float* global_scale, void* out, Stream stream) {
  dequantize<false>("dequantize_to_bf16", d, global_scale, nullptr, out, stream);
}

void dequantize_to_fp8(const DenseMatrices& d, const float* global_scale, const float* row_scale,
                       uint8_t* out, Stream stream) {
  dequantize<true>("dequantize_to_fp8", d, global_scale, row_scale, out, stream);
}

void quantize_activations(const QuantizeActivations& a, Stream stream) {
  constexpr const char* kWhere = "quantize_activations";
  expect(a.m >= 0 && a.k >= 0 && a.k % kGroup == 0 && a.experts >= 1, kWhere, "K a multiple of 16",
         std::to_string(a.m) + " x " + std::to_string(a.k));
  expect(a.rows_per_x >= 1 && a.m % a.rows_per_x == 0, kWhere, "whole rows of x",
         std::to_string(a.m) + " rows of " + std::to_string(a.rows_per_x));
  expect(!a.interleaved || !a.row_weight, kWhere, "no weights of rows that are interleaved", "some");
  expect(a.experts == 1 || (a.row_begin && (a.order == ScaleOrder::rows || a.tile_begin)), kWhere,
         "the first rows of several matrices", "nullptr");
  expect(reinterpret_cast<uintptr_t>(a.codes) % 8 == 0 && reinterpret_cast<uintptr_t>(a.x) % 8 == 0, kWhere,
         "activations and codes on multiples of 8 bytes", "another address");
  const int64_t items = a.m * (a.k / kGroup);
  if (items == 0) return;
  launch(kWhere, stream, {blocks_for(items, kThreads), kThreads}, quantize_kernel, a);
}

}  // namespace twofour::cuda
