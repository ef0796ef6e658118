#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/numbers/quantize.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/encode/quantized_group.h"

namespace twofour {

/// The arithmetic, the choice of block scales and what becomes of blocks of zeros, by the words of a rule.
QuantizeRule quantize_rule(const EncodeRule& rule);

/// The global scale of a matrix in NVFP4, and what goes with it.
struct MatrixScale {
  GlobalScale global{};  ///< as the arithmetic has it
  float written = 0;     ///< as the dialect has it
  ZeroBlock zero_block = ZeroBlock::producer;
  bool is_kept = false;
  bool is_zero = false;  ///< of weights that are all zero
};

/// The global scale of matrices with the largest magnitude `amax`. If that is 0, global scale 1 and blocks of
/// zeros: ModelOpt would divide by zero, and readers refuse a global scale of zero.
MatrixScale shared_scale(const EncodeRule& rule, const QuantizeRule& quantize, float amax);

/// One that is kept, by the name of the matrix.
std::optional<MatrixScale> kept_scale(const EncodeRule& rule, const QuantizeRule& quantize,
                                      const FixedGlobalScales& kept, const std::string& name);

/// Gives codes of weights that are -0 their sign, which producers drop: only the weights of a checkpoint that
/// was quantized before have any. `codes` of `weights`, two to a byte.
void restore_negative_zeros(std::span<const float> weights, std::span<uint8_t> codes);

/// Whether compressed-tensors' arithmetic stores 1 because what should be stored is beyond the weights' type.
bool is_overflow(const QuantizeRule& quantize, const MatrixScale& scale);

}  // namespace twofour
