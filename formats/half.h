#pragma once
#include <bit>
#include <cstdint>

#include "formats/hd.h"

namespace twofour {

TWOFOUR_HD constexpr float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// Rounds to nearest, ties to even. Overflow gives infinity. NaN stays NaN and becomes quiet.
TWOFOUR_HD constexpr uint16_t bf16_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/// The smallest float32 that rounds to infinity in BF16: the largest BF16 number plus half a unit in its last
/// place.
inline constexpr float kBeyondBf16 = 0x1.ffp127f;

TWOFOUR_HD constexpr float fp16_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, mantissa = bits & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/// Rounds to nearest, ties to even. Overflow gives infinity. NaN stays NaN and becomes quiet.
TWOFOUR_HD constexpr uint16_t fp16_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 rounds to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14, adding 0.5 leaves 2^-24 as the last place
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
                                         std::bit_cast<uint32_t>(0.5f)));
  }
  return static_cast<uint16_t>(sign |
                               (((magnitude + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10)));
}

}  // namespace twofour
