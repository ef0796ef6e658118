#pragma once
#include <cstdint>

#include "formats/atom.h"

namespace twofour {

/// Quantizes `k` weights of one row (a multiple of 16) to NVFP4 with a given global scale (the multiplier),
/// in ModelOpt's arithmetic (0.45 or later, IEEE division): block scale e4m3_rne(clamp(amax / (6 g), 2^-9,
/// 448)), 1.0 for a block of zeros; code e2m1_rne(x / (scale g)), sign
/// set where x < 0, so that -0 gives 0x0 and a tiny negative 0x8. Writes codes [k/2] and scales [k/16].
/// Source: NVIDIA/Model-Optimizer, modelopt/torch/quantization/qtensor/nvfp4_tensor.py.
void quantize_nvfp4_row(const float* row, int64_t k, float global_scale, uint8_t* codes, uint8_t* scales);

}  // namespace twofour
