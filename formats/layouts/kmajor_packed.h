#pragma once
#include "formats/layouts/layout.h"

namespace twofour {

/// v7-packed stores the planes of v7 in one tensor, so that a kernel needs one pointer and one stream of
/// reads.
///   packed  U8  [E, K/8, 4N]
/// A row holds comp of the even quad, comp of the odd quad, meta and scale, N bytes each. A block scale
/// covers two rows and is stored in both. A weight takes 4 bits.
struct KMajorPacked {
  using Atom = SparseGroup;
  static constexpr const char* name = "v7-packed";
  static constexpr const char* summary =
      "2:4-pruned NVFP4, 4 bits a weight: v7 in one tensor, with each block scale twice";
  static constexpr const char* pattern = "2:4";
  static constexpr int part_count = 1;
  static constexpr Axis outer = Axis::kK;
  static constexpr bool pairs_gate_and_up = false;

  TWOFOUR_HD static constexpr Part part(int /*i*/, Shape s) {
    return {"packed", DType::kU8, s.k / 8, 4 * s.n};
  }

  static constexpr Shape shape_of(int64_t e, int64_t rows, int64_t cols) { return {e, cols / 4, 8 * rows}; }

  TWOFOUR_HD static constexpr Source source(int /*part*/, Shape s, Place at) {
    const int64_t group = at.row / 2, n = at.col % s.n;
    const int half = static_cast<int>(at.row % 2), plane = static_cast<int>(at.col / s.n);
    return {at.e, n, group, plane < 2 ? 2 * half + plane : plane == 2 ? 4 + half : 6};
  }

  TWOFOUR_HD static constexpr int copies(int byte) { return byte == 6 ? 2 : 1; }

  TWOFOUR_HD static constexpr Stored place(Shape shape, Source s, int copy = 0) {
    const int half = s.byte < 4 ? s.byte / 2 : s.byte < 6 ? s.byte - 4 : copy;
    const int plane = s.byte < 4 ? s.byte % 2 : s.byte < 6 ? 2 : 3;
    return {0, {s.e, s.group * 2 + half, plane * shape.n + s.n}};
  }
};

}  // namespace twofour
