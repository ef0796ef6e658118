#pragma once
#include <optional>

#include "formats/layouts/checkpoint_rows.h"
#include "formats/layouts/layouts.h"
#include "kernels/multiply/dense_multiply.h"

namespace twofour::cuda {

/// The device kernels' name of a 2:4 layout; empty: no kernel reads it.
template <class Layout>
inline constexpr std::optional<SparseLayout> kSparseLayout = std::nullopt;
template <>
inline constexpr std::optional<SparseLayout> kSparseLayout<KMajorPlanes> = SparseLayout::planes;
template <>
inline constexpr std::optional<SparseLayout> kSparseLayout<KMajorPacked> = SparseLayout::packed;

/// The same for a dense layout.
template <class Layout>
inline constexpr std::optional<DenseLayout> kDenseLayout = std::nullopt;
template <>
inline constexpr std::optional<DenseLayout> kDenseLayout<GateUpInterleaved8> = DenseLayout::g8;
template <>
inline constexpr std::optional<DenseLayout> kDenseLayout<CheckpointRows> = DenseLayout::rows;

/// Calls `f.template operator()<Layout>()` for the kernels' layout `layout`. Only this function distinguishes
/// them.
template <class F>
auto with_sparse_layout(SparseLayout layout, F&& f) {
  switch (layout) {
    case SparseLayout::planes:
      return f.template operator()<KMajorPlanes>();
    case SparseLayout::packed:
      break;
  }
  return f.template operator()<KMajorPacked>();
}

}  // namespace twofour::cuda
