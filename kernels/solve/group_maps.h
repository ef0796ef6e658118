#pragma once

#include "formats/hd.h"

// Included by files that are compiled for one instruction set: see solve_ops.h.

namespace twofour {

/// The first, i = 0, or the second of two that stay of four; masks in the order of what they keep.
constexpr TWOFOUR_HD int kept_of_four(int mask, int i) {
  return (i == 0 ? 0x211000 : 0x332321) >> 4 * mask & 3;
}

/// Two of four columns stay.
struct TwoOfFour {
  static constexpr int kGroup = 4, kKept = 2, kMasks = 6;
  static constexpr TWOFOUR_HD int column(int mask, int i) { return kept_of_four(mask, i); }
};

/// Two of four pairs of columns stay.
struct FourOfEightPaired {
  static constexpr int kGroup = 8, kKept = 4, kMasks = 6;
  static constexpr TWOFOUR_HD int column(int mask, int i) { return 2 * kept_of_four(mask, i / 2) + i % 2; }
};

/// All columns stay, four are solved at once.
struct AllOfFour {
  static constexpr int kGroup = 4, kKept = 4, kMasks = 1;
  static constexpr TWOFOUR_HD int column(int, int i) { return i; }
};

/// What descent reads of one mask of a group: the inverse P of the kept part of Hd [kept, kept], then for its
/// columns forwards and backwards R [kept, kept], R_it = T_it / T_ii for i < t, T upper with T'T = P in that
/// order.
template <class Pattern>
inline constexpr int kMaskNumbers = 3 * Pattern::kKept* Pattern::kKept;
template <class Pattern>
inline constexpr int kGroupNumbers = Pattern::kMasks* kMaskNumbers<Pattern>;

}  // namespace twofour
