#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/pack/prune_pack.h"

namespace twofour {

/// Which codes of a row stay: two of each quad, or two aligned pairs of each octet.
enum class PrunePattern { k2of4, k4of8Paired };

/// "2:4" and "4:8-paired".
std::string_view prune_pattern_name(PrunePattern pattern);
std::optional<PrunePattern> prune_pattern_from_name(std::string_view name);

/// Some dense NVFP4 weights as they are pruned in place of their codes. Sixteen inputs of `n` outputs at a
/// time, `blocks` times: codes [blocks, 8, n], scales [blocks, n]. Where K is contiguous every sixteen inputs
/// of a row are a block of their own, so `n` is 1.
struct CodeBlocks {
  const uint8_t* codes;   ///< low nibble the even k
  const uint8_t* scales;  ///< E4M3, for the figures; bad ones count as zero
  int64_t blocks, n;
};

/// Writes the codes that stay, as stored, and 0x0 in place of the others; `out` is as large as the codes and
/// may be the same memory. The figures count chunks of the pattern (quads or octets) as quads.
PruneStats prune_codes(PrunePattern pattern, const CodeBlocks& blocks, uint8_t* out, Isa isa = best_isa());

/// The same code by code, through the rules in formats/atom.h.
PruneStats prune_codes_reference(PrunePattern pattern, const CodeBlocks& blocks, uint8_t* out);

}  // namespace twofour
