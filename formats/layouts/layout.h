#pragma once
#include <cstdint>
#include <span>

#include "formats/atom.h"
#include "formats/dtype.h"
#include "formats/hd.h"

namespace twofour {

/// The shape of a layout: E matrices of N output rows and K inputs.
struct Shape {
  int64_t e;           ///< experts
  int64_t n;           ///< output features; for a gated w13 gate then up, so 2I
  int64_t k;           ///< input features, a multiple of 16
  bool gated = false;  ///< rows [0, n/2) are gate, [n/2, n) up
  TWOFOUR_HD constexpr int64_t groups() const { return k / kGroup; }
  bool operator==(const Shape&) const = default;
};

/// One tensor of a layout: [E, rows, cols] elements of one byte each.
struct Part {
  const char* suffix;  ///< of the tensor's name: "comp" in "P.w13_comp"
  DType dtype;
  int64_t rows, cols;
  TWOFOUR_HD constexpr int64_t bytes() const { return rows * cols; }  ///< of one expert
};

/// The axis of an expert that is outermost in every part of a layout. A piece of an expert between two
/// multiples of kTileAlignment on this axis is one run of bytes in each part, and the layout's map describes
/// it as a matrix.
enum class Axis { kK, kN };
inline constexpr int64_t kTileAlignment = 128;

/// A byte of a part.
struct Place {
  int64_t e, row, col;
  bool operator==(const Place&) const = default;
};

/// A byte of the source: byte `byte` of the atom (DenseGroup or SparseGroup) of 16 weights at (e, n, group).
struct Source {
  int64_t e, n, group;
  int byte;  ///< offset in the atom, or kPadding
  bool operator==(const Source&) const = default;
};
inline constexpr int kPadding = -1;

/// A byte of a layout: the part, and the place in it.
struct Stored {
  int part;
  Place at;
};

}  // namespace twofour
