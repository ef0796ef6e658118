#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/device/isa.h"
#include "kernels/numbers/dequantize.h"
#include "kernels/pack/prune_pack.h"

namespace twofour {

/// The codes of a row that stay: two of each quad, or two aligned pairs of each octet.
enum class PrunePattern { k2of4, k4of8Paired };

/// "2:4" and "4:8-paired".
std::string_view prune_pattern_name(PrunePattern pattern);
std::optional<PrunePattern> prune_pattern_from_name(std::string_view name);

/// Writes the codes that stay, as stored, and 0x0 for the others; `out` has the size of the codes and may be
/// the same memory. The figures count chunks of the pattern (quads or octets) as quads.
PruneStats prune_codes(PrunePattern pattern, const CodeBlocks& blocks, uint8_t* out, Isa isa = best_isa());

/// The same code by code, through the rules in formats/atom.h.
PruneStats prune_codes_reference(PrunePattern pattern, const CodeBlocks& blocks, uint8_t* out);

/// Prunes weights before they are quantized: of each four neighbours along K, the two largest magnitudes
/// stay, on a tie the lower k. They stay as stored, including -0, whose magnitude is zero; the others become
/// +0. `weights.size()` is a multiple of four. No weight may be NaN.
void prune_2_4(std::span<float> weights, Isa isa = best_isa());

}  // namespace twofour
