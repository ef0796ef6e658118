#pragma once
#include <cstdint>
#include <span>

#include "formats/dtype.h"
#include "kernels/device/isa.h"

namespace twofour {

/// F32, BF16 or F16 as float32, exactly, the bits of NaN included. `bytes` holds as many numbers as `out`, at
/// any alignment.
void widen(DType type, const uint8_t* bytes, std::span<float> out, Isa isa = best_isa());

}  // namespace twofour
