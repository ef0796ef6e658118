#include <algorithm>

#include "kernels/attention/device_attention.h"
#include "kernels/attention/device_heads.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kQueries = 64, kKeys = 64;
/// The number of extra elements in each row of shared memory, so that eight rows begin in different banks.
constexpr int kSkew = 8;

/// 64 rows in shared memory. Each number is the sum of two BF16 numbers.
struct Tile {
  __nv_bfloat16 *high, *low;
  int stride;

  __device__ uint32_t address(bool is_low, int row, int column) const {
    return shared_address((is_low ? low : high) + row * stride + column);
  }
};

__device__ __forceinline__ void store_split(const Tile& to, int row, int column, const float (&v)[4]) {
  float rest[4];
  uint32_t pairs[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    pairs[i] = bfloat2_of(v[2 * i], v[2 * i + 1]);
    rest[2 * i] = v[2 * i] - __uint_as_float(pairs[i] << 16);
    rest[2 * i + 1] = v[2 * i + 1] - __uint_as_float(pairs[i] & 0xFFFF0000u);
  }
  const int at = row * to.stride + column;
  *reinterpret_cast<uint2*>(to.high + at) = make_uint2(pairs[0], pairs[1]);
  *reinterpret_cast<uint2*>(to.low + at) =
      make_uint2(bfloat2_of(rest[0], rest[1]), bfloat2_of(rest[2], rest[3]));
}

/// Loads rows [first, first + 64) of `rows` rows with `size` numbers each. Zeros pad missing rows, and each
/// row up to `padded` numbers.
__device__ void load_tile(const float* from, int64_t stride, int64_t first, int64_t rows, int size,
                          int padded, const Tile& to) {
  const int fours = padded / 4;
  const bool wide = size % 4 == 0 && stride % 4 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
  for (int i = static_cast<int>(threadIdx.x); i < kKeys * fours; i += kThreads) {
    const int row = i / fours, column = i % fours * 4;
    float v[4] = {};
    if (first + row < rows && column < size) {
      const float* at = from + (first + row) * stride + column;
      if (wide) {
        const float4 four = *reinterpret_cast<const float4*>(at);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
      } else {
        for (int j = 0; j < 4 && column + j < size; ++j) v[j] = at[j];
      }
    }
    store_split(to, row, column, v);
  }
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_turned(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float largest_of_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float sum_of_four(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

template <int kHead, int kValue>
constexpr size_t attend_shared() {
  return size_t{2} * 2 * (kQueries * (kHead + kSkew) + kKeys * (kHead + kSkew) + kKeys * (kValue + kSkew));
}

/// Computes 64 queries of a head, 16 in each warp. kHead and kValue are the padded sizes.
template <int kHead, int kValue>
__global__ void __launch_bounds__(kThreads)
    attend_kernel(const __grid_constant__ DeviceAttention in, float* out) {
  extern __shared__ uint4 shared[];
  constexpr int kHeadStride = kHead + kSkew, kValueStride = kValue + kSkew;
  auto* at = reinterpret_cast<__nv_bfloat16*>(shared);
  const auto tile = [&](int stride) {
    const Tile t{at, at + kKeys * stride, stride};
    at += 2 * kKeys * stride;
    return t;
  };
  const Tile q = tile(kHeadStride), k = tile(kHeadStride), v = tile(kValueStride);

  const int64_t head = blockIdx.y, kv = head / (in.heads / in.kv_heads);
  const int64_t q0 = (static_cast<int64_t>(gridDim.x) - 1 - blockIdx.x) * kQueries;  // the longest come first
  const int64_t before = in.keys - in.queries;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  load_tile(in.q + head * in.head_size, in.stride, q0, in.queries, static_cast<int>(in.head_size), kHead, q);

  const float sink = in.sinks != nullptr ? in.sinks[head] : -INFINITY;
  float largest[2] = {sink, sink};
  float sums[2] = {in.sinks != nullptr && lane % 4 == 0 ? 1.0f : 0.0f, 0.0f};
  sums[1] = sums[0];
  float mixed[kValue / 8][4] = {};
  const int64_t first_query = before + q0 + warp * 16 + lane / 4;  // and the query at a distance of 8
  const int64_t last = min(before + q0 + kQueries, in.keys);
  int64_t k0 = in.window > 0 ? max(int64_t{0}, before + q0 + 1 - in.window) / kKeys * kKeys : 0;
  for (; k0 < last; k0 += kKeys) {
    __syncthreads();
    load_tile(in.k + kv * in.head_size, in.kv_heads * in.head_size, k0, in.keys,
              static_cast<int>(in.head_size), kHead, k);
    load_tile(in.v + kv * in.value_size, in.kv_heads * in.value_size, k0, in.keys,
              static_cast<int>(in.value_size), kValue, v);
    __syncthreads();

    // Scores
    float scores[kKeys / 8][4] = {};
#pragma unroll 2
    for (int d = 0; d < kHead; d += 16) {
      uint32_t a_high[4], a_low[4];
      load_matrices(a_high, q.address(false, warp * 16 + lane % 16, d + lane / 16 * 8));
      load_matrices(a_low, q.address(true, warp * 16 + lane % 16, d + lane / 16 * 8));
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        uint32_t b_high[4], b_low[4];
        const int row = n + lane % 8 + lane / 16 * 8, column = d + lane / 8 % 2 * 8;
        load_matrices(b_high, k.address(false, row, column));
        load_matrices(b_low, k.address(true, row, column));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_add(scores[n / 8 + i], a_low, b_high[2 * i], b_high[2 * i + 1]);
          multiply_add(scores[n / 8 + i], a_high, b_low[2 * i], b_low[2 * i + 1]);
          multiply_add(scores[n / 8 + i], a_high, b_high[2 * i], b_high[2 * i + 1]);
        }
      }
    }

    // Softmax
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t key = k0 + n * 8 + lane % 4 * 2 + i % 2, query = first_query + i / 2 * 8;
        const bool seen = key <= query && (in.window == 0 || key > query - in.window) && key < in.keys;
        scores[n][i] = seen ? scores[n][i] * in.scale : -INFINITY;
        most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
      }
    }
    float base[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float now = fmaxf(largest[i], largest_of_four(most[i]));
      base[i] = now == -INFINITY ? 0.0f : now;
      const float factor = expf(largest[i] - base[i]);
      largest[i] = now;
      sums[i] *= factor;
#pragma unroll
      for (int n = 0; n < kValue / 8; ++n) {
        mixed[n][2 * i] *= factor;
        mixed[n][2 * i + 1] *= factor;
      }
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = expf(scores[n][i] - base[i / 2]);
        sums[i / 2] += scores[n][i];
      }
    }

    // Values
