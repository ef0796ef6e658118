#pragma once
#include <cstdint>
#include <span>

#include "kernels/pack/prune.h"

namespace twofour {

/// Weights in BF16: e2m1(code) * e4m3(scale), which float32 holds exactly, times the global scale in float32,
/// rounded to the nearest BF16, ties to even. `out` holds [blocks, 16, n] weights, in the order of the codes.
void dequantize_bf16(const CodeBlocks& blocks, float global_scale, uint8_t* out);

/// The same weight by weight.
void dequantize_bf16_reference(const CodeBlocks& blocks, float global_scale, uint8_t* out);

}  // namespace twofour
