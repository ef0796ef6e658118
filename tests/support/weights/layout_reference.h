#pragma once
#include <optional>
#include <span>

#include "formats/layouts/layout_ops.h"

/// The reference for fast paths and maps of layouts, without code for single layouts.

namespace twofour {

/// Writes one part, `part(p, shape).bytes()` bytes, from the expert's atoms [N, K/16].
template <class Layout>
void pack_part(int p, Shape shape, std::span<const typename Layout::Atom> atoms, std::span<uint8_t> out) {
  const Part part = Layout::part(p, shape);
  for (int64_t row = 0; row < part.rows; ++row) {
    for (int64_t col = 0; col < part.cols; ++col) {
      out[static_cast<size_t>(row * part.cols + col)] = derive_byte<Layout>(p, shape, {0, row, col}, atoms);
    }
  }
}

/// Proves that `source` and `place` are inverse: every stored byte is padding or a copy of the source byte
/// that names it, and no source byte is lost. Returns the first stored byte that breaks this.
template <class Layout>
std::optional<Stored> find_coverage_gap(Shape shape) {
  int64_t held = 0;
  for (int p = 0; p < Layout::part_count; ++p) {
    const Part part = Layout::part(p, shape);
    for (Place at{0, 0, 0}; at.e < shape.e; ++at.e) {
      for (at.row = 0; at.row < part.rows; ++at.row) {
        for (at.col = 0; at.col < part.cols; ++at.col) {
          const Source s = Layout::source(p, shape, at);
          if (s.byte == kPadding) continue;
          const bool inside = s.e >= 0 && s.e < shape.e && s.n >= 0 && s.n < shape.n && s.group >= 0 &&
                              s.group < shape.groups() && s.byte >= 0 &&
                              s.byte < static_cast<int>(sizeof(typename Layout::Atom));
          if (!inside) return Stored{p, at};
          bool named = false;
          for (int c = 0; c < Layout::copies(s.byte); ++c) {
            const Stored back = Layout::place(shape, s, c);
            named = named || (back.part == p && back.at == at);
          }
          if (!named) return Stored{p, at};
          ++held;
        }
      }
    }
  }
  // Each stored byte names itself, so the count settles that none is missing.
  if (held != unpadded_bytes<Layout>(shape)) return Stored{-1, {0, 0, 0}};
  return std::nullopt;
}

}  // namespace twofour