#pragma unroll
    for (int n = 0; n < kKeys; n += 16) {
      uint32_t a_high[4], a_low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = scores[n / 8 + i / 2][i % 2 * 2], y = scores[n / 8 + i / 2][i % 2 * 2 + 1];
        a_high[i] = bfloat2_of(x, y);
        a_low[i] =
            bfloat2_of(x - __uint_as_float(a_high[i] << 16), y - __uint_as_float(a_high[i] & 0xFFFF0000u));
      }
#pragma unroll
      for (int d = 0; d < kValue; d += 16) {
        uint32_t b_high[4], b_low[4];
        load_turned(b_high, v.address(false, n + lane % 16, d + lane / 16 * 8));
        load_turned(b_low, v.address(true, n + lane % 16, d + lane / 16 * 8));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_add(mixed[d / 8 + i], a_low, b_high[2 * i], b_high[2 * i + 1]);
          multiply_add(mixed[d / 8 + i], a_high, b_low[2 * i], b_low[2 * i + 1]);
          multiply_add(mixed[d / 8 + i], a_high, b_high[2 * i], b_high[2 * i + 1]);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = sum_of_four(sums[i]);
    const int64_t query = q0 + warp * 16 + lane / 4 + i * 8;
    if (query >= in.queries) continue;
    float* row = out + (query * in.heads + head) * in.value_size;
#pragma unroll
    for (int n = 0; n < kValue / 8; ++n) {
      for (int j = 0; j < 2; ++j) {
        const int column = n * 8 + lane % 4 * 2 + j;
        if (column < in.value_size) row[column] = mixed[n][2 * i + j] / sum;
      }
    }
  }
}

template <int kHead, int kValue>
void start_attend(const DeviceAttention& in, float* out, Stream stream) {
  const dim3 grid(static_cast<unsigned>((in.queries + kQueries - 1) / kQueries),
                  static_cast<unsigned>(in.heads));
  launch("attention", stream, {grid, kThreads, attend_shared<kHead, kValue>()}, attend_kernel<kHead, kValue>,
         in, out);
}

}  // namespace

void attend(const DeviceAttention& in, float* out, Stream stream) {
  check_heads(in);
  if (in.queries == 0) return;
  if (in.head_size <= 64 && in.value_size <= 64) return start_attend<64, 64>(in, out, stream);
  if (in.head_size <= 128 && in.value_size <= 128) return start_attend<128, 128>(in, out, stream);
  if (in.head_size <= 192 && in.value_size <= 128) return start_attend<192, 128>(in, out, stream);
  start_attend<256, 256>(in, out, stream);
}

}  // namespace twofour::cuda
