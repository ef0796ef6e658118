#pragma once
#include "formats/layouts/layout.h"

namespace twofour {

/// v7 stores 2:4 weights in planes with K outermost. Neighbouring bytes belong to neighbouring rows, so the
/// reads of a warp along N are coalesced.
///   comp   U8       [E, K/4, N]    two kept codes of a quad
///   meta   U8       [E, K/8, N]    positions of the kept codes of two quads
///   scale  F8_E4M3  [E, K/16, N]
struct KMajorPlanes {
  using Atom = SparseGroup;
  static constexpr const char* name = "v7";
  static constexpr const char* summary =
      "2:4-pruned NVFP4, 3.5 bits a weight: codes, metadata and block scales as three tensors, N contiguous";
  static constexpr const char* pattern = "2:4";
  static constexpr int part_count = 3;
  static constexpr Axis outer = Axis::kK;
  static constexpr bool pairs_gate_and_up = false;

  TWOFOUR_HD static constexpr Part part(int i, Shape s) {
    return i == 0   ? Part{"comp", DType::kU8, s.k / 4, s.n}
           : i == 1 ? Part{"meta", DType::kU8, s.k / 8, s.n}
                    : Part{"scale", DType::kF8E4M3, s.k / 16, s.n};
  }

  /// The shape of a matrix whose first part has these rows and columns.
  static constexpr Shape shape_of(int64_t e, int64_t rows, int64_t cols) { return {e, cols, 4 * rows}; }

  /// The source of the byte at `at` of a part. This function is the normative map.
  TWOFOUR_HD static constexpr Source source(int part, Shape, Place at) {
    return part == 0   ? Source{at.e, at.col, at.row / 4, static_cast<int>(at.row % 4)}
           : part == 1 ? Source{at.e, at.col, at.row / 2, 4 + static_cast<int>(at.row % 2)}
                       : Source{at.e, at.col, at.row, 6};
  }

  /// The number of times that a byte of an atom is stored.
  TWOFOUR_HD static constexpr int copies(int /*byte*/) { return 1; }

  /// The place of copy `copy` of a source byte.
  TWOFOUR_HD static constexpr Stored place(Shape, Source s, int /*copy*/ = 0) {
    return s.byte < 4   ? Stored{0, {s.e, s.group * 4 + s.byte, s.n}}
           : s.byte < 6 ? Stored{1, {s.e, s.group * 2 + s.byte - 4, s.n}}
                        : Stored{2, {s.e, s.group, s.n}};
  }
};

}  // namespace twofour
