#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/floats/device_rows.cuh"

namespace twofour::cuda {
namespace {

struct RowArguments {
  DeviceMatrix matrices[kMostMatrices];
  const DeviceMatrix* table;
  const int32_t* ids;
  int count;
  std::optional<MatrixFormat> format;  ///< of all matrices; nothing: of several
  int64_t e, n, k;
  RowInput in;
  RowOutput to;
};

/// Asks for the weights of a row, to be in the L2 cache.
__device__ void prefetch_row(const DeviceMatrix& m, int64_t n) {
  const int bits = m.format == MatrixFormat::bf16 ? 16 : 4;
  const int64_t bytes = m.k * bits / 8;
  const char* row = static_cast<const char*>(m.weights) + n * bytes;
  for (int64_t i = threadIdx.x % 32 * int64_t{128}; i < bytes; i += 32 * 128)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + i));
}

/// Formats that have a kernel of their own, with room for the registers of many blocks, and the others.
enum class RowFormats { bf16, nvfp4, any };

/// Blocks that a multiprocessor has at a time.
constexpr int blocks_of(RowFormats formats) { return formats == RowFormats::any ? 2 : 3; }
constexpr MatrixFormat format_of(RowFormats formats) {
  return formats == RowFormats::nvfp4 ? MatrixFormat::nvfp4 : MatrixFormat::bf16;
}

/// A row of several matrices whose results follow each other.
struct RowPlace {
  const DeviceMatrix* matrix;
  int64_t n;
};
__device__ __forceinline__ RowPlace place_of(const DeviceMatrix* matrices, int64_t n) {
  while (n >= matrices->n) n -= (matrices++)->n;
  return {matrices, n};
}

/// Weights do not depend on kernels before this one: the first row of each warp is asked for, and those
/// behind it are brought nearer, before these end.
template <RowFormats kFormats>
__global__ void __launch_bounds__(kRowThreads, blocks_of(kFormats))
    multiply_row_kernel(const __grid_constant__ RowArguments a) {
  extern __shared__ float4 shared[];
  constexpr bool kIsAny = kFormats == RowFormats::any;
  release_successor();
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kRowWarps, row = blockIdx.y;
  const int64_t lane = threadIdx.x % 32;
  int64_t n = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  RowAhead<format_of(kFormats)> ahead;
  const auto fetch = [&](const DeviceMatrix* matrices, int64_t of) {
    if (kIsAny || of >= a.n) return;
    const RowPlace p = place_of(matrices, of);
    ahead.fetch(*p.matrix, p.n, lane * 8);
  };
  const DeviceMatrix* matrices = a.matrices;
  if (!kIsAny && a.table == nullptr) {
    fetch(matrices, n);
    constexpr int kRowsAhead = 4;
    for (int64_t next = n + warps; next < min(a.n, n + kRowsAhead * warps); next += warps) {
      const RowPlace p = place_of(matrices, next);
      prefetch_row(*p.matrix, p.n);
    }
  }
  wait_for_predecessor();
  if (a.table != nullptr) {
    const int32_t id = a.ids[row];
    if (id < 0 || id >= a.e) return;
    matrices = a.table + static_cast<int64_t>(id) * a.count;
    fetch(matrices, n);
  }
  const SharedRow x{reinterpret_cast<float*>(shared), (a.k + 7) / 8 * 4};
  load_input(a.in, row, a.k, x);
  for (; n < a.n; n += warps) {
    const RowPlace p = place_of(matrices, n);
    const DeviceMatrix& m = *p.matrix;
    float sum;
    if constexpr (kIsAny) {
      sum = dot_any_row(m, p.n, x);
    } else {
      sum = dot_row(m, p.n, x, ahead);
      fetch(matrices, n + warps);
      sum = sum_of_warp(sum);
    }
    if (lane != 0) continue;
    sum *= m.global_scale;
    if (m.bias != nullptr) sum += m.bias[p.n];
    float* out = a.to.out + row * a.n + n;
    *out = a.to.adds ? *out + sum : sum;
  }
}

/// Blocks of a multiprocessor that take `each` blocks' work in turns, so that the last turn has much to do.
int64_t even_blocks(int64_t each, int64_t most) {
  int64_t best = most;
  double best_share = 0;
  for (int64_t n = most; n > 1; --n) {
    const double share = static_cast<double>(each) / static_cast<double>((each + n - 1) / n * n);
    if (share > best_share + 0.05) best = n, best_share = share;
  }
  return best;
}

template <RowFormats kFormats>
void start_kernel(const RowArguments& a, int64_t rows, Stream stream) {
  const int64_t blocks = (a.n + kRowWarps - 1) / kRowWarps, all = multiprocessors();
  const int64_t most = even_blocks((blocks * rows + all - 1) / all, blocks_of(kFormats)) * all;
  const dim3 grid(static_cast<unsigned>(std::min(blocks, std::max<int64_t>(1, most / rows))),
                  static_cast<unsigned>(rows));
  launch("product of a row", stream, {grid, kRowThreads, row_shared(a.k), 1, true},
         multiply_row_kernel<kFormats>, a);
}

void start_rows(const RowArguments& a, int64_t rows, Stream stream) {
  expect(row_shared(a.k) <= static_cast<size_t>(shared_memory_limit()), "product of a row",
         "a row that fits shared memory", std::to_string(a.k) + " numbers");
  if (a.format == MatrixFormat::bf16) return start_kernel<RowFormats::bf16>(a, rows, stream);
  if (a.format == MatrixFormat::nvfp4) return start_kernel<RowFormats::nvfp4>(a, rows, stream);
  start_kernel<RowFormats::any>(a, rows, stream);
}

