#pragma once

#include "formats/hd.h"

// Included by files that are compiled for one instruction set: see solve_ops.h.

namespace twofour {

/// The first (i = 0) or second of the two of four that stay; masks are in the order of their kept places.
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

/// All columns stay; four are solved at once.
struct AllOfFour {
  static constexpr int kGroup = 4, kKept = 4, kMasks = 1;
  static constexpr TWOFOUR_HD int column(int, int i) { return i; }
};

/// The numbers that descent reads for one mask of a group: the inverse P of the kept part of Hd [kept, kept],
/// then R [kept, kept] for its columns forwards and backwards: R_it = T_it / T_ii for i < t, with T upper and
/// T'T = P in that order.
template <class Pattern>
inline constexpr int kMaskNumbers = 3 * Pattern::kKept* Pattern::kKept;
template <class Pattern>
inline constexpr int kGroupNumbers = Pattern::kMasks* kMaskNumbers<Pattern>;

}  // namespace twofour
