#pragma once
#include <cstdint>
#include <span>

#include "formats/atom.h"
#include "formats/dtype.h"
#include "kernels/device/isa.h"
#include "kernels/numbers/nvfp4_choices.h"

namespace twofour {

struct QuantizeRule {
  Arithmetic arithmetic = Arithmetic::modelopt;
  BlockScale block_scale = BlockScale::max;
  ZeroBlock zero_block = ZeroBlock::producer;
  DType weight_type = DType::kF32;  ///< F32, BF16 or F16: the source's; ModelOpt's bytes don't depend on it
};

/// The global scale that all blocks of a matrix share, and matrices that are multiplied as one.
struct GlobalScale {
  float stored;  ///< as in the checkpoint: ModelOpt's g, a multiplier, or compressed-tensors' G, a divisor
  float amax;    ///< a; ModelOpt's mse and four_over_six compute with it, not with g
};

/// The largest magnitude; NaN if a weight is NaN.
float largest_magnitude(std::span<const float> weights, Isa isa = best_isa());

/// The global scale of weights up to `amax`. ModelOpt's is 0 if `amax` is 0 or underflows; blocks of zeros
/// then get codes 7 and the scale NaN (0x7E with mse and four_over_six), as in ModelOpt, unless `zero_block`
/// is zero. compressed-tensors takes the smallest normal number for a smaller `amax`, and stores 1 if the
/// quotient overflows or is NaN.
GlobalScale global_scale_of(const QuantizeRule& rule, float amax);

/// A given global scale, for instance a checkpoint's. Its amax is derived from `stored`.
GlobalScale global_scale_from(const QuantizeRule& rule, float stored);

/// The value of code 1.0 under a block scale.
float step_of(Arithmetic arithmetic, uint8_t block_scale, float stored_global_scale);

/// Quantizes whole rows, stored one after another: `weights` [n, k], k a multiple of 16, with values that
/// `rule.weight_type` represents. Writes `codes` [n, k/2] and `scales` [n, k/16]. Weights must be finite, or
/// the choice of a block scale is meaningless; with max, a NaN shows in the block scale.
void quantize_nvfp4(const QuantizeRule& rule, const GlobalScale& global, std::span<const float> weights,
                    uint8_t* codes, uint8_t* scales, Isa isa = best_isa());

/// The same for one row, by ModelOpt's rule for max and a given multiplier.
void quantize_nvfp4_row(const float* row, int64_t k, float global_scale, uint8_t* codes, uint8_t* scales);

/// The values of `weights.size()` codes, a multiple of 16: e2m1(code) * step, as both producers' own
/// dequantization computes them.
void dequantize_nvfp4(Arithmetic arithmetic, float stored_global_scale, const uint8_t* codes,
                      const uint8_t* scales, std::span<float> weights, Isa isa = best_isa());

/// The differences between values and the weights that they represent. Sums in double, the same for every
/// instruction set: number i is added to partial sum i % 16, in the order of i; then partial sum j takes j +
/// 8, then j + 4, j + 2 and j + 1.
struct QuantizeError {
  double weights_squared = 0;  ///< sum of w^2
  double errors_squared = 0;   ///< sum of (w - q)^2
  double products = 0;         ///< sum of w q
  double largest = 0;          ///< the largest |w - q|
  QuantizeError& operator+=(const QuantizeError& other);
};

/// The error of finite values of the same number of finite weights.
QuantizeError quantize_error_of(std::span<const float> weights, std::span<const float> values,
                                Isa isa = best_isa());
/// QuantizeError::weights_squared alone.
double sum_of_squares(std::span<const float> weights, Isa isa = best_isa());

}  // namespace twofour
