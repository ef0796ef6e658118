#pragma once
#include <cstdint>
#include <vector>

#include "formats/layouts/layout.h"
#include "lib/plan/plan.h"

namespace twofour {

/// What of an expert is packed at once: inputs [k0, k0 + k) of stored rows [r0, r0 + rows). All of it, but
/// for giants. A piece is one run of bytes in each part, and the layout's map describes it as a matrix of its
/// own.
struct Piece {
  int64_t k0, k, r0, rows;
};

/// The pieces of an expert in the order of their bytes.
std::vector<Piece> pieces_of(const Target& target, const Tiling& tiling);

/// The whole expert as one piece.
Piece whole_piece(const Target& target);

/// The piece as a matrix of its own.
Shape piece_shape(const Target& target, const Piece& piece);

/// The rows of a source that belong to a piece; `n0` counts in the piece.
SourceRows piece_rows(const SourceRows& source, const Target& target, const Piece& piece);

/// Where the piece begins in part `p` of its expert.
int64_t piece_offset(const std::string& layout, int p, const Target& target, const Piece& piece);

/// Bytes of the piece in part `p`.
int64_t piece_bytes(const std::string& layout, int p, const Target& target, const Piece& piece);

}  // namespace twofour
