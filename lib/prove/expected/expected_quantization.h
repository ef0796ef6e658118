#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "formats/dtype.h"

namespace twofour {

/// The correct result of quantizing, from the specification alone: formats/README.md and the producers'
/// arithmetic as tests/golden/quantize records it. Scalar float32, weight by weight; it shares the codecs of
/// E2M1, E4M3, E8M0, BF16 and FP16 with the encoder, and nothing else.

/// How NVFP4 weights are quantized.
struct ExpectedRule {
  enum class Choice { kMax, kMse, kFourOverSix };
  bool compressed_tensors = false;  ///< compressed-tensors' arithmetic; else ModelOpt's
  Choice choice = Choice::kMax;     ///< of a block scale
  bool keeps_zero = false;          ///< a block whose scale rounds to zero has scale 0x00 and codes 0x0
  DType weight_type = DType::kF32;  ///< compressed-tensors rounds intermediate numbers to it
};

/// The rule by a recipe's settings: "modelopt" or "compressed-tensors"; "max", "mse" or "four-over-six";
/// "producer" or "zero". Throws Error on others.
ExpectedRule expected_rule(std::string_view arithmetic, std::string_view block_scale,
                           std::string_view zero_block);
/// True if weights are pruned to 2:4 before, by the pattern "2:4" or "". Throws Error on others.
bool expects_2_4(std::string_view pattern);

/// The global scale of matrices that are multiplied as one.
struct ExpectedGlobal {
  float scale;                  ///< ModelOpt multiplies by it, compressed-tensors divides by it
  float amax;                   ///< the largest magnitude, or the one that a given `scale` implies
  float written;                ///< as the checkpoint's dialect stores it
  bool all_zero = false;        ///< all codes and block scales are 0
  bool keeps_negative = false;  ///< -0 becomes code 0x8
};

/// The producer's global scale for weights up to `amax`; `written` is `scale`.
ExpectedGlobal producer_global(const ExpectedRule& rule, float amax);
/// The same in a dialect that divides by global scales or multiplies. With `amax` 0 the global scale is 1.
ExpectedGlobal expected_global(const ExpectedRule& rule, float amax, bool divides);
/// A given global scale of another checkpoint: `stored`, a divisor if `stored_divides`.
ExpectedGlobal kept_global(const ExpectedRule& rule, float stored, bool stored_divides, bool divides);

/// Quantizes rows under one global scale. Safe from several threads.
class ExpectedNvfp4 {
 public:
  ExpectedNvfp4(const ExpectedRule& rule, const ExpectedGlobal& global);
  /// `weights` [k], finite, k a multiple of 16; `codes` [k/2], `scales` [k/16].
  void quantize(std::span<const float> weights, std::span<uint8_t> codes, std::span<uint8_t> scales) const;

 private:
  using Block = std::span<const float, 16>;
  float step(uint8_t scale) const;
  float unrounded(float amax) const;
  uint8_t scale_of(float amax) const;
  uint8_t static_scale(float amax) const;
  uint8_t sweep(Block x, float amax) const;
  float error_of_mapping(Block x, float amax) const;
  uint8_t choose(Block x, float amax) const;

  const ExpectedRule rule_;
  const ExpectedGlobal global_;
  const float largest_scale_;          ///< of a block whose largest weight becomes 6
  std::array<float, 127> tried_{};     ///< mse: the step that is tried for each block scale
  std::array<uint8_t, 127> stored_{};  ///< mse: the block scale that is stored if it wins
  bool rising_ = false;                ///< `tried_` is ascending and far within float32's range
};

/// The values of `codes` [k/2] under `scales` [k/16] and a global scale as the dialect stores it.
void expected_values(std::span<const uint8_t> codes, std::span<const uint8_t> scales, float written,
                     bool divides, std::span<float> values);

/// 2:4: the two largest magnitudes of four neighbours stay, on a tie the lower k; the others become +0.
void expect_2_4(std::span<float> weights);
/// The same for codes, two to a byte.
void expect_2_4(std::span<uint8_t> codes);

/// Exponents of MXFP4's block scales, to decide if a group becomes NVFP4 without loss.
struct CastRange {
  int low = 256, high = -256;  ///< of blocks that are not all zeros
  /// `codes` [blocks, 16], `scales` [blocks].
  void add(std::span<const uint8_t> codes, std::span<const uint8_t> scales);
  void add(const CastRange& other);
  /// m of the global scale 2^m: the largest block's scale becomes 2^8, or less if 2^m would not be normal.
  int exponent() const;
  /// True if E4M3 holds every block's scale under this global scale.
  bool is_exact() const;
};
/// The code that is nearest to a code of a block of 32 with scale `e8m0` under expected_cast_scale(), ties to
/// even.
unsigned expected_cast_code(unsigned code, uint8_t e8m0, int exponent);
/// The block scale of both blocks of 16 that a block of 32 with scale `e8m0` becomes.
uint8_t expected_cast_scale(uint8_t e8m0, int exponent);

/// Squares of a row's weights and of their changes by quantizing, summed in the order of twofour.json's
/// figures: weight i in partial sum i % 16, then partial sum j takes j + 8, then j + 4, j + 2 and j + 1.
struct RowError {
  double energy = 0, error = 0;
};
RowError row_error(std::span<const float> weights, std::span<const float> values);

}  // namespace twofour
