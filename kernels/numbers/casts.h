#pragma once
#include <cstdint>
#include <span>

#include "formats/dtype.h"
#include "kernels/device/isa.h"

/// Numbers of one format as numbers of another, with scales that are given or follow from the format.
/// quantize.h chooses scales.

namespace twofour {

/// F32, BF16 or F16 as float32, exactly, the bits of NaN included. `bytes` holds as many numbers as `out`, at
/// any alignment.
void widen(DType type, const uint8_t* bytes, std::span<float> out, Isa isa = best_isa());

/// BF16, nearest even, two bytes for each number, at any alignment. NaN stays NaN.
void round_to_bf16(std::span<const float> numbers, uint8_t* out, Isa isa = best_isa());

/// (code - zero point) * scale of INT4, one code a byte: input k takes zero point and scale k / `group`.
void decode_int4(std::span<const uint8_t> codes, int64_t group, const float* zero_points, const float* scales,
                 float* out, Isa isa = best_isa());

/// The scale that maps magnitudes up to `amax` to E4M3: amax / 448, or 1 if that is zero.
float fp8_scale_of(float amax);

/// E4M3 of weights / scale: IEEE division, nearest even, saturating at 448. -0 stays; NaN becomes 0x7F.
void encode_fp8(std::span<const float> weights, float scale, uint8_t* out, Isa isa = best_isa());

/// e4m3 * scale, rounded once.
void decode_fp8(std::span<const uint8_t> bytes, float scale, float* out, Isa isa = best_isa());

/// e2m1 * e4m3 of blocks of sixteen, which is exact, times `global`, rounded once: `codes` [blocks, 8],
/// `scales` [blocks], `out` [blocks, 16].
void decode_nvfp4(std::span<const uint8_t> codes, std::span<const uint8_t> scales, float global, float* out,
                  Isa isa = best_isa());

/// A positive scale rounded to its type: F32 unchanged; BF16 to nearest even; E8M0 (also U8) to the smallest
/// power of two that is not below it, at least 2^-127. 1 if the result is zero. Source of E8M0:
/// deepseek-ai/DeepSeek-V3.2-Exp, inference/kernel.py, fast_round_scale.
float round_scale(DType type, float scale);

/// Scales as bytes of a type. Each must be a number of the type.
void store_scales(DType type, std::span<const float> scales, uint8_t* out);

/// MXFP4 to NVFP4: codes stay, a block of 32 with scale 2^k becomes two of 16 with scale 2^(k - m), under the
/// global scale 2^m. Exact if E4M3 has every 2^(k - m), with k - m from -9 to 8. Blocks below take the least
/// scale and the nearest codes under it. Source: NVIDIA/Model-Optimizer,
/// examples/deepseek/deepseek_v4/quantize_to_nvfp4.py.
struct Mxfp4Range {
  int low = 256, high = -256;  ///< exponents of blocks that are not all zeros

  /// Adds `codes` [blocks, 16] and their scales. Returns the first block with a NaN scale, or -1.
  int64_t add(std::span<const uint8_t> codes, std::span<const uint8_t> scales);
  /// True if one global scale is exact for all blocks.
  bool is_exact() const { return high - low <= 17; }
  /// m: 2^m and 2^-m are normal numbers.
  int exponent() const;
};

/// The FP8 scale 2^(high - 6) of a tile of MXFP4, as a normal number of its type: codes of the largest blocks
/// become at most 384; codes of blocks down to 2^-14 of them stay exact. 1 for zeros. Source:
/// deepseek-ai/TileKernels, tile_kernels/quant/per_block_cast_lossless_kernel.py.
float mxfp4_tile_scale(DType type, const Mxfp4Range& tile);

/// The largest e2m1 * e4m3 of blocks of NVFP4: `codes` [blocks, 8], `scales` [blocks], none negative.
float largest_product(std::span<const uint8_t> codes, std::span<const uint8_t> scales);

/// The FP8 scale of a tile of NVFP4 with products up to `largest`: the smallest `global` * 2^n that maps them
/// to at most 448, so that e2m1 * e4m3 stays exact if it has four significant bits. 1 for zeros; 0 if it is
/// no normal number of the type.
float nvfp4_tile_scale(DType type, float largest, float global);

/// MXFP4 to E4M3, block by block of 32: the shift of a block is the exponent of its scale relative to its new
/// FP8 scale. Shifts are at most 6 if that scale is mxfp4_tile_scale()'s. All shifts far below count as one,
/// since all codes become zero there. Blocks of zeros may have any shift.
struct Mxfp4Shift {
  static constexpr int kLowest = -13, kHighest = 6, kCount = kHighest - kLowest + 1;
  static constexpr int kExact = -8;  ///< from here on, E4M3 has every code
  static constexpr uint8_t byte_of(int shift) { return static_cast<uint8_t>(shift - kLowest); }
};

/// The shift of each scale, as a byte of Mxfp4Shift::byte_of(). `fp8_scale` is a power of two.
void mxfp4_shifts(std::span<const uint8_t> scales, float fp8_scale, uint8_t* shifts);

/// The bytes of E4M3 nearest to e2m1(code) * 2^shift, ties to even: `codes` [blocks, 16], `shifts` [blocks],
/// `out` [blocks, 32]. -0 stays.
void cast_mxfp4_codes(std::span<const uint8_t> codes, const uint8_t* shifts, uint8_t* out,
                      Isa isa = best_isa());

/// True if the cast rounds none of these blocks.
bool is_exact_cast(std::span<const uint8_t> codes, const uint8_t* shifts);

/// Writes two block scales for each scale. Blocks of zeros, for which the scale has no effect, get the
/// nearest power of E4M3.
void cast_mxfp4_scales(std::span<const uint8_t> scales, int exponent, uint8_t* out);

/// Replaces the codes of blocks with scales below 2^(exponent - 9), which cast_mxfp4_scales() raises, by the
/// nearest under the raised scale, ties to even. -0 stays. `codes` [blocks, 16]. Returns the number of
/// rounded blocks.
int64_t round_small_mxfp4_blocks(std::span<const uint8_t> scales, int exponent, uint8_t* codes);

}  // namespace twofour
