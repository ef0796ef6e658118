#pragma once
#include <cstdint>

namespace twofour {

/// Some dense NVFP4 weights as checkpoints store them: `blocks` times sixteen inputs of `n` outputs, codes
/// [blocks, 8, n], scales [blocks, n]. If K is contiguous, every sixteen inputs of a row are a block, so `n`
/// is 1.
struct CodeBlocks {
  const uint8_t* codes;   ///< low nibble the even k
  const uint8_t* scales;  ///< E4M3, for the figures; NaN and negative ones count as zero
  int64_t blocks, n;
};

/// Weights in BF16: e2m1(code) * e4m3(scale), which float32 holds exactly, times the global scale in float32,
/// rounded to the nearest BF16, ties to even. `out` holds [blocks, 16, n] weights, in the order of the codes.
void dequantize_bf16(const CodeBlocks& blocks, float global_scale, uint8_t* out);

/// The same weight by weight.
void dequantize_bf16_reference(const CodeBlocks& blocks, float global_scale, uint8_t* out);

}  // namespace twofour
