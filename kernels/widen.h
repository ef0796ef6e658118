#pragma once
#include <cstdint>
#include <span>

#include "formats/dtype.h"

namespace twofour {

/// F32, BF16 or F16 as float32, exactly. `bytes` holds as many numbers as `out`, at any alignment.
void widen(DType type, const uint8_t* bytes, std::span<float> out);

}  // namespace twofour
