#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/device/isa.h"
#include "kernels/numbers/dequantize.h"
#include "kernels/pack/prune_pack.h"

namespace twofour {

/// The codes of a row that are kept: two of each quad, or two aligned pairs of each octet.
enum class PrunePattern { k2of4, k4of8Paired };

/// The name of a pattern: "2:4" or "4:8-paired".
std::string_view prune_pattern_name(PrunePattern pattern);

/// Writes kept codes unchanged and 0x0 for the others. `out` has the size of the codes and may be the same
/// memory. In the returned statistics, a quad is a chunk of the pattern (a quad or an octet).
PruneStats prune_codes(PrunePattern pattern, const CodeBlocks& blocks, uint8_t* out, Isa isa = best_isa());

/// Does the same one code at a time, by the rules in formats/atom.h. This is the reference.
PruneStats prune_codes_reference(PrunePattern pattern, const CodeBlocks& blocks, uint8_t* out);

/// Prunes weights before they are quantized. Keeps two of each four neighbours along K: those with the
/// largest magnitudes, and among equal ones the lower k. Kept weights are unchanged, including -0, whose
/// magnitude is zero. Others become +0. `weights.size()` is a multiple of four. No weight may be NaN.
void prune_2_4(std::span<float> weights, Isa isa = best_isa());

}  // namespace twofour
