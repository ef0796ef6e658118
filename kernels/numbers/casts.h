#pragma once
#include <cstdint>
#include <span>

#include "formats/dtype.h"
#include "kernels/device/isa.h"

/// Numbers of one format as numbers of another, where scales are given or follow from the format. What
/// chooses scales is in quantize.h.

namespace twofour {

/// F32, BF16 or F16 as float32, exactly, the bits of NaN included. `bytes` holds as many numbers as `out`, at
/// any alignment.
void widen(DType type, const uint8_t* bytes, std::span<float> out, Isa isa = best_isa());

/// The scale that brings magnitudes up to `amax` into E4M3: amax / 448, or 1 where that is zero.
float fp8_scale_of(float amax);

/// E4M3 of weights / scale: IEEE division, nearest even, saturating at 448. -0 stays; NaN becomes 0x7F.
void encode_fp8(std::span<const float> weights, float scale, uint8_t* out, Isa isa = best_isa());

/// e4m3 * scale, rounded once.
void decode_fp8(std::span<const uint8_t> bytes, float scale, float* out, Isa isa = best_isa());

/// MXFP4 to NVFP4 without loss: codes stay, a block of 32 with scale 2^k becomes two of 16 with scale
/// 2^(k - m), under the global scale 2^m. Exact where every k - m is a power of two that E4M3 has, -9 to 8.
/// Source: NVIDIA/Model-Optimizer, examples/deepseek/deepseek_v4/quantize_to_nvfp4.py.
struct Mxfp4Range {
  int low = 256, high = -256;  ///< exponents of blocks that are not all zeros

  /// Adds `codes` [blocks, 16] and their scales. Returns the first block with a NaN scale, or -1.
  int64_t add(std::span<const uint8_t> codes, std::span<const uint8_t> scales);
  /// Whether one global scale serves them all.
  bool is_exact() const { return high - low <= 17; }
  /// m: 2^m and 2^-m are normal numbers.
  int exponent() const;
};

/// Two block scales for each. Blocks of zeros, where the scale has no effect, get the nearest power that E4M3
/// has.
void cast_mxfp4_scales(std::span<const uint8_t> scales, int exponent, uint8_t* out);

}  // namespace twofour
