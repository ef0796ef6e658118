#pragma once
#include <optional>

#include "formats/layouts/checkpoint_rows.h"
#include "formats/layouts/layouts.h"
#include "kernels/multiply/dense_multiply.h"

namespace twofour::cuda {

/// The SparseLayout of a 2:4 layout. Empty if no kernel reads the layout.
template <class Layout>
inline constexpr std::optional<SparseLayout> kSparseLayout = std::nullopt;
template <>
inline constexpr std::optional<SparseLayout> kSparseLayout<KMajorPlanes> = SparseLayout::planes;
template <>
inline constexpr std::optional<SparseLayout> kSparseLayout<KMajorPacked> = SparseLayout::packed;

/// The DenseLayout of a dense layout. Empty if no kernel reads the layout.
template <class Layout>
inline constexpr std::optional<DenseLayout> kDenseLayout = std::nullopt;
template <>
inline constexpr std::optional<DenseLayout> kDenseLayout<GateUpInterleaved8> = DenseLayout::g8;
template <>
inline constexpr std::optional<DenseLayout> kDenseLayout<CheckpointRows> = DenseLayout::rows;

/// Calls `f.template operator()<Layout>()` with the layout that belongs to `layout`. Only this function
/// distinguishes the values of SparseLayout.
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
