#pragma once

// Included by files that are compiled for one instruction set: see solve_ops.h.

namespace twofour {

/// Two of four columns stay.
struct TwoOfFour {
  static constexpr int kGroup = 4, kKept = 2, kMasks = 6;
  static constexpr int kColumns[kMasks][kKept] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
};

/// Two of four pairs of columns stay.
struct FourOfEightPaired {
  static constexpr int kGroup = 8, kKept = 4, kMasks = 6;
  static constexpr int kColumns[kMasks][kKept] = {{0, 1, 2, 3}, {0, 1, 4, 5}, {0, 1, 6, 7},
                                                  {2, 3, 4, 5}, {2, 3, 6, 7}, {4, 5, 6, 7}};
};

/// All columns stay, four are solved at once.
struct AllOfFour {
  static constexpr int kGroup = 4, kKept = 4, kMasks = 1;
  static constexpr int kColumns[kMasks][kKept] = {{0, 1, 2, 3}};
};

/// What descent reads of one mask of a group: the inverse P of the kept part of Hd [kept, kept], then for its
/// columns forwards and backwards R [kept, kept], R_it = T_it / T_ii for i < t, T upper with T'T = P in that
/// order.
template <class Pattern>
inline constexpr int kMaskNumbers = 3 * Pattern::kKept* Pattern::kKept;
template <class Pattern>
inline constexpr int kGroupNumbers = Pattern::kMasks* kMaskNumbers<Pattern>;

}  // namespace twofour
