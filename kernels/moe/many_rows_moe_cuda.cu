#include "kernels/moe/many_rows_moe.h"

#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/multiply/expert_rows.cuh"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 256;

/// The type of the products of a row: BF16 if the result is BF16, otherwise float32.
Float product_type(Float type) { return type == Float::bf16 ? Float::bf16 : Float::f32; }

struct Workspace {
  int64_t route, sorted, weights, ready, parts, x, active, y, bytes;
  Workspace(const LayerSizes& l, int64_t m, Float type) {
    const int64_t tokens = std::min(m, kManyTokens), rows = tokens * l.topk;
    route = 0;
    sorted = route + align_up(route_many_bytes(rows, l.e));
    weights = sorted + align_up(rows * 4);
    ready = weights + align_up(rows * 4);
    const ManyRowsParts shared;
    parts = ready + align_up(2 * shared.ready * 4);  // of both products
    x = parts + align_up(shared.sum_bytes);
    active = x + align_up(tokens * l.h * 2);
    y = active + align_up(rows * l.i * 2);
    bytes = y + align_up(rows * l.h * size_of(product_type(type)));
  }
};

struct SumArgs {
  RowIds rows;
  const void* y;  ///< [M * topk, H] BF16 or F32
  int32_t topk, h;
  void* out;  ///< [M, H]
  Float type;
  bool wide;  ///< out is aligned to 16 bytes
};

/// Computes out[m], the sum of those rows of a token whose experts are on this device, in their order. Each
/// thread has eight columns. Tried without gain: the block that multiplies a token's last row computes the
/// sum, because that row comes at the very end.
template <Float kProducts>
__global__ void __launch_bounds__(kThreads) sum_kernel(const __grid_constant__ SumArgs a) {
  __shared__ bool here[kMaxSegments];
  const int64_t m = blockIdx.y;
  for (int t = static_cast<int>(threadIdx.x); t < a.topk; t += kThreads)
    here[t] = local_expert(a.rows, static_cast<int>(m) * a.topk + t) >= 0;
  wait_for_predecessor();
  release_successor();
  __syncthreads();
  const int h = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * 8;
  if (h >= a.h) return;
  float sums[8] = {};
#pragma unroll 4
  for (int t = 0; t < a.topk; ++t) {
    if (!here[t]) continue;
    float v[8];
    load_eight(a.y, kProducts, (m * a.topk + t) * a.h + h, true, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] += v[i];
  }
  const int64_t at = m * a.h + h;
  if (a.wide && a.type == Float::bf16) {
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(a.out) + at) = {
        bfloat2_of(sums[0], sums[1]), bfloat2_of(sums[2], sums[3]), bfloat2_of(sums[4], sums[5]),
        bfloat2_of(sums[6], sums[7])};
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) store_float(a.out, a.type, at + i, sums[i]);
}

}  // namespace

bool knows_many_rows(const LayerSizes& l) {
  return l.h % 64 == 0 && l.i % 64 == 0 && l.e <= kMostRoutedExperts && l.topk < kMaxSegments &&
         has_many_rows();
}

bool many_rows_pay(const LayerSizes& l, int64_t m, int64_t crossing) {
  const int64_t rows = m * l.topk;
  return m > 1 && rows >= crossing * std::min(rows, l.e) && knows_many_rows(l);
}

int64_t many_rows_moe_bytes(const LayerSizes& layer, int64_t m, Float type) {
  return Workspace(layer, m, type).bytes;
}

void many_rows_moe(const LayerSizes& l, const MoeOptions& options, const MoeTokens& in, const RowIds& rows,
                   const ManyRowsLaunches& launches, void* workspace, Stream stream) {
  const Workspace at(l, in.m, in.type);
  auto* base = static_cast<char*>(workspace);
  auto* route = reinterpret_cast<Route*>(base + at.route);
  auto* sorted = reinterpret_cast<int32_t*>(base + at.sorted);
  auto* weights = reinterpret_cast<float*>(base + at.weights);
  auto* ready = reinterpret_cast<int32_t*>(base + at.ready);
  const int64_t ready_each = ManyRowsParts().ready;
  const int most = rows_of_record(rows.rows, l.e, std::min(l.gated ? 2 * l.i : l.i, l.h), launches.g8);
  launch_route_many({rows, most, in.topk_weights, route, sorted, weights, ready, 2 * ready_each}, stream);

  // Sorted x shares memory with the rows of the second product, which are written after x was read.
  const bool sorts_x = most == kMostRows;
  auto* x = reinterpret_cast<uint16_t*>(base + (sorts_x ? at.y : at.x));
  const auto topk = static_cast<int32_t>(l.topk);
  if (sorts_x || launches.g8 || in.type != Float::bf16 || reinterpret_cast<uintptr_t>(in.hidden) % 16 != 0) {
    launch_gather({in.hidden, in.type, sorts_x ? rows.rows : in.m, l.h, launches.g8,
                   sorts_x ? route : nullptr, sorted, topk},
                  x, stream);
  } else {
    x = static_cast<uint16_t*>(const_cast<void*>(in.hidden));
  }

  ManyRows up{};
  up.most = most;
  up.x_is_sorted = sorts_x, up.x_rows = rows.rows;
  up.route = route, up.sorted = sorted;
  up.sorted_weight = options.weight_on_input ? weights : nullptr;
  up.x = x, up.rows_per_x = topk;
  up.e = static_cast<int32_t>(l.e), up.n = static_cast<int32_t>(l.gated ? 2 * l.i : l.i),
  up.k = static_cast<int32_t>(l.h);
  up.gated = l.gated, up.active = true, up.limit = options.limit;
  up.parts = reinterpret_cast<float*>(base + at.parts), up.parts_ready = ready;
  up.out = base + at.active, up.out_type = Float::bf16;
  launches.up(up);

  ManyRows down{};
  down.most = most;
  down.route = route, down.sorted = sorted;
  down.sorted_weight = options.weight_on_input ? nullptr : weights;
  down.parts = up.parts, down.parts_ready = ready + ready_each;
  down.x = reinterpret_cast<const uint16_t*>(base + at.active), down.x_is_sorted = true,
  down.x_rows = rows.rows;
  down.rows_per_x = 1;
  down.e = up.e, down.n = up.k, down.k = static_cast<int32_t>(l.i);
  down.out = base + at.y, down.out_type = product_type(in.type);
  launches.down(down);

  const SumArgs sum{rows,
                    base + at.y,
                    topk,
                    static_cast<int32_t>(l.h),
                    in.out,
                    in.type,
                    reinterpret_cast<uintptr_t>(in.out) % 16 == 0};
  const dim3 grid(static_cast<unsigned>((l.h / 8 + kThreads - 1) / kThreads), static_cast<unsigned>(in.m));
  launch("sum of rows", stream, {grid, kThreads, 0, 1, true},
         down.out_type == Float::bf16 ? sum_kernel<Float::bf16> : sum_kernel<Float::f32>, sum);
}

}  // namespace twofour::cuda
