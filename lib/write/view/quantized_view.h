#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "lib/base/findings/finding.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/plan/tensor_rewrite.h"
#include "lib/write/view/plan_computed.h"

namespace twofour {

/// Figures that all rows of a group of NVFP4 matrices share. A pass over all rows finds them.
struct GroupScale {
  float amax = 0;               ///< largest magnitude
  std::optional<int> exponent;  ///< for MXFP4 that NVFP4 can hold without loss; the global scale is
                                ///< 2^exponent
  float written = 0;            ///< the global scale as the dialect stores it
  Findings findings = {};       ///< notes on the group, for messages
};

/// A group that was quantized as a whole.
struct QuantizedRows {
  std::vector<std::vector<uint8_t>> parts;  ///< the bytes of each part of the group
  std::vector<EncodedResult> results;       ///< one for each matrix
};

/// Quantizes rows of groups to NVFP4 by the settings of their rule, and rewrites other tensors. Each thread
/// needs its own object.
class RowQuantizer {
 public:
  virtual ~RowQuantizer() = default;
  /// Quantizes a whole group whose weights statistics or masks choose. Throws Error if that is not possible.
  virtual QuantizedRows quantize(const QuantizedGroup& group) = 0;
  /// Makes the pass over all matrices of a group. Throws Error if they cannot be quantized, since they have
  /// NaN or infinity.
  virtual GroupScale survey(const QuantizedGroup& group) = 0;
  /// Quantizes rows of the matrix with index `matrix` in a group, from column k0 to k1 of `rows`. `codes` is
  /// [rows, (k1 - k0) / 2] and `scales` [rows, (k1 - k0) / 16]. k0 and k1 are multiples of 16, or of 32 if
  /// MXFP4 is cast.
  virtual void quantize(const QuantizedGroup& group, const GroupScale& scale, size_t matrix,
                        const RowRange& rows, std::span<uint8_t> codes, std::span<uint8_t> scales) = 0;
  /// Makes the bytes of a tensor that begin at `begin`. They are whole grains, or reach to the end of the
  /// tensor.
  virtual void rewrite(const TensorRewrite& tensor, uint64_t begin, std::span<uint8_t> out) = 0;
};
/// Makes the quantizer of one thread. It reads from `source`, which outlives it, and quantizes whole groups
/// on `threads` threads.
using MakeRowQuantizer = std::function<std::unique_ptr<RowQuantizer>(const Checkpoint& source, int threads)>;

/// The result of open_quantized().
struct QuantizedSource {
  Checkpoint shown;
  /// The computed linears of `shown`, for callers that compute them themselves. Null if there are none.
  std::shared_ptr<const ComputedPlan> computed = {};
  const Checkpoint* stored = nullptr;  ///< the checkpoint from which `shown` is computed, and which `shown`
                                       ///< owns
};

/// Returns a checkpoint in the form that rules for layouts need.
/// Linears that the rules take and that are not NVFP4 appear quantized by the rule's settings. They are
/// quantized when they are read. For these linears, the view equals the output of `quantize`. Stacks are
/// taken apart, other quantized linears have the dialect's spelling, and config.json and hf_quant_config.json
/// describe both. The dialect is the recipe's. If the recipe has none, it is ModelOpt's, or the source's own
/// if only that can describe the rest.
/// NVFP4 that a rule for a sparse layout prunes by statistics or masks appears pruned, under its own names. A
/// source without any such linears is returned as it is.
/// Reads only headers and config. Throws Error if a linear cannot be quantized. Groups that are quantized as
/// a whole share `threads`. As many groups run at a time as the limits have room for.
QuantizedSource open_quantized(Checkpoint source, const Recipe& recipe, const MakeRowQuantizer& make,
                               const MemoryLimits& limits = {}, int threads = 1);

}  // namespace twofour
