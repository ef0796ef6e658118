#include <algorithm>

#include "kernels/device/check.h"
#include "kernels/device/launch.cuh"
#include "kernels/multiply/device_layouts.h"
#include "kernels/multiply/many_rows_dense.cuh"
#include "kernels/multiply/many_rows_kernel.cuh"
#include "kernels/multiply/many_rows_sparse.cuh"

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "products of many rows";

template <class Tiles, class Width>
void launch_width(const Tiles& weights, const ManyRows& rows, Stream stream) {
  using Shared = ManyRowsShared<Tiles, Width>;
  const auto per_x = static_cast<uint64_t>(rows.rows_per_x);
  check(!rows.active || rows.out_type == Float::bf16, "active rows in BF16");
  check(!rows.gated || rows.active, "gated columns that become active ones");
  ManyRowsArgs<Tiles> a{weights, rows, rows.k / Tiles::kStepK, 0, {}};
  a.rows.x_multiplier = ((uint64_t{1} << 36) + per_x - 1) / per_x;
  const int columns = rows.gated ? rows.n / 2 : rows.n, wide = (rows.gated ? 64 : 128) * kItemColumns<Width>;
  a.column_tiles = (columns + wide - 1) / wide;
  if constexpr (Width::kBlocks > 1) {
    check(rows.x_is_sorted, "sorted rows");
    a.boxes = describe_boxes(rows.x, rows.x_rows, rows.k, SortedRows::kBoxRows);
  }
  const int blocks = std::max(multiprocessors(stream) / Width::kBlocks, 1) * Width::kBlocks;
  const Launch how{dim3(static_cast<unsigned>(blocks)), kManyRowsThreads<Width>,
                   static_cast<size_t>(Shared::kBytes), Width::kBlocks, true};
  launch(kWhere, stream, how, many_rows_kernel<Tiles, Width>, a);
}

template <class Tiles>
void launch_tiles(const Tiles& weights, const ManyRows& rows, Stream stream) {
  if (rows.most == kNarrowRows) return launch_width<Tiles, NarrowRows>(weights, rows, stream);
  if (rows.most == kMiddleRows) return launch_width<Tiles, MiddleRows>(weights, rows, stream);
  check(rows.most == kWideRows, "records of a known number of rows");
  launch_width<Tiles, WideRows>(weights, rows, stream);
}

}  // namespace

bool has_many_rows() {
  return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

bool fits_many_rows(const SparseArgs& w) { return w.aligned && w.k % SparseTiles::kStepK == 0; }

bool fits_many_rows(const DenseWeights& w) {
  return w.layout == DenseLayout::g8 && w.k % DenseTiles<2>::kStepK == 0 && w.n % 16 == 0 &&
         w.n < (1 << 24) &&
         (reinterpret_cast<uintptr_t>(w.codes) | reinterpret_cast<uintptr_t>(w.scales)) % 16 == 0;
}

void launch_many_rows(const DenseWeights& w, const ManyRows& rows, Stream stream) {
  using Layout = GateUpInterleaved8;
  const Shape shape{2, std::max<int64_t>(w.n, 256),
                    w.k};  // rows as stored, so that offsets of 128 of them exist
  const Shape own{w.e, w.n, w.k};
  const auto scale_at = [&](int64_t row, int64_t group) {
    const Stored s = Layout::place(shape, {0, row, group, 8});
    return s.at.row * Layout::part(1, shape).cols + s.at.col;
  };
  const DenseStrides strides{w.codes,
                             w.scales,
                             Layout::part(0, own).bytes(),
                             Layout::part(1, own).bytes(),
                             Layout::part(0, own).cols,
                             scale_at(128, 0) - scale_at(0, 0),
                             scale_at(0, 4) - scale_at(0, 0)};
  if (rows.most == kMostRows)
    return launch_width<DenseTiles<1>, PairedRows>(DenseTiles<1>{strides}, rows, stream);
  launch_tiles(DenseTiles<2>{strides}, rows, stream);
}

void launch_many_rows(const SparseArgs& weights, SparseLayout layout, const ManyRows& rows, Stream stream) {
  SparseArgs a = weights;
  a.cluster = a.warps_k = 1;
  with_sparse_layout(layout, [&]<class L>() { measure_strides<L>(a); });
  SparseTiles tiles{a.comp,        a.meta,        a.scale,        {},
                    a.comp_expert, a.meta_expert, a.scale_expert, a.comp_group,
                    a.meta_group,  a.scale_group, a.meta_odd};
  for (int quad = 0; quad < 4; ++quad) tiles.comp_quad[quad] = a.comp_quad[quad];
  launch_tiles(tiles, rows, stream);
}

}  // namespace twofour::cuda
