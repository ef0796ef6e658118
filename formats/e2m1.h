#pragma once
#include <bit>
#include <cstdint>

#include "formats/hd.h"

namespace twofour {

/// E2M1 has a sign, two exponent bits and one mantissa bit. Codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4 and 6;
/// bit 3 is the sign. There are no infinities and no NaN. Source: OCP Microscaling Formats (MX) v1.0, 5.3.3.
inline constexpr float kE2m1Max = 6.0f;

/// The magnitude of `code` in halves: 0, 1, 2, 3, 4, 6, 8 or 12. It is an integer, so sums of magnitudes are
/// exact.
TWOFOUR_HD constexpr int e2m1_halves(unsigned code) {
  const unsigned exponent = (code >> 1) & 3u, mantissa = code & 1u;
  return static_cast<int>(exponent == 0 ? mantissa : (2u + mantissa) << (exponent - 1));
}

TWOFOUR_HD constexpr float e2m1_to_float(unsigned code) {
  const float magnitude = 0.5f * static_cast<float>(e2m1_halves(code));
  return (code & 8u) ? -magnitude : magnitude;
}

/// Returns the nearest code, ties to the even code, saturating at 6. The sign is kept even if the value
/// rounds to zero. NaN gives code 7, as with `cvt.rn.satfinite.e2m1x2` (PTX ISA, cvt).
TWOFOUR_HD constexpr unsigned e2m1_from_float(float x) {
  // The bits of magnitudes sort like the magnitudes, with NaN last. Without branches, loops over this
  // function are vectorized.
  const int32_t bits = std::bit_cast<int32_t>(x), magnitude = bits & 0x7FFFFFFF;
  const int code = (magnitude > std::bit_cast<int32_t>(0.25f)) +
                   (magnitude >= std::bit_cast<int32_t>(0.75f)) +
                   (magnitude > std::bit_cast<int32_t>(1.25f)) +
                   (magnitude >= std::bit_cast<int32_t>(1.75f)) + (magnitude > std::bit_cast<int32_t>(2.5f)) +
                   (magnitude >= std::bit_cast<int32_t>(3.5f)) + (magnitude > std::bit_cast<int32_t>(5.0f));
  const int sign = magnitude > 0x7F800000 ? 0 : (bits >> 28) & 8;
  return static_cast<unsigned>(sign | code);
}

}  // namespace twofour
