#pragma once
#include <span>

#include "formats/layouts/layout.h"

namespace twofour {

/// Operations that follow from a layout's map alone, without code for each layout. They are slow. They are
/// the reference that every fast path must equal, and `validate` uses them to derive a file again. All of
/// them work on one expert (`shape.e == 1`).

template <class Layout>
constexpr int64_t layout_bytes(Shape shape) {
  int64_t bytes = 0;
  for (int p = 0; p < Layout::part_count; ++p) bytes += shape.e * Layout::part(p, shape).bytes();
  return bytes;
}

/// The bytes of all parts of a layout without padding.
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

/// Derives the byte at `at` of a part from the atoms [N, K/16] of the expert. A padding byte is zero.
template <class Layout>
uint8_t derive_byte(int part, Shape shape, Place at, std::span<const typename Layout::Atom> atoms) {
  const Source s = Layout::source(part, shape, at);
  if (s.byte == kPadding) return 0;
  return atom_byte(atoms[static_cast<size_t>(s.n * shape.groups() + s.group)], s.byte);
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

}  // namespace twofour
