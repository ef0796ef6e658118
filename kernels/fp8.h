#pragma once
#include <cstdint>
#include <span>

#include "kernels/device/isa.h"

namespace twofour {

/// The scale that brings magnitudes up to `amax` into E4M3: amax / 448, or 1 where that is zero.
float fp8_scale_of(float amax);

/// E4M3 of weights / scale: IEEE division, nearest even, saturating at 448. -0 stays; NaN becomes 0x7F.
void encode_fp8(std::span<const float> weights, float scale, uint8_t* out, Isa isa = best_isa());

/// e4m3 * scale, rounded once.
void decode_fp8(std::span<const uint8_t> bytes, float scale, float* out, Isa isa = best_isa());

}  // namespace twofour
