#pragma once
#include <bit>
#include <cstdint>

#include "formats/hd.h"

namespace twofour {

/// E4M3 in its finite variant ("FN"): bias 7, largest value 448 (0x7E), NaN 0x7F and 0xFF, no infinities,
/// smallest normal 2^-6, smallest subnormal 2^-9. Source: OCP 8-bit Floating Point Specification v1.0.
inline constexpr float kE4m3Max = 448.0f;
inline constexpr uint8_t kE4m3Nan = 0x7F;

TWOFOUR_HD constexpr bool e4m3_is_nan(unsigned byte) { return (byte & 0x7Fu) == kE4m3Nan; }

/// True if a block scale may be this byte: the byte is neither NaN nor negative. -0 (0x80) counts as
/// negative, since no producer writes it.
TWOFOUR_HD constexpr bool e4m3_is_block_scale(unsigned byte) { return byte < kE4m3Nan; }

TWOFOUR_HD constexpr float e4m3_to_float(unsigned byte) {
  const uint32_t sign = (byte & 0x80u) << 24, exponent = (byte >> 3) & 15u, mantissa = byte & 7u;
  if (e4m3_is_nan(byte)) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

/// Rounds to the nearest value, ties to even, saturating at 448. NaN stays NaN. torch's cast gives NaN above
/// 464 instead, so clamp before comparing with it.
TWOFOUR_HD constexpr uint8_t e4m3_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = (bits >> 24) & 0x80u;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | kE4m3Nan);
  if (magnitude >= std::bit_cast<uint32_t>(kE4m3Max)) return static_cast<uint8_t>(sign | 0x7Eu);
  uint32_t code = 0;
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // The sum has 2^-9 as its last place, so the addition itself rounds to a subnormal.
    code =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
  } else {
    code = ((magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  }
  return static_cast<uint8_t>(sign | code);
}

/// The value in units of 2^-9, an integer from 0 to 229,376. Sums over scaled codes are exact integers in
/// this unit.
TWOFOUR_HD constexpr uint32_t e4m3_units(unsigned byte) {
  const unsigned exponent = (byte >> 3) & 15u, mantissa = byte & 7u;
  return exponent == 0 ? mantissa : (8u + mantissa) << (exponent - 1);
}

}  // namespace twofour
