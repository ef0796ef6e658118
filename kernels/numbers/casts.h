#pragma once
#include <cstdint>
#include <span>

#include "formats/dtype.h"
#include "kernels/device/isa.h"

/// Converts numbers from one format to another. Scales are given or follow from the format; the functions in
/// quantize.h choose scales.

namespace twofour {

/// Converts F32, BF16 or F16 to float32 exactly, including the bits of NaN. `bytes` holds as many numbers as
/// `out`, at any alignment.
void widen(DType type, const uint8_t* bytes, std::span<float> out, Isa isa = best_isa());

/// Rounds to the nearest BF16, ties to even. Writes two bytes for each number, at any alignment. NaN stays
/// NaN.
void round_to_bf16(std::span<const float> numbers, uint8_t* out, Isa isa = best_isa());

/// Computes (code - zero point) * scale for INT4 codes, one code in each byte. Input k uses the zero point
/// and the scale at k / `group`.
void decode_int4(std::span<const uint8_t> codes, int64_t group, const float* zero_points, const float* scales,
                 float* out, Isa isa = best_isa());

/// The scale that maps magnitudes up to `amax` to E4M3: amax / 448, or 1 if the quotient is zero.
float fp8_scale_of(float amax);

/// Computes weights / scale as E4M3, with IEEE division, rounding to nearest even, and saturating at 448. -0
/// is kept. NaN becomes 0x7F.
void encode_fp8(std::span<const float> weights, float scale, uint8_t* out, Isa isa = best_isa());

/// Computes e4m3 * scale, rounded once.
void decode_fp8(std::span<const uint8_t> bytes, float scale, float* out, Isa isa = best_isa());

/// Computes e2m1 * e4m3 for blocks of sixteen, which is exact, times `global`, rounded once. `codes` are
/// [blocks, 8], `scales` are [blocks] and `out` is [blocks, 16].
void decode_nvfp4(std::span<const uint8_t> codes, std::span<const uint8_t> scales, float global, float* out,
                  Isa isa = best_isa());

/// Rounds a positive scale to its type. F32 is unchanged. BF16 is rounded to nearest even. E8M0 (also as U8)
/// is rounded up to a power of two, at least 2^-127. If the result is zero, 1 is returned. Source of E8M0:
/// deepseek-ai/DeepSeek-V3.2-Exp, inference/kernel.py, fast_round_scale.
float round_scale(DType type, float scale);

/// Writes scales as bytes of a type. The type must represent each scale exactly.
void store_scales(DType type, std::span<const float> scales, uint8_t* out);

/// The range of block scales for MXFP4 to NVFP4. Codes stay. A block of 32 with scale 2^k becomes two blocks
/// of 16 with scale 2^(k - m), under the global scale 2^m. This is exact if E4M3 has every 2^(k - m), which
/// means that k - m is -9 to 8. Blocks with a lower k get the smallest scale and the nearest codes under it.
/// Source: NVIDIA/Model-Optimizer, examples/deepseek/deepseek_v4/quantize_to_nvfp4.py.
struct Mxfp4Range {
  int low = 256, high = -256;  ///< lowest and highest k of the blocks that are not all zeros

  /// Adds blocks with `codes` [blocks, 16] and their scales. Returns the index of the first block with a NaN
  /// scale, or -1.
  int64_t add(std::span<const uint8_t> codes, std::span<const uint8_t> scales);
  /// True if one global scale is exact for all blocks.
  bool is_exact() const { return high - low <= 17; }
  /// The exponent m of the global scale. 2^m and 2^-m are normal numbers.
  int exponent() const;
};

/// The FP8 scale 2^(high - 6) for a tile of MXFP4, as a normal number of its type. The largest blocks get
/// values of at most 384. Blocks whose scales are down to 2^-14 of the largest stay exact. 1 for a tile of
/// zeros. Source: deepseek-ai/TileKernels, tile_kernels/quant/per_block_cast_lossless_kernel.py.
float mxfp4_tile_scale(DType type, const Mxfp4Range& tile);

/// The largest e2m1 * e4m3 in blocks of NVFP4. `codes` are [blocks, 8]. `scales` are [blocks] and not
/// negative.
float largest_product(std::span<const uint8_t> codes, std::span<const uint8_t> scales);

/// The FP8 scale for a tile of NVFP4 whose products are at most `largest`. It is the smallest `global` * 2^n
/// that maps them to at most 448, so e2m1 * e4m3 stays exact if it has four significant bits. 1 for a tile of
/// zeros. 0 if the scale is not a normal number of the type.
float nvfp4_tile_scale(DType type, float largest, float global);

/// The shift of a block of 32 in a cast from MXFP4 to E4M3: the exponent of its scale minus the exponent of
/// its new FP8 scale. Shifts are at most 6 if mxfp4_tile_scale() gave the new scale. All shifts that make
/// every code zero count as one shift. Blocks of zeros may have any shift.
struct Mxfp4Shift {
  static constexpr int kLowest = -13, kHighest = 6, kCount = kHighest - kLowest + 1;
  static constexpr int kExact = -8;  ///< from this shift on, E4M3 represents every code
  static constexpr uint8_t byte_of(int shift) { return static_cast<uint8_t>(shift - kLowest); }
};

/// Writes the shift of each scale, as a byte of Mxfp4Shift::byte_of(). `fp8_scale` is a power of two.
void mxfp4_shifts(std::span<const uint8_t> scales, float fp8_scale, uint8_t* shifts);

/// Writes the E4M3 bytes nearest to e2m1(code) * 2^shift, ties to even. `codes` are [blocks, 16], `shifts`
/// are [blocks] and `out` is [blocks, 32]. -0 is kept.
void cast_mxfp4_codes(std::span<const uint8_t> codes, const uint8_t* shifts, uint8_t* out,
                      Isa isa = best_isa());

/// True if the cast does not round any of these blocks.
bool is_exact_cast(std::span<const uint8_t> codes, const uint8_t* shifts);

/// Writes two block scales for each scale. A scale has no effect on a block of zeros, so such a block gets
/// the nearest power of two of E4M3.
void cast_mxfp4_scales(std::span<const uint8_t> scales, int exponent, uint8_t* out);

/// Adapts blocks with scales below 2^(exponent - 9), which cast_mxfp4_scales() raises. Replaces their `codes`
/// [blocks, 16] with the nearest codes under the raised scale, ties to even. -0 is kept. Returns the number
/// of rounded blocks.
int64_t round_small_mxfp4_blocks(std::span<const uint8_t> scales, int exponent, uint8_t* codes);

}  // namespace twofour
