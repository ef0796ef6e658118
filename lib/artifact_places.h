#pragma once
#include <cstdint>

#include "formats/layouts/layout.h"

namespace twofour {

/// Rows and columns of what is turned at once: they stay in the L1 cache.
inline constexpr int64_t kBlockRows = 32, kBlockCols = 64;

/// Offset of a source byte in its part of one expert.
template <class L>
int64_t offset_of(Shape shape, int64_t n, int64_t group, int byte, int copy = 0) {
  const Stored s = L::place(shape, {0, n, group, byte}, copy);
  return s.at.row * L::part(s.part, shape).cols + s.at.col;
}

/// The part that holds a byte of an atom.
template <class L>
int part_of(int byte, int copy = 0) {
  return L::place(Shape{1, kOuterGrain, kOuterGrain}, {0, 0, 0, byte}, copy).part;
}

/// Bytes of part `p` of an expert in front of a piece, of which `before` is the shape of what lies there.
template <class L>
int64_t bytes_before(int p, Shape before) {
  return before.n == 0 || before.k == 0 ? 0 : L::part(p, before).bytes();
}

}  // namespace twofour
