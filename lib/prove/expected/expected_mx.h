#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "formats/dtype.h"

namespace twofour {

/// The correct FP8, MXFP8 and MXFP4, from the specification alone: formats/README.md and the producers'
/// arithmetic as tests/golden/quantize records it. Weight by weight, in double; it shares the codecs of E2M1,
/// E4M3, E8M0, BF16 and FP16 with the encoder, and nothing else.

/// Numbers that share a power of two with 31 others.
enum class ExpectedMx { kMxfp8, kMxfp4 };
/// The format of a rule's `to`; nothing if it is neither.
std::optional<ExpectedMx> expected_mx(std::string_view to);

/// Quantizes one block of 32 weights of a type: `codes` [32] gets a byte of E4M3 or a code of E2M1 for each.
/// Returns the byte of its scale. `arithmetic` is "modelopt" or "compressed-tensors"; throws Error on others.
uint8_t expect_mx_block(ExpectedMx format, std::string_view arithmetic, DType type,
                        std::span<const float> weights, std::span<uint8_t> codes);

/// Number of weights of such a block that are not 0 but are written as 0 (`back` [32]) though a scale of E8M0
/// could hold them. Only compressed-tensors' arithmetic loses weights so, in F16 blocks of subnormal numbers.
uint64_t expected_lost_mx(std::string_view arithmetic, DType type, std::span<const float> weights,
                          std::span<const float> back);

/// The type of scales by the setting "f32", "bf16" or "e8m0". Throws Error on others.
DType expected_scale_type(std::string_view word);

/// Rows and columns of FP8 weights that share a scale.
struct ExpectedBlock {
  int64_t rows, width;
};
/// The block of a matrix of that size by the setting "tensor", "row" or "block" (then `block`: "128x128",
/// "32x32" or "1x128"). Throws Error on others.
ExpectedBlock expected_block(std::string_view granularity, std::string_view block, int64_t rows, int64_t k);

/// The scale of FP8 weights up to `amax`, rounded to its type, and the code of a weight under a scale.
float expected_fp8_scale(DType type, float amax);
uint8_t expected_fp8(float weight, float scale);

/// The largest product of code and block scale among FP4 weights that will share an FP8 scale.
struct ExpectedProducts {
  double largest = 0;
  int exponent = -1000;  ///< for MXFP4: the largest of blocks that are not all zeros
  /// Adds one block: `codes` of 16 or 32 weights, and the scale's byte.
  void add_nvfp4(std::span<const uint8_t> codes, uint8_t scale);
  void add_mxfp4(std::span<const uint8_t> codes, uint8_t scale);
};
/// The FP8 scale under which as many values as possible stay the same; nothing if the type does not have it.
float expected_mxfp4_tile(DType type, const ExpectedProducts& tile);
std::optional<float> expected_nvfp4_tile(DType type, const ExpectedProducts& tile, float global);

/// The bytes of a scale of that type, as a number.
uint32_t expected_scale_bits(DType type, float scale);

}  // namespace twofour
