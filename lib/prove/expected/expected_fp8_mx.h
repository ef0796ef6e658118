#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "formats/dtype.h"

namespace twofour {

/// The correct FP8, MXFP8, MXFP6 and MXFP4, derived only from the specification: formats/README.md, and the
/// producers' arithmetic as tests/golden/quantize records it. It computes one weight at a time in double. It
/// shares the codecs of E2M1, E4M3, E8M0, BF16 and FP16 with the encoder, but no other code.

/// Formats in which 32 numbers share a power of two.
enum class ExpectedMx { kMxfp8, kMxfp6, kMxfp4 };
/// The format for a rule's `to`. Empty if `to` is neither of these.
std::optional<ExpectedMx> expected_mx(std::string_view to);

/// Quantizes one block of 32 weights of type `type`. `codes` [32] gets one byte of E4M3, or one code of E2M3
/// or of E2M1, for each weight. Returns the byte of the block scale. `arithmetic` is "modelopt" or
/// "compressed-tensors"; throws Error on other words.
uint8_t expect_mx_block(ExpectedMx format, std::string_view arithmetic, DType type,
                        std::span<const float> weights, std::span<uint8_t> codes);

/// The number of weights in a block that are not 0 but are written as 0, although a scale of E8M0 could
/// represent them. `back` [32] are the weights as read back. Only compressed-tensors' arithmetic loses
/// weights in this way, in F16 blocks of subnormal numbers.
uint64_t expected_lost_mx(std::string_view arithmetic, DType type, std::span<const float> weights,
                          std::span<const float> back);

/// The type of scales for the setting "f32", "bf16" or "e8m0". Throws Error on other words.
DType expected_scale_type(std::string_view word);

/// The rows and columns of FP8 weights that share a scale.
struct ExpectedBlock {
  int64_t rows, width;
};
/// The block of a matrix of `rows` by `k` weights. `granularity` is "tensor", "row" or "block"; for "block",
/// `block` is "128x128", "32x32" or "1x128". Throws Error on other words.
ExpectedBlock expected_block(std::string_view granularity, std::string_view block, int64_t rows, int64_t k);

/// The scale of FP8 weights whose largest magnitude is `amax`, rounded to its type, and the
/// code of a weight under a scale.
float expected_fp8_scale(DType type, float amax);
uint8_t expected_fp8(float weight, float scale);

/// The largest product of code and block scale among four-bit weights that will share an FP8 scale.
struct ExpectedProducts {
  double largest = 0;
  int exponent = -1000;  ///< for MXFP4, the largest exponent of blocks that are not all zeros
  /// Add one block: `codes` of 16 weights for NVFP4 or 32 for MXFP4, and the byte of the block scale.
  void add_nvfp4(std::span<const uint8_t> codes, uint8_t scale);
  void add_mxfp4(std::span<const uint8_t> codes, uint8_t scale);
};
/// The FP8 scale under which as many values as possible stay the same. Empty for NVFP4 if the type cannot
/// store that scale.
float expected_mxfp4_tile(DType type, const ExpectedProducts& tile);
std::optional<float> expected_nvfp4_tile(DType type, const ExpectedProducts& tile, float global);

/// The bytes of a scale of the given type, as a number.
uint32_t expected_scale_bits(DType type, float scale);

}  // namespace twofour
