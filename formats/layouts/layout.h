#pragma once
#include <cstdint>
#include <span>

#include "formats/atom.h"
#include "formats/dtype.h"
#include "formats/hd.h"

namespace twofour {

/// The shape of a layout: E matrices of N output rows and K inputs.
struct Shape {
  int64_t e;  ///< number of experts
  int64_t n;  ///< number of output features; 2I for a gated w13, whose gate rows come before its up rows
  int64_t k;  ///< number of input features, a multiple of 16
  bool gated = false;  ///< true if rows [0, n/2) are gate and rows [n/2, n) are up
  TWOFOUR_HD constexpr int64_t groups() const { return k / kGroup; }
  bool operator==(const Shape&) const = default;
};

/// One tensor of a layout. It has [E, rows, cols] elements of one byte each.
struct Part {
  const char* suffix;  ///< suffix of the tensor's name: "comp" in "P.w13_comp"
  DType dtype;
  int64_t rows, cols;
  TWOFOUR_HD constexpr int64_t bytes() const { return rows * cols; }  ///< bytes of one expert
};

/// The outermost axis of an expert in every part of a layout. Cut an expert at multiples of kTileAlignment on
/// this axis: each piece is then one run of bytes in each part, and the layout's map describes the piece as a
/// matrix.
enum class Axis { kK, kN };
inline constexpr int64_t kTileAlignment = 128;

/// The position of a byte in a part.
struct Place {
  int64_t e, row, col;
  bool operator==(const Place&) const = default;
};

/// The position of a byte in the source: byte `byte` of the atom (DenseGroup or SparseGroup) that holds the
/// 16 weights at (e, n, group).
struct Source {
  int64_t e, n, group;
  int byte;  ///< offset in the atom, or kPadding
  bool operator==(const Source&) const = default;
};
inline constexpr int kPadding = -1;

/// The position of a byte in a layout: the part, and the place in the part.
struct Stored {
  int part;
  Place at;
};

}  // namespace twofour
