#pragma once

#include "formats/hd.h"

// Files that are compiled for one instruction set include this file; see solve_ops.h.

namespace twofour {

/// The position of the first (i = 0) or second (i = 1) of the two columns that are kept of four. Masks are
/// numbered in the order of their kept columns.
constexpr TWOFOUR_HD int kept_of_four(int mask, int i) {
  return (i == 0 ? 0x211000 : 0x332321) >> 4 * mask & 3;
}

/// The pattern that keeps two of four columns. `kBlock` columns share a block scale.
struct TwoOfFour {
  static constexpr int kGroup = 4, kKept = 2, kMasks = 6, kBlock = 16;
  static constexpr TWOFOUR_HD int column(int mask, int i) { return kept_of_four(mask, i); }
};

/// The pattern that keeps two of four pairs of columns.
struct FourOfEightPaired {
  static constexpr int kGroup = 8, kKept = 4, kMasks = 6, kBlock = 16;
  static constexpr TWOFOUR_HD int column(int mask, int i) { return 2 * kept_of_four(mask, i / 2) + i % 2; }
};

/// The pattern that keeps all columns. Four of them are solved at once.
struct AllOfFour {
  static constexpr int kGroup = 4, kKept = 4, kMasks = 1, kBlock = 16;
  static constexpr TWOFOUR_HD int column(int, int i) { return i; }
};

/// The same with a block scale for 32 columns.
struct AllOfFourBy32 : AllOfFour {
  static constexpr int kBlock = 32;
};

/// The number of floats that descent reads for one mask of a group. They are three matrices [kept, kept]: P,
/// the inverse of the kept part of Hd, and R for the kept columns in forward and in backward order. R_it =
/// T_it / T_ii for i < t, where T is upper triangular and T'T = P in that order.
template <class Pattern>
inline constexpr int kMaskNumbers = 3 * Pattern::kKept* Pattern::kKept;
template <class Pattern>
inline constexpr int kGroupNumbers = Pattern::kMasks* kMaskNumbers<Pattern>;

}  // namespace twofour
