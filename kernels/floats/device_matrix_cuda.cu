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
  std::optional<MatrixFormat> format;  ///< the format of all matrices; empty if they have several
  int64_t scale_cols;                  ///< width of the scales of all matrices in FP8; 0 if they differ
  int64_t e, n, k;
  RowInput in;
  RowOutput to;
};

/// The position of a row among several matrices whose results follow each other.
struct RowPlace {
  const DeviceMatrix* matrix;
  int64_t n;
};
__device__ __forceinline__ RowPlace place_of(const DeviceMatrix* matrices, int64_t n) {
#pragma unroll 1
  while (n >= matrices->n) n -= (matrices++)->n;
  return {matrices, n};
}

/// The matrices for a block's row of the input. Null if the row has no matrices.
__device__ __forceinline__ const DeviceMatrix* matrices_of(const RowArguments& a) {
  if (a.table == nullptr) return a.matrices;
  const int32_t id = a.ids[blockIdx.y];
  return id < 0 || id >= a.e ? nullptr : a.table + static_cast<int64_t>(id) * a.count;
}

/// Turns the sum of a warp's row into a result, after multiplying it by the factor of the input. One lane
/// calls this. `before` is the old value of the output.
__device__ __forceinline__ void store_result(const RowArguments& a, const RowPlace& p, int64_t n, float sum,
                                             float before) {
  sum *= p.matrix->global_scale;
  if (p.matrix->bias != nullptr) sum += p.matrix->bias[p.n];
  a.to.out[blockIdx.y * a.n + n] = a.to.adds ? before + sum : sum;
}

/// The number of pieces that a warp is copying or using.
constexpr int kPieces = 2;

/// Weights do not depend on preceding kernels, so each warp starts to copy its first pieces before these
/// kernels end. The next kernel starts after they have ended.
template <MatrixFormat kFormat>
__global__ void __launch_bounds__(kRowThreads, 3)
    multiply_row_kernel(const __grid_constant__ RowArguments a) {
  extern __shared__ float4 shared[];
  using Piece = RowPiece<kFormat>;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kRowWarps;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint8_t* pieces = reinterpret_cast<uint8_t*>(shared) + warp * (kPieces * Piece::kBytes);
  const DeviceMatrix* matrices = a.table == nullptr ? a.matrices : nullptr;
  struct {
    int64_t n, k;
  } now{static_cast<int64_t>(blockIdx.x) * kRowWarps + warp, 0}, next = now;
  const auto step = [&](auto& at) {
    at.k += Piece::kSpan;
    if (at.k >= a.k) at.n += warps, at.k = 0;
  };
  const auto copy_next = [&](uint8_t* to) {
    if (next.n < a.n) {
      const RowPlace p = place_of(matrices, next.n);
      Piece::copy(*p.matrix, p.n, next.k, to);
    }
    commit_copies();
    step(next);
  };
  const auto copy_first = [&] {
#pragma unroll 1
    for (int i = 0; i < kPieces; ++i) copy_next(pieces + i * Piece::kBytes);
  };
  if (matrices != nullptr) copy_first();
  const SharedRow x{reinterpret_cast<float*>(shared) + kRowWarps * kPieces * Piece::kBytes / 4,
                    (a.k + 7) / 8 * 4};
  InputRow input(a.in, blockIdx.y, a.k, x);
  input.prepare();
  wait_for_predecessor();
  if (matrices == nullptr) {
    matrices = matrices_of(a);
    if (matrices == nullptr) return;
    copy_first();
  }
  const auto load_before = [&] {
    return a.to.adds && lane == 0 && now.n < a.n ? a.to.out[blockIdx.y * a.n + now.n] : 0.0f;
  };
  float sum = 0, before = load_before();
  input.load();
  release_successor();
#pragma unroll 1
  for (int turn = 0; now.n < a.n; turn ^= 1) {
    uint8_t* piece = pieces + turn * Piece::kBytes;
    wait_copies<kPieces - 1>();
    __syncwarp();
    sum += Piece::dot(a.k, a.scale_cols, now.k, piece, x);
    __syncwarp();
    copy_next(piece);
    const int64_t done = now.n;
    step(now);
    if (now.n == done) continue;
    sum = sum_of_warp(sum) * input.factor();
    if (lane == 0) store_result(a, place_of(matrices, done), done, sum, before);
    sum = 0, before = load_before();
  }
}