__device__ __forceinline__ void split(float x, uint16_t& high, uint16_t& low) {
  const __nv_bfloat16 h = __float2bfloat16_rn(x);
  high = __bfloat16_as_ushort(h);
  low = __bfloat16_as_ushort(__float2bfloat16_rn(x - __bfloat162float(h)));
}

__global__ void __launch_bounds__(kRowThreads)
    split_kernel(const float* x, int64_t count, uint16_t* high, uint16_t* low) {
  release_successor();
  wait_for_predecessor();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) * 4;
  if (i + 4 <= count) {
    const float4 v = *reinterpret_cast<const float4*>(x + i);
    ushort4 h, l;
    split(v.x, h.x, l.x), split(v.y, h.y, l.y), split(v.z, h.z, l.z), split(v.w, h.w, l.w);
    *reinterpret_cast<ushort4*>(high + i) = h;
    *reinterpret_cast<ushort4*>(low + i) = l;
    return;
  }
  for (int64_t j = i; j < count; ++j) split(x[j], high[j], low[j]);
}

/// Each thread has eight weights of a row.
template <class Store>
__device__ void decode_eight(const DeviceMatrix& m, int64_t n, int64_t k, const Store& store) {
  float w[8];
  with_format(m.format, [&]<MatrixFormat kFormat>() { load_weights<kFormat>(m, n, k, m.k % 8 == 0, w); });
  for (int i = 0; i < 8 && k + i < m.k; ++i) store(k + i, w[i]);
}

__global__ void __launch_bounds__(kRowThreads)
    expand_kernel(const __grid_constant__ DeviceMatrix m, int64_t n0, int64_t rows, uint16_t* high,
                  uint16_t* low) {
  const int64_t eights = (m.k + 7) / 8, i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i >= rows * eights) return;
  const int64_t row = i / eights;
  decode_eight(m, n0 + row, i % eights * 8, [&](int64_t k, float w) {
    uint16_t h, l;
    split(w, h, l);
    high[row * m.k + k] = h;
    if (low != nullptr) low[row * m.k + k] = l;
  });
}

__global__ void __launch_bounds__(kRowThreads)
    take_rows_kernel(const __grid_constant__ DeviceMatrix m, const int32_t* ids, int64_t count, float* out) {
  release_successor();
  wait_for_predecessor();
  const int64_t eights = (m.k + 7) / 8, i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i >= count * eights) return;
  const int64_t row = i / eights;
  decode_eight(m, ids[row], i % eights * 8,
               [&](int64_t k, float w) { out[row * m.k + k] = w * m.global_scale; });
}

__global__ void __launch_bounds__(kRowThreads)
    add_bias_kernel(float* out, int64_t m, int64_t n, int64_t stride, const float* bias) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i < m * n) out[i / n * stride + i % n] += bias[i % n];
}

}  // namespace

void multiply_row(std::span<const DeviceMatrix> matrices, const RowInput& in, const RowOutput& to,
                  Stream stream) {
  const char* where = "product of a row";
  expect(!matrices.empty() && matrices.size() <= kMostMatrices, where, "1 to 4 matrices",
         std::to_string(matrices.size()));
  RowArguments a{};
  a.count = static_cast<int>(matrices.size());
  a.k = matrices.front().k, a.format = matrices.front().format;
  for (int i = 0; i < a.count; ++i) {
    a.matrices[i] = matrices[static_cast<size_t>(i)];
    expect(a.matrices[i].k == a.k, where, "matrices of one K", std::to_string(a.matrices[i].k));
    a.n += a.matrices[i].n;
    if (a.format != a.matrices[i].format) a.format.reset();
  }
  a.in = in, a.to = to;
  start_rows(a, 1, stream);
}

void multiply_expert_rows(const ExpertMatrices& experts, const int32_t* ids, int64_t rows, const RowInput& in,
                          const RowOutput& to, Stream stream) {
  if (rows == 0) return;
  RowArguments a{};
  a.table = experts.table, a.ids = ids, a.count = experts.count, a.format = experts.format;
  a.e = experts.e, a.n = experts.n, a.k = experts.k;
  a.in = in, a.to = to;
  start_rows(a, rows, stream);
}

void take_rows(const DeviceMatrix& m, const int32_t* ids, int64_t count, float* out, Stream stream) {
  if (count == 0) return;
  launch("rows of a matrix", stream,
         {blocks_for(count * ((m.k + 7) / 8), kRowThreads), kRowThreads, 0, 1, true}, take_rows_kernel, m,
         ids, count, out);
}

void split_floats(const float* x, int64_t count, void* high, void* low, Stream stream) {
  if (count == 0) return;
  launch("split", stream, {blocks_for((count + 3) / 4, kRowThreads), kRowThreads, 0, 1, true}, split_kernel,
         x, count, static_cast<uint16_t*>(high), static_cast<uint16_t*>(low));
}

void expand_rows(const DeviceMatrix& m, int64_t n0, int64_t rows, void* high, void* low, Stream stream) {
  if (rows == 0) return;
  launch("expand", stream, {blocks_for(rows * ((m.k + 7) / 8), kRowThreads), kRowThreads}, expand_kernel, m,
         n0, rows, static_cast<uint16_t*>(high), static_cast<uint16_t*>(low));
}

void add_bias(float* out, int64_t m, int64_t n, int64_t stride, const float* bias, Stream stream) {
  if (m * n == 0) return;
  launch("bias", stream, {blocks_for(m * n, kRowThreads), kRowThreads}, add_bias_kernel, out, m, n, stride,
         bias);
}

}  // namespace twofour::cuda
