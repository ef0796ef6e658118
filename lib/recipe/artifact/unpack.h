#pragma once
#include <cstdint>
#include <vector>

#include "formats/layouts/layout.h"
#include "lib/recipe/artifact/artifact_modules.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The tensors of a module that are unpacked.
enum class Field { kCodes, kBlockScales };

/// A box of the bytes of one expert's codes ([N, K/2]) or block scales ([N, K/16]). It has rows [r0, r1) and
/// columns [c0, c1). It does not depend on the order of storage.
struct Box {
  int64_t r0, r1, c0, c1;
};

/// The destination of unpacked bytes. It is a run of bytes of an expert's codes or block scales, or of a part
/// of its lines. A line is a row or, with `k_outer`, a column. Unpacked bytes outside of the run are dropped.
struct OutputRange {
  uint8_t* to;
  int64_t begin, end;    ///< the run, in bytes from byte `first` of line `line`
  int64_t pitch;         ///< bytes from the start of a line to the next
  int64_t line, first;   ///< the origin of begin and end
  bool k_outer = false;  ///< the module stores K as the outer dimension

  /// Writes `count` bytes along K of a row.
  void put_row(int64_t row, int64_t col, const uint8_t* from, int64_t count) const;
  /// Writes one byte to each of `count` rows that are `step` apart.
  void put_column(int64_t row, int64_t step, int64_t col, const uint8_t* from, int64_t count) const;
};

/// Converts an artifact's parts to the bytes that a module stored, by the fast path. Each thread needs its
/// own unpacker.
class ArtifactUnpacker {
 public:
  ArtifactUnpacker(const Checkpoint& artifact, const ArtifactModules& modules, uint64_t load)
      : artifact_(artifact), modules_(modules), load_(static_cast<int64_t>(load)) {}

  /// Unpacks a box of expert `e` of a module. Throws Error if the artifact's bytes violate its layout.
  void unpack(const SourceLinear& module, Field field, int64_t e, const Box& box, const OutputRange& range);

 private:
  /// A run of rows of a matrix, and the same rows in a module.
  struct Rows {
    const ArtifactMatrix& matrix;
    Field field;
    int64_t e, n;       ///< the expert and the first row in the matrix
    int64_t row, step;  ///< the first row in the module, and its step
    int64_t count;      ///< number of rows
    int64_t c0, c1;     ///< columns of the field
  };
  // Functions for 2:4 layouts, which store each byte of the atoms in lines along N.
  template <class L>
  void unpack_sparse(const Rows& rows, const OutputRange& range);
  template <class L>
  void load_lines(const Rows& rows, int64_t g0, int64_t g1);
  template <class L>
  void check_lines(const Rows& rows, int64_t g0, int64_t g1) const;
  void put_sparse_codes(const Rows& rows, int64_t g0, int64_t g1, const OutputRange& range);
  void put_sparse_scales(const Rows& rows, int64_t g0, int64_t g1, int copies, const OutputRange& range);
  // Functions for dense layouts, which store each row of codes, and each four block scales, contiguously.
  template <class L>
  void unpack_dense_codes(const Rows& rows, const OutputRange& range);
  template <class L>
  void unpack_dense_scales(const Rows& rows, const OutputRange& range);
  template <class L>
  void check_padding(const ArtifactMatrix& matrix, int64_t e, int64_t first, Shape shape) const;

  void unpack_sparse_rows(const Rows& rows, const OutputRange& range);
  void unpack_dense_rows(const Rows& rows, const OutputRange& range);
  void put_block(const Rows& rows, int64_t i, int64_t count, int64_t col, int64_t cols, const uint8_t* from,
                 int64_t pitch, const OutputRange& range) const;

  const Checkpoint& artifact_;
  const ArtifactModules& modules_;
  int64_t load_;
  std::vector<uint8_t> loaded_, rows_;
  std::vector<const uint8_t*> lines_;  ///< loaded 2:4 lines, by byte of an atom and copy
};

/// The numbers of rows and columns that are transposed at once, so that they stay in the L1 cache.
inline constexpr int64_t kBlockRows = 32, kBlockCols = 64;

/// The offset of a source byte in its part of one expert.
template <class L>
int64_t offset_of(Shape shape, int64_t n, int64_t group, int byte, int copy = 0) {
  const Stored s = L::place(shape, {0, n, group, byte}, copy);
  return s.at.row * L::part(s.part, shape).cols + s.at.col;
}

/// The part that holds a byte of an atom.
template <class L>
int part_of(int byte, int copy = 0) {
  return L::place(Shape{1, kTileAlignment, kTileAlignment}, {0, 0, 0, byte}, copy).part;
}

/// The number of bytes in part `p` of an expert before a piece. `before` is the shape of the rows before the
/// piece.
template <class L>
int64_t bytes_before(int p, Shape before) {
  return before.n == 0 || before.k == 0 ? 0 : L::part(p, before).bytes();
}

}  // namespace twofour
