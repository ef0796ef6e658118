#pragma once
#include <bit>
#include <cstdint>

#include "formats/hd.h"

namespace twofour {

/// The numbers of a small float format without infinities. A code has a sign bit, then an exponent, then a
/// mantissa. Magnitudes sort as codes do. Source: OCP Microscaling Formats (MX) v1.0, 5.3.
struct CodeGrid {
  int bits;       ///< of a code
  int mantissa;   ///< number of mantissa bits
  int lowest;     ///< exponent of the smallest normal number
  float largest;  ///< largest magnitude

  /// The exponent of the largest power of two.
  TWOFOUR_HD constexpr int top() const {
    return static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23) - 127;
  }
  TWOFOUR_HD constexpr unsigned sign() const { return 1u << (bits - 1); }
  bool operator==(const CodeGrid&) const = default;
};

inline constexpr CodeGrid kE2m1Grid{4, 1, 0, 6.0f};
inline constexpr CodeGrid kE2m3Grid{6, 3, 0, 7.5f};
inline constexpr CodeGrid kE4m3Grid{8, 3, -6, 448.0f};

/// Returns the nearest code, ties to the even code, saturating at the largest. The sign is kept even if the
/// number rounds to zero. NaN gives the largest code.
TWOFOUR_HD constexpr unsigned code_from_float(const CodeGrid& grid, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  float size = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  size = size < grid.largest ? size : grid.largest;
  int exponent = static_cast<int>(std::bit_cast<uint32_t>(size) >> 23) - 127;
  if (exponent < grid.lowest) exponent = grid.lowest;
  // In units of the last mantissa bit the number is below 2^23, and the sum rounds it.
  const float unit = std::bit_cast<float>(static_cast<uint32_t>(grid.mantissa - exponent + 127) << 23);
  const uint32_t count = std::bit_cast<uint32_t>(size * unit + 0x1p23f) & 0x7FFFFFu;
  const uint32_t code = (static_cast<uint32_t>(exponent - grid.lowest) << grid.mantissa) + count;
  return (bits >> 31 ? grid.sign() : 0u) | code;
}

}  // namespace twofour
