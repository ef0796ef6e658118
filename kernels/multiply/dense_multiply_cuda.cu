#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/multiply/dense_launch.h"
#include "kernels/multiply/dense_multiply.h"
#include "kernels/multiply/expert_rows.cuh"
#include "kernels/multiply/many_rows.h"

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "dense_multiply";

/// The number of rows per expert from which the kernel for many rows is faster.
constexpr int64_t kManyRowsFrom = 5;

/// True if the kernel for many rows can multiply by these weights.
bool knows_many_rows(const DenseWeights& w) { return !w.gated && fits_many_rows(w) && has_many_rows(); }

/// True if the kernel for many rows can compute these products: W4A16 with results in the order of stored
/// rows.
bool takes_many_rows(const DenseWeights& w, const DenseOptions& options) {
  return !options.nvfp4 && options.warps_k == 0 && knows_many_rows(w);
}

/// The result depends only on the shape of the weights. Their addresses may differ from those for which the
/// workspace was computed.
int64_t many_rows_bytes(const DenseWeights& w, const ExpertRows& rows) {
  DenseWeights anywhere = w;
  anywhere.codes = anywhere.scales = nullptr;
  if (!knows_many_rows(anywhere)) return 0;
  const bool sorts_x = rows_of_record(rows.rows, w.e, w.n, true) == kMostRows;
  return ManyRowsWorkspace(rows.rows, w.e, (sorts_x ? rows.rows : rows.rows / rows.rows_per_x) * w.k).bytes;
}

MultiplyWorkspace workspace_of(const DenseWeights& w, const ExpertRows& rows) {
  const int64_t x_rows = rows.rows / rows.rows_per_x;
  return {x_rows * dense_steps(w.k) * 512, x_rows, rows.rows, w.e};
}

}  // namespace

size_t dense_multiply_workspace(const DenseWeights& weights, const ExpertRows& rows) {
  return static_cast<size_t>(std::max(workspace_of(weights, rows).bytes, many_rows_bytes(weights, rows)));
}

void dense_multiply(const DenseWeights& w, const ExpertRows& rows, void* workspace, size_t bytes,
                    Stream stream, const DenseOptions& options) {
  DenseArgs a{};
  describe_dense(w, kWhere, a);
  expect(options.epilogue != DenseEpilogue::swiglu || (w.layout == DenseLayout::g8 && w.gated), kWhere,
         "gated g8 weights for SwiGLU", "others");
  expect(rows.rows >= 0 && rows.rows < 65536 && rows.rows_per_x > 0 && rows.rows % rows.rows_per_x == 0,
         kWhere, "whole tokens, less than 65536 rows", std::to_string(rows.rows));
  if (rows.rows == 0) return;
  const MultiplyWorkspace at = workspace_of(w, rows);
  expect_workspace(kWhere, workspace, bytes, static_cast<int64_t>(dense_multiply_workspace(w, rows)));
  auto* base = static_cast<char*>(workspace);
  a.rows = {rows.ids,
            options.expert_map,
            static_cast<int32_t>(rows.rows),
            options.expert_map ? static_cast<int32_t>(options.map_size) : a.e,
            a.e,
            rows.error};
  if (takes_many_rows(w, options) && are_many_rows(rows, w.e, kManyRowsFrom)) {
    ManyRows product = sort_many_rows(a.rows, rows, w, true, base, stream);
    gather_rows(rows, base, product, stream);
    return launch_many_rows(w, product, stream);
  }

  const bool in_bf16 = rows.x_type == Float::bf16 && !options.nvfp4;
  a.x = {reinterpret_cast<uint4*>(base + at.halves),
         in_bf16 ? nullptr : reinterpret_cast<float*>(base + at.factors)};
  a.rows_per_x = static_cast<int32_t>(rows.rows_per_x);
  a.row_weight = rows.row_weight;
  a.epilogue = options.epilogue, a.limit = options.limit;
  a.out = rows.out, a.out_type = rows.out_type;
  const bool single = rows.distinct && fits_dense_single(a);
  if (!single) {
    a.route = reinterpret_cast<Route*>(base + at.route);
    a.sorted = reinterpret_cast<int32_t*>(base + at.sorted);
    a.route_from_predecessor = true;
  }
  if (single && in_bf16) {
    a.raw_x = static_cast<const uint16_t*>(rows.x);
  } else {
    launch_prepare_dense({rows.x, rows.x_type, options.nvfp4 ? *options.nvfp4 : Nvfp4Rows{},
                          static_cast<int32_t>(rows.rows / rows.rows_per_x), a.k, a.x, a.rows,
                          rows.rows_per_x == 1, const_cast<Route*>(a.route), const_cast<int32_t*>(a.sorted)},
                         stream);
  }
  launch_dense(a, options.warps_k, stream);
}

}  // namespace twofour::cuda