/// Does the same for matrices of several formats, without copying ahead.
__global__ void __launch_bounds__(kRowThreads, 2)
    multiply_any_row_kernel(const __grid_constant__ RowArguments a) {
  extern __shared__ float4 shared[];
  wait_for_predecessor();
  const DeviceMatrix* matrices = matrices_of(a);
  if (matrices == nullptr) return;
  const SharedRow x{reinterpret_cast<float*>(shared), (a.k + 7) / 8 * 4};
  InputRow input(a.in, blockIdx.y, a.k, x);
  input.prepare();
  input.load();
  release_successor();
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kRowWarps;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32; n < a.n; n += warps) {
    const RowPlace p = place_of(matrices, n);
    const float sum = dot_any_row(*p.matrix, p.n, x) * input.factor();
    if (threadIdx.x % 32 != 0) continue;
    store_result(a, p, n, sum, a.to.adds ? a.to.out[blockIdx.y * a.n + n] : 0.0f);
  }
}

/// The number of blocks on a multiprocessor that share the work of `each` blocks in turns. It is chosen so
/// that the last turn is nearly full.
int64_t even_blocks(int64_t each, int64_t most) {
  int64_t best = most;
  double best_share = 0;
  for (int64_t n = most; n > 1; --n) {
    const double share = static_cast<double>(each) / static_cast<double>((each + n - 1) / n * n);
    if (share > best_share + 0.05) best = n, best_share = share;
  }
  return best;
}

/// Starts a kernel for rows. `at_once` is the number of blocks that a multiprocessor runs at a time.
void start_rows(void (*kernel)(RowArguments), int at_once, size_t shared, const RowArguments& a, int64_t rows,
                Stream stream) {
  const int64_t blocks = (a.n + kRowWarps - 1) / kRowWarps, all = multiprocessors();
  const int64_t most = even_blocks((blocks * rows + all - 1) / all, at_once) * all;
  const dim3 grid(static_cast<unsigned>(std::min(blocks, std::max<int64_t>(1, most / rows))),
                  static_cast<unsigned>(rows));
  launch("product of a row", stream, {grid, kRowThreads, shared, 1, true}, kernel, a);
}

/// Starts the kernel for matrices of one format. Returns false if the matrices have a different format, if K
/// cannot be read in pieces, or if shared memory is too small.
template <MatrixFormat kFormat>
bool start_piecewise(const RowArguments& a, int64_t rows, Stream stream) {
  using Piece = RowPiece<kFormat>;
  const size_t shared = row_shared(a.k) + size_t{kRowWarps} * kPieces * Piece::kBytes;
  const size_t room = static_cast<size_t>(shared_memory_limit());
  if (a.format != kFormat || !Piece::takes(a.k, a.scale_cols) || shared > room) return false;
  const int at_once = static_cast<int>(std::min<size_t>(3, room / shared));
  start_rows(multiply_row_kernel<kFormat>, at_once, shared, a, rows, stream);
  return true;
}

void start_rows(const RowArguments& a, int64_t rows, Stream stream) {
  expect(row_shared(a.k) <= static_cast<size_t>(shared_memory_limit()), "product of a row",
         "a row that fits shared memory", std::to_string(a.k) + " numbers");
  if (start_piecewise<MatrixFormat::bf16>(a, rows, stream)) return;
  if (start_piecewise<MatrixFormat::nvfp4>(a, rows, stream)) return;
  if (start_piecewise<MatrixFormat::mxfp4>(a, rows, stream)) return;
  if (start_piecewise<MatrixFormat::fp8>(a, rows, stream)) return;
  start_rows(multiply_any_row_kernel, 2, row_shared(a.k), a, rows, stream);
}

/// Returns x as BF16, and leaves what that lacks in x.
__device__ __forceinline__ uint16_t split(float& x) {
  const __nv_bfloat16 plane = __float2bfloat16_rn(x);
  x -= __bfloat162float(plane);
  return __bfloat16_as_ushort(plane);
}

