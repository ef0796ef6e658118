#include <algorithm>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"
#include "kernels/multiply/device_layouts.h"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/multiply/many_rows.h"
#include "kernels/multiply/sparse_launch.h"

namespace twofour::cuda {
namespace {

constexpr int kPrepareThreads = 512, kPrepareWarps = kPrepareThreads / 32;

/// Block 0 sorts rows if requested. Each warp of the other blocks prepares 64 k of a row.
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ PrepareArgs a) {
  extern __shared__ int counts[];  // [E] counts, later the position of the next row of each expert
  release_successor();
  if (a.route && blockIdx.x == 0) return sort_rows<kPrepareThreads>(a.rows, *a.route, a.sorted, counts);
  const int lane = static_cast<int>(threadIdx.x) % 32, steps = (a.k + 63) / 64;
  const int64_t item = (blockIdx.x - (a.route ? 1 : 0)) * int64_t{kPrepareWarps} + threadIdx.x / 32;
  if (item >= int64_t{a.rows_x} * steps) return;
  const int64_t row = item / steps;
  const int step = static_cast<int>(item % steps), k = step * 64 + 2 * lane;
  const float2 x = k < a.k ? load_pair(a.x, a.type, row * a.k + k) : float2{0, 0};
  prepare_step(a.to, row, steps, step, lane, x);
}

constexpr const char* kWhere = "sparse_multiply";

/// Computes one output. Reads 16 weights at a time through the layout's map.
template <class Layout>
__global__ void reference_kernel(SparseExperts w, ExpertRows rows) {
  const int64_t n = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, r = blockIdx.y;
  const int e = rows.ids[r];
  if (e < 0 || e >= w.e) {
    if (rows.error) *rows.error = 1;
    return;
  }
  if (n >= w.n) return;
  const Shape shape{w.e, w.n, w.k};
  float sum = 0;
  for (int64_t group = 0; group < shape.groups(); ++group) {
    SparseGroup sparse;
    for (int byte = 0; byte < static_cast<int>(sizeof sparse); ++byte) {
      const Stored s = Layout::place(shape, {e, n, group, byte});
      const Part part = Layout::part(s.part, shape);
      reinterpret_cast<uint8_t*>(&sparse)[byte] =
          w.parts[s.part][(s.at.e * part.rows + s.at.row) * part.cols + s.at.col];
    }
    const DenseGroup dense = expand(sparse);
    float products = 0;
    for (int i = 0; i < kGroup; ++i) {
      const float2 x = load_pair(rows.x, rows.x_type, r / rows.rows_per_x * w.k + group * kGroup + (i & ~1));
      const unsigned code = dense.codes[i / 2] >> 4 * (i % 2) & 15u;
      products = fmaf(e2m1_to_float(code), i % 2 ? x.y : x.x, products);
    }
    sum = fmaf(e4m3_to_float(sparse.scale), products, sum);
  }
  const float weight = w.global_scale[e] * (rows.row_weight ? rows.row_weight[r] : 1.0f);
  store_float(rows.out, rows.out_type, r * w.n + n, sum * weight);
}

void check_rows(const ExpertRows& rows) {
  expect(rows.rows >= 0 && rows.rows_per_x > 0 && rows.rows % rows.rows_per_x == 0, kWhere, "whole tokens",
         std::to_string(rows.rows) + " rows of " + std::to_string(rows.rows_per_x));
  expect(rows.rows_per_x <= 4096, kWhere, "at most 4096 rows of each x", std::to_string(rows.rows_per_x));
  expect(rows.rows < (1 << 24), kWhere, "less than 2^24 rows", std::to_string(rows.rows));
  expect(rows.rows == 0 || (rows.x && rows.ids && rows.out), kWhere, "x, ids and out", "nullptr");
  expect_aligned(kWhere, "x", rows.x, 2 * size_of(rows.x_type));
}

/// The number of rows per expert from which the kernel for many rows is faster.
constexpr int64_t kManyRowsFrom = 8;

/// True if the kernel for many rows is faster and supports these rows.
bool wants_many_rows(const SparseArgs& a, const ExpertRows& rows, const SparsePlan& plan) {
  const bool planned = plan.warps_k || plan.warps_n || plan.cluster || plan.tile_m;
  return !planned && fits_many_rows(a) && are_many_rows(rows, a.e, kManyRowsFrom);
}

MultiplyWorkspace workspace_of(const SparseExperts& w, const ExpertRows& rows) {
  const int64_t steps = rows.rows / rows.rows_per_x * prepared_steps(w.k);
  return {steps * 128, steps, rows.rows, w.e};
}

}  // namespace

