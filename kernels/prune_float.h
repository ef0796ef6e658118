#pragma once
#include <span>

#include "kernels/device/isa.h"

namespace twofour {

/// Prunes weights before they are quantized: of each four neighbours along K the two largest magnitudes stay,
/// on a tie the lower k, as they are stored (-0, a magnitude of zero, too); the others become +0.
/// `weights.size()` is a multiple of four. No weight may be NaN.
void prune_2_4(std::span<float> weights, Isa isa = best_isa());

}  // namespace twofour
