#pragma once
#include <optional>
#include <span>

#include "formats/layouts/layout.h"

namespace twofour {

/// What follows from a layout's map alone, with no code a layout. Slow and right: the reference that every
/// fast path must equal, and what `validate` re-derives a file with. All are for one expert (`shape.e == 1`).

template <class Layout>
constexpr int64_t layout_bytes(Shape shape) {
  int64_t bytes = 0;
  for (int p = 0; p < Layout::part_count; ++p) bytes += shape.e * Layout::part(p, shape).bytes();
  return bytes;
}

/// The same without padding.
template <class Layout>
constexpr int64_t unpadded_bytes(Shape shape) {
  int64_t bytes = 0;
  for (int byte = 0; byte < static_cast<int>(sizeof(typename Layout::Atom)); ++byte)
    bytes += Layout::copies(byte);
  return bytes * shape.e * shape.n * shape.groups();
}

template <class Atom>
uint8_t atom_byte(const Atom& atom, int byte) {
  return reinterpret_cast<const uint8_t*>(&atom)[byte];
}

/// The byte that belongs at `at` of a part, given the atoms [N, K/16] of the expert. Padding is zero.
template <class Layout>
uint8_t derive_byte(int part, Shape shape, Place at, std::span<const typename Layout::Atom> atoms) {
  const Source s = Layout::source(part, shape, at);
  if (s.byte == kPadding) return 0;
  return atom_byte(atoms[static_cast<size_t>(s.n * shape.groups() + s.group)], s.byte);
}

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

/// Reads one atom back; `parts[p]` holds part p of the expert.
template <class Layout>
typename Layout::Atom unpack_atom(Shape shape, int64_t n, int64_t group,
                                  std::span<const std::span<const uint8_t>> parts) {
  typename Layout::Atom atom{};
  for (int byte = 0; byte < static_cast<int>(sizeof(atom)); ++byte) {
    const Stored s = Layout::place(shape, {0, n, group, byte});
    const int64_t cols = Layout::part(s.part, shape).cols;
    reinterpret_cast<uint8_t*>(&atom)[byte] =
        parts[static_cast<size_t>(s.part)][static_cast<size_t>(s.at.row * cols + s.at.col)];
  }
  return atom;
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
