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
  DType weight_type = DType::kF32;  ///< F32, BF16 or F16, as in the source; does not change ModelOpt's bytes
};

/// The global scale that all blocks of a matrix share. Matrices that are multiplied as one share it, too.
struct GlobalScale {
  float stored;  ///< as in the checkpoint: ModelOpt's multiplier g, or compressed-tensors' divisor G
  float amax;    ///< a; used instead of g by ModelOpt's mse and four_over_six
};

/// The largest magnitude of weights. NaN if a weight is NaN.
float largest_magnitude(std::span<const float> weights, Isa isa = best_isa());

/// The global scale for weights up to `amax`. ModelOpt's global scale is 0 if `amax` is 0 or if it
/// underflows. Blocks of zeros then get codes 7 and the scale NaN (0x7E with mse and four_over_six), as in
/// ModelOpt, unless `zero_block` is zero. compressed-tensors replaces an `amax` below the smallest normal
/// number by that number, and stores 1 if the quotient overflows or is NaN.
GlobalScale global_scale_of(const QuantizeRule& rule, float amax);

/// Makes a GlobalScale from a given value, for instance a checkpoint's. Its amax is derived from `stored`.
GlobalScale global_scale_from(const QuantizeRule& rule, float stored);

/// The value of code 1.0 under a block scale.
float step_of(Arithmetic arithmetic, uint8_t block_scale, float stored_global_scale);

/// Quantizes whole rows, stored one after another. `weights` is [n, k], k is a multiple of 16, and
/// `rule.weight_type` represents every weight. Writes `codes` [n, k/2] and `scales` [n, k/16]. Weights must
/// be finite; otherwise the choice of block scales is meaningless. With max, a NaN weight shows in its block
/// scale.
void quantize_nvfp4(const QuantizeRule& rule, const GlobalScale& global, std::span<const float> weights,
                    uint8_t* codes, uint8_t* scales, Isa isa = best_isa());

/// Quantizes one row by ModelOpt's rule for max, with a given multiplier as the global scale.
void quantize_nvfp4_row(const float* row, int64_t k, float global_scale, uint8_t* codes, uint8_t* scales);

/// Computes the values of `weights.size()` codes, a multiple of 16. A value is e2m1(code) * step, as the
/// dequantization of both producers computes it.
void dequantize_nvfp4(Arithmetic arithmetic, float stored_global_scale, const uint8_t* codes,
                      const uint8_t* scales, std::span<float> weights, Isa isa = best_isa());

/// The differences between values and the weights that they represent. Sums are in double, and equal for all
/// instruction sets. Number i is added to partial sum i % 16, in the order of i. Then partial sum j + 8 is
/// added to partial sum j, then j + 4, j + 2 and j + 1.
struct QuantizeError {
  double weights_squared = 0;  ///< sum of w^2
  double errors_squared = 0;   ///< sum of (w - q)^2
  double products = 0;         ///< sum of w q
  double largest = 0;          ///< the largest |w - q|
  QuantizeError& operator+=(const QuantizeError& other);
};

/// The error of `values` that represent `weights`. All numbers are finite, and both spans have the same size.
QuantizeError quantize_error_of(std::span<const float> weights, std::span<const float> values,
                                Isa isa = best_isa());
/// Computes only QuantizeError::weights_squared.
double sum_of_squares(std::span<const float> weights, Isa isa = best_isa());

}  // namespace twofour
