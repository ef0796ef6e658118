#pragma once
#include <bit>
#include <cstdint>

#include "formats/hd.h"

namespace twofour {

/// E8M0 is a power of two, 2^(byte - 127). 0xFF is NaN. Source: OCP Microscaling Formats (MX) v1.0, 5.4.1.
inline constexpr uint8_t kE8m0Nan = 0xFF;

TWOFOUR_HD constexpr float e8m0_to_float(unsigned byte) {
  if (byte == kE8m0Nan) return std::bit_cast<float>(0x7FC00000u);
  // 2^-127 is subnormal in float32. It is half of the smallest normal number.
  return std::bit_cast<float>(byte == 0 ? 0x00400000u : byte << 23);
}

/// Returns the code of an exact power of two from 2^-127 to 2^127. Any other value gives NaN.
TWOFOUR_HD constexpr uint8_t e8m0_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (bits == 0x00400000u) return 0;
  if ((bits & 0x807FFFFFu) != 0 || bits == 0 || bits == 0x7F800000u) return kE8m0Nan;
  return static_cast<uint8_t>(bits >> 23);
}

}  // namespace twofour
