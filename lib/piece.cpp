#include "lib/piece.h"

#include <algorithm>

#include "formats/layouts/layouts.h"

namespace twofour {
namespace {

int64_t part_bytes(const std::string& layout, int p, Shape shape) {
  int64_t bytes = 0;
  with_layout(layout, [&]<class L>() { bytes = L::part(p, shape).bytes(); });
  return bytes;
}

}  // namespace

std::vector<Piece> pieces_of(const Target& target, const Tiling& tiling) {
  std::vector<Piece> pieces;
  for (int64_t r0 = 0; r0 < target.shape.n; r0 += tiling.row_step) {
    for (int64_t k0 = 0; k0 < target.shape.k; k0 += tiling.k_step) {
      pieces.push_back({k0, std::min(tiling.k_step, target.shape.k - k0), r0,
                        std::min(tiling.row_step, target.shape.n - r0)});
    }
  }
  return pieces;
}

Piece whole_piece(const Target& target) { return {0, target.shape.k, 0, target.shape.n}; }

Shape piece_shape(const Target& target, const Piece& piece) {
  return {1, piece.rows, piece.k, target.shape.gated};
}

SourceRows piece_rows(const SourceRows& source, const Target& target, const Piece& piece) {
  // Stored rows of a gated matrix alternate between gate and up, so a run of them takes as many of each.
  const int64_t share = target.shape.gated ? 2 : 1;
  SourceRows rows = source;
  rows.first += piece.r0 / share * source.step;
  rows.count = piece.rows / share;
  rows.n0 = source.n0 == 0 ? 0 : piece.rows / share;
  return rows;
}

int64_t piece_offset(const std::string& layout, int p, const Target& target, const Piece& piece) {
  // What lies before the piece is itself a matrix, cut at the outermost axis.
  const Shape s = target.shape;
  const int64_t rows = piece.r0 > 0 ? part_bytes(layout, p, {1, piece.r0, s.k, s.gated}) : 0;
  const int64_t inputs = piece.k0 > 0 ? part_bytes(layout, p, {1, s.n, piece.k0, s.gated}) : 0;
  return rows + inputs;
}

int64_t piece_bytes(const std::string& layout, int p, const Target& target, const Piece& piece) {
  return part_bytes(layout, p, piece_shape(target, piece));
}

}  // namespace twofour
