#pragma once
#include <cstdint>

#include "kernels/device/stream.h"

namespace twofour::cuda {

/// A 2:4 layout in device memory. kernels/multiply/device_layouts.h maps each value to its layout.
enum class SparseLayout { planes, packed };

/// Dense NVFP4 matrices as checkpoints store them, K contiguous, in device memory.
struct DenseMatrices {
  const uint8_t* codes = nullptr;   ///< [E, N, K/2] E2M1, the even k in the low nibble
  const uint8_t* scales = nullptr;  ///< [E, N, K/16] E4M3
  int64_t e = 0, n = 0, k = 0;      ///< k is a multiple of 16
};

/// Prunes to 2:4 and packs in `layout`. The bytes equal the result of prune_pack in
/// kernels/pack/prune_pack.h. `parts` are as in SparseExperts. 16 bytes are copied at a time if parts, codes
/// and scales are aligned to 16 bytes, N is a multiple of 16 and K is a multiple of 32. Throws Error on
/// impossible shapes and on CUDA's errors.
void prune_pack(const DenseMatrices& dense, SparseLayout layout, uint8_t* const (&parts)[3], Stream stream);

/// Packs as g8. The bytes equal the result of dense_pack in kernels/pack/dense_pack.h, and padding is zero.
///   weight U8 [E, N, K/2], scale E4M3 [E, Np, Sp]: see formats/layouts/gate_up_interleaved8.h
/// With `gated`, gate rows come before up rows, and N is a multiple of 16.
void pack_g8(const DenseMatrices& dense, bool gated, uint8_t* weight, uint8_t* scale, Stream stream);

/// Dequantizes weights to BF16 [E, N, K]. The bytes equal the result of dequantize_bf16 in
/// kernels/numbers/dequantize.h. `global_scale` is F32 [E].
void dequantize_to_bf16(const DenseMatrices& dense, const float* global_scale, void* out, Stream stream);

/// Dequantizes weights to E4M3 [E, N, K]. The weights of dequantize_to_bf16 are not rounded, but divided by
/// `row_scale` F32 [E, N] in float32, saturating at 448.
void dequantize_to_fp8(const DenseMatrices& dense, const float* global_scale, const float* row_scale,
                       uint8_t* out, Stream stream);

/// The order of the block scales of quantized activations.
enum class ScaleOrder {
  rows,   ///< [M, K/16]
  tiles,  ///< 128x4, like the scales of g8: [Mp, Sp], with M and K/16 rounded up to multiples of 128 and 4
};

/// Activations to quantize. There is one matrix, or `experts` matrices stacked by rows. Matrix e has rows
/// row_begin[e] to row_begin[e + 1] - 1. If scales are ordered in tiles, the tiles of matrix e begin at row
/// tile_begin[e], a multiple of 128.
struct QuantizeActivations {
  const void* x = nullptr;  ///< [M, K]; with `interleaved` [M, 2K], 8 of gate and 8 of up in every 16 numbers
  Float type = Float::bf16;
  int64_t m = 0, k = 0;               ///< k is a multiple of 16
  int64_t rows_per_x = 1;             ///< row r is x[r / rows_per_x], so x is [M / rows_per_x, K]
  const float* row_weight = nullptr;  ///< [M] row factors; products round to float32; not with `interleaved`
  const float* global_scale = nullptr;  ///< [experts] multipliers: weight = e2m1 * e4m3 * global scale
  int64_t experts = 1;
  const int32_t* row_begin = nullptr;   ///< [experts + 1], with more than one matrix
  const int32_t* tile_begin = nullptr;  ///< [experts], with more than one matrix and tiles
  bool interleaved =
      false;        ///< quantizes silu(gate) * up of dense_multiply's output with DenseEpilogue::stored
  float limit = 0;  ///< limit to which gate and up are clamped; 0 if none
  ScaleOrder order = ScaleOrder::rows;
  uint8_t* codes = nullptr;   ///< [M, K/2]
  uint8_t* scales = nullptr;  ///< in the order of `order`; padding is not written
};

/// Quantizes every row times its weight. The bytes equal the result of quantize_nvfp4_row in
/// kernels/numbers/quantize.h (ModelOpt's rule). With `interleaved`, the last bits of exp may differ.
void quantize_activations(const QuantizeActivations& args, Stream stream);

}  // namespace twofour::cuda