__global__ void __launch_bounds__(kRowThreads)
    split_kernel(const float* x, int64_t count, const SplitPlanes to) {
  release_successor();
  wait_for_predecessor();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) * 4;
  if (i + 4 <= count && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    float4 v = *reinterpret_cast<const float4*>(x + i);
    for (void* plane : to.planes) {
      if (plane == nullptr) return;
      reinterpret_cast<ushort4*>(plane)[i / 4] = {split(v.x), split(v.y), split(v.z), split(v.w)};
    }
    return;
  }
  for (int64_t j = i; j < min(i + 4, count); ++j) {
    float v = x[j];
    for (void* plane : to.planes) {
      if (plane != nullptr) static_cast<uint16_t*>(plane)[j] = split(v);
    }
  }
}

/// Decodes eight weights of a row in each thread.
template <class Store>
__device__ void decode_eight(const DeviceMatrix& m, int64_t n, int64_t k, const Store& store) {
  float w[8];
  with_format(m.format, [&]<MatrixFormat kFormat>() { load_weights<kFormat>(m, n, k, m.k % 8 == 0, w); });
  for (int i = 0; i < 8 && k + i < m.k; ++i) store(k + i, w[i]);
}

__global__ void __launch_bounds__(kRowThreads)
    expand_kernel(const __grid_constant__ DeviceMatrix m, int64_t n0, int64_t rows, const SplitPlanes to) {
  const int64_t eights = (m.k + 7) / 8, i = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i >= rows * eights) return;
  const int64_t row = i / eights;
  decode_eight(m, n0 + row, i % eights * 8, [&](int64_t k, float w) {
    for (void* plane : to.planes) {
      if (plane != nullptr) static_cast<uint16_t*>(plane)[row * m.k + k] = split(w);
    }
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
  expect(!matrices.empty() && matrices.size() <= kMostMatrices, where,
         "1 to " + std::to_string(kMostMatrices) + " matrices", std::to_string(matrices.size()));
  RowArguments a{};
  a.count = static_cast<int>(matrices.size());
  a.k = matrices.front().k, a.format = matrices.front().format, a.scale_cols = matrices.front().scale_cols;
  for (int i = 0; i < a.count; ++i) {
    a.matrices[i] = matrices[static_cast<size_t>(i)];
    expect(a.matrices[i].k == a.k, where, "matrices of one K", std::to_string(a.matrices[i].k));
    a.n += a.matrices[i].n;
    if (a.format != a.matrices[i].format) a.format.reset();
    if (a.scale_cols != a.matrices[i].scale_cols) a.scale_cols = 0;
  }
  a.in = in, a.to = to;
  start_rows(a, 1, stream);
}

void multiply_expert_rows(const ExpertMatrices& experts, const int32_t* ids, int64_t rows, const RowInput& in,
                          const RowOutput& to, Stream stream) {
  if (rows == 0) return;
  RowArguments a{};
  a.table = experts.table, a.ids = ids, a.count = experts.count, a.format = experts.format;
  a.scale_cols = experts.scale_cols;
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

void split_floats(const float* x, int64_t count, const SplitPlanes& to, Stream stream) {
  if (count == 0) return;
  launch("split", stream, {blocks_for((count + 3) / 4, kRowThreads), kRowThreads, 0, 1, true}, split_kernel,
         x, count, to);
}

void expand_rows(const DeviceMatrix& m, int64_t n0, int64_t rows, const SplitPlanes& to, Stream stream) {
  if (rows == 0) return;
  launch("expand", stream, {blocks_for(rows * ((m.k + 7) / 8), kRowThreads), kRowThreads}, expand_kernel, m,
         n0, rows, to);
}

void add_bias(float* out, int64_t m, int64_t n, int64_t stride, const float* bias, Stream stream) {
  if (m * n == 0) return;
  launch("bias", stream, {blocks_for(m * n, kRowThreads), kRowThreads}, add_bias_kernel, out, m, n, stride,
         bias);
}

}  // namespace twofour::cuda
