#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "formats/dtype.h"

namespace twofour {

/// The correct result of quantizing, derived only from the specification: formats/README.md, and the
/// producers' arithmetic as tests/golden/quantize records it. It computes one weight at a time in float32. It
/// shares the codecs of E2M1, E4M3, E8M0, BF16 and FP16 with the encoder, but no other code.

/// The rule by which NVFP4 weights are quantized.
struct ExpectedRule {
  enum class Choice { kMax, kMse, kFourOverSix };
  bool compressed_tensors = false;  ///< compressed-tensors' arithmetic; otherwise ModelOpt's
  Choice choice = Choice::kMax;     ///< the choice of a block scale
  bool keeps_zero = false;          ///< a block whose scale rounds to zero gets scale 0x00 and codes 0x0
  DType weight_type = DType::kF32;  ///< the type to which compressed-tensors rounds intermediate numbers
};

/// The rule for the settings of a recipe. `arithmetic` is "modelopt" or "compressed-tensors"; `block_scale`
/// is "max", "mse" or "four-over-six"; `zero_block` is "producer" or "zero". Throws Error on other words.
ExpectedRule expected_rule(std::string_view arithmetic, std::string_view block_scale,
                           std::string_view zero_block);
/// True if weights are pruned to 2:4 before they are quantized. `pattern` is "2:4" or "". Throws Error on
/// other patterns.
bool expects_2_4(std::string_view pattern);

/// The global scale of matrices that engines multiply as one.
struct ExpectedGlobal {
  float scale;                  ///< ModelOpt multiplies by it; compressed-tensors divides by it
  float amax;                   ///< the largest magnitude, or the magnitude that a given `scale` implies
  float written;                ///< the scale as the checkpoint's dialect stores it
  bool all_zero = false;        ///< all codes and block scales are 0
  bool keeps_negative = false;  ///< -0 becomes code 0x8
};

/// The producer's global scale for weights whose largest magnitude is `amax`. `written` equals `scale`.
ExpectedGlobal producer_global(const ExpectedRule& rule, float amax);
/// Does the same for a dialect whose global scales are divisors (`divides`) or multipliers. If `amax` is 0,
/// the global scale is 1.
ExpectedGlobal expected_global(const ExpectedRule& rule, float amax, bool divides);
/// The global scale for `stored`, which was given from another checkpoint. `stored_divides` is true if it is
/// a divisor there, `divides` if the dialect that is written has divisors.
ExpectedGlobal kept_global(const ExpectedRule& rule, float stored, bool stored_divides, bool divides);

/// Quantizes rows under one global scale. Safe to use from several threads.
class ExpectedNvfp4 {
 public:
  ExpectedNvfp4(const ExpectedRule& rule, const ExpectedGlobal& global);
  /// Quantizes a row of k weights, where k is a multiple of 16. `weights` [k] must be finite. The results are
  /// `codes` [k/2] and `scales` [k/16].
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
  const float largest_scale_;          ///< the scale of a block whose largest weight becomes 6
  std::array<float, 127> tried_{};     ///< for mse, the step that is tried for each block scale
  std::array<uint8_t, 127> stored_{};  ///< for mse, the block scale that is stored if that step is the best
  bool rising_ = false;                ///< `tried_` is ascending and far from the limits of float32
};

/// Decodes `codes` [k/2] under `scales` [k/16] and the global scale `written`, which the dialect stores as a
/// divisor (`divides`) or a multiplier.
void expected_values(std::span<const uint8_t> codes, std::span<const uint8_t> scales, float written,
                     bool divides, std::span<float> values);

/// Prunes to 2:4. The two largest magnitudes of four neighbours stay. On a tie, the lower k stays. The other
/// two become +0.
void expect_2_4(std::span<float> weights);
/// Prunes codes to 2:4 in the same way. Each byte holds two codes.
void expect_2_4(std::span<uint8_t> codes);

/// The exponents of MXFP4 block scales. They decide whether a group becomes NVFP4 without loss.
struct CastRange {
  int low = 256, high = -256;  ///< smallest and largest exponent of blocks that are not all zeros
  /// Adds blocks with `codes` [blocks, 16] and `scales` [blocks].
  void add(std::span<const uint8_t> codes, std::span<const uint8_t> scales);
  void add(const CastRange& other);
  /// The exponent m of the global scale 2^m. It makes the scale of the largest block 2^8, or less if 2^m
  /// would not be a normal number.
  int exponent() const;
  /// True if E4M3 can store the scale of every block under this global scale.
  bool is_exact() const;
};
/// The code under expected_cast_scale() that is nearest to `code`, ties to even. `code` belongs to a block of
/// 32 with scale `e8m0`.
unsigned expected_cast_code(unsigned code, uint8_t e8m0, int exponent);
/// A block of 32 with scale `e8m0` becomes two blocks of 16. This is the block scale of both.
uint8_t expected_cast_scale(uint8_t e8m0, int exponent);

/// Squares of a row's weights, and of the changes of these weights by quantizing. They are summed in the
/// order of the figures in twofour.json. Weight i belongs to partial sum i % 16. Then partial sum j adds
/// partial sums j + 8, j + 4, j + 2 and j + 1.
struct RowError {
  double energy = 0, error = 0;
};
RowError row_error(std::span<const float> weights, std::span<const float> values);

}  // namespace twofour
