#pragma once
#include "formats/hd.h"

namespace twofour {

/// E2M3 has 6 bits and an exponent bias of 1. Bit 5 is the sign. There are no NaNs and no infinities. The
/// largest magnitude is 7.5, the smallest normal one 1, and the smallest subnormal one 0.125.
TWOFOUR_HD constexpr float e2m3_to_float(unsigned code) {
  const unsigned exponent = code >> 3 & 3u, mantissa = code & 7u;
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) / 8
                                        : static_cast<float>((8 + mantissa) << (exponent - 1)) / 8;
  return code & 0x20u ? -magnitude : magnitude;
}

}  // namespace twofour
