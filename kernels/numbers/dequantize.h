#pragma once
#include <cstdint>

namespace twofour {

/// Dense NVFP4 weights as checkpoints store them, for `n` outputs and `blocks` times sixteen inputs. Codes
/// are [blocks, 8, n] and scales are [blocks, n]. If K is contiguous, each sixteen inputs of a row form a
/// block, so `n` is 1.
struct CodeBlocks {
  const uint8_t* codes;   ///< the even k is in the low nibble
  const uint8_t* scales;  ///< E4M3, for the figures; NaN and negative ones count as zero
  int64_t blocks, n;
};

/// Dequantizes weights to BF16. e2m1(code) * e4m3(scale) is exact in float32. It is multiplied by the global
/// scale in float32 and rounded to the nearest BF16, ties to even. `out` holds [blocks, 16, n] weights, in
/// the order of the codes.
void dequantize_bf16(const CodeBlocks& blocks, float global_scale, uint8_t* out);

/// Does the same one weight at a time. This is the reference.
void dequantize_bf16_reference(const CodeBlocks& blocks, float global_scale, uint8_t* out);

}  // namespace twofour
