#pragma once
#include <cstdint>

#include "formats/atom.h"

// Files that are compiled for one instruction set include this file. All functions here are inlined, so that
// the linker cannot confuse copies of different instruction sets.

namespace twofour {

enum class Isa;

/// The number of rows of an expert that are multiplied at a time, and the largest number of tokens for each
/// strip.
inline constexpr int kStripRows = 64, kStripTokens = 64;

/// Some rows of an expert pruned to 2:4, with K outermost. Byte b of the atom of row r and group g is at
/// bytes[b] + g * steps[b] + r.
struct SparseStrip {
  const uint8_t* bytes[sizeof(SparseGroup)];
  int64_t steps[sizeof(SparseGroup)];
  int rows;
  int64_t groups;
};

/// Some rows of a dense expert, with K contiguous. The codes of row r and group g are eight bytes at codes[r]
/// + 8g. Their scale is at scales[r] + g / 4 * scale_tile + g % 4 * scale_step.
struct DenseStrip {
  const uint8_t* codes[kStripRows];
  const uint8_t* scales[kStripRows];
  int64_t scale_step, scale_tile;
  int rows;
  int64_t groups;
};

/// Computes out[t][r], row r times x[t], for `tokens` tokens. out is [tokens, kStripRows]. All instruction
/// sets add in the same order and do not fuse operations, so they give the same floats. `dense` needs an x in
/// which the even k of each group come before the odd k.
struct MoeStrips {
  void (*sparse)(const SparseStrip& strip, const float* const* x, int tokens, float* out);
  void (*dense)(const DenseStrip& strip, const float* const* x, int tokens, float* out);
};

extern const MoeStrips kMoeStripsPortable, kMoeStripsAvx2;
/// The functions for an instruction set.
const MoeStrips& moe_strips(Isa isa);

/// The sum of the eight partial sums of a dense row.
[[gnu::always_inline]] inline float sum_lanes(const float* s) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

}  // namespace twofour