void launch_prepare(const PrepareArgs& a, Stream stream) {
  const int64_t blocks =
      (a.rows_x * prepared_steps(a.k) + kPrepareWarps - 1) / kPrepareWarps + (a.route ? 1 : 0);
  launch(
      "prepare rows", stream,
      {dim3(static_cast<unsigned>(blocks)), kPrepareThreads, a.route ? static_cast<size_t>(a.rows.e) * 4 : 0},
      prepare_kernel, a);
}

size_t sparse_multiply_workspace(const SparseExperts& experts, const ExpertRows& rows) {
  return static_cast<size_t>(
      std::max(workspace_of(experts, rows).bytes, ManyRowsWorkspace(rows.rows, experts.e, 0).bytes));
}

void sparse_multiply(const SparseExperts& experts, const ExpertRows& rows, void* workspace, size_t bytes,
                     Stream stream, const SparsePlan& plan) {
  SparseArgs a{};
  describe_weights(experts, false, kWhere, a);
  check_rows(rows);
  if (rows.rows == 0) return;
  const MultiplyWorkspace at = workspace_of(experts, rows);
  expect_workspace(kWhere, workspace, bytes, static_cast<int64_t>(sparse_multiply_workspace(experts, rows)));
  auto* base = static_cast<char*>(workspace);
  a.rows = {rows.ids, nullptr, static_cast<int32_t>(rows.rows), a.e, a.e, rows.error};
  if (wants_many_rows(a, rows, plan))
    return launch_many_rows(a, experts.layout, sort_many_rows(a.rows, rows, experts, false, base, stream),
                            stream);
  a.rows_per_x = static_cast<int32_t>(rows.rows_per_x);
  a.x = {reinterpret_cast<uint4*>(base + at.halves), reinterpret_cast<float*>(base + at.factors)};
  a.row_weight = rows.row_weight;
  a.distinct = rows.distinct;
  const bool raw = rows.distinct && takes_raw(a, rows.x, rows.x_type);
  if (raw) a.raw = rows.x, a.raw_type = rows.x_type;
  if (!rows.distinct) {
    a.route = reinterpret_cast<Route*>(base + at.route);
    a.sorted = reinterpret_cast<int32_t*>(base + at.sorted);
    a.route_from_predecessor = true;
  }
  a.epilogue = Epilogue::rows;
  a.out = rows.out;
  a.out_type = rows.out_type;
  if (!raw) {
    launch_prepare({rows.x, rows.x_type, static_cast<int32_t>(rows.rows / rows.rows_per_x), a.k, a.x, a.rows,
                    const_cast<Route*>(a.route), const_cast<int32_t*>(a.sorted)},
                   stream);
  }
  launch_sparse(a, experts.layout, plan, !raw, stream);
}

void sparse_multiply_reference(const SparseExperts& experts, const ExpertRows& rows, Stream stream) {
  SparseArgs a{};
  describe_weights(experts, false, kWhere, a);
  check_rows(rows);
  expect(rows.rows <= 65535, kWhere, "at most 65535 rows", std::to_string(rows.rows));
  if (rows.rows == 0) return;
  const Launch how{dim3(static_cast<unsigned>((experts.n + 127) / 128), static_cast<unsigned>(rows.rows)),
                   128};
  with_sparse_layout(experts.layout, [&]<class L>() {
    launch("sparse_multiply_reference", stream, how, reference_kernel<L>, experts, rows);
  });
}

}  // namespace twofour::cuda
