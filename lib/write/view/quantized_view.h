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

/// Figures that all rows of a group of matrices share in NVFP4, found by a pass over all rows.
struct GroupScale {
  float amax = 0;               ///< largest magnitude
  std::optional<int> exponent;  ///< for MXFP4 that NVFP4 holds without loss: the global scale is 2^exponent
  float written = 0;            ///< the global scale as the dialect stores it
  Findings findings = {};       ///< notes on the group, for people
};

/// A group quantized as a whole.
struct QuantizedRows {
  std::vector<std::vector<uint8_t>> parts;  ///< the bytes of each part of the group
  std::vector<EncodedResult> results;       ///< of each matrix
};

/// Quantizes rows of groups to NVFP4 by the settings of their rule, and rewrites other tensors. Use one per
/// thread.
class RowQuantizer {
 public:
  virtual ~RowQuantizer() = default;
  /// Quantizes a whole group whose weights are chosen by statistics or masks. Throws Error if that is not
  /// possible.
  virtual QuantizedRows quantize(const QuantizedGroup& group) = 0;
  /// The pass over all matrices of a group. Throws Error if they cannot be quantized: NaN, infinity.
  virtual GroupScale survey(const QuantizedGroup& group) = 0;
  /// Quantizes rows of matrix `matrix` of a group: `codes` [rows, (k1 - k0) / 2], `scales` [rows, (k1 - k0) /
  /// 16]. k0 and k1 are multiples of 16, of 32 if MXFP4 is cast.
  virtual void quantize(const QuantizedGroup& group, const GroupScale& scale, size_t matrix,
                        const RowRange& rows, std::span<uint8_t> codes, std::span<uint8_t> scales) = 0;
  /// Makes bytes of a tensor from `begin` on: whole grains, or up to its end.
  virtual void rewrite(const TensorRewrite& tensor, uint64_t begin, std::span<uint8_t> out) = 0;
};
/// Makes the quantizer of one thread, which reads from a checkpoint that outlives it. It quantizes whole
/// groups on `threads` threads.
using MakeRowQuantizer = std::function<std::unique_ptr<RowQuantizer>(const Checkpoint& source, int threads)>;

/// The result of open_quantized().
struct QuantizedSource {
  Checkpoint shown;
  /// The computed linears of `shown`, for callers that compute them themselves; null: none.
  std::shared_ptr<const ComputedPlan> computed = {};
  const Checkpoint* stored = nullptr;  ///< from which it is computed; `shown` owns it
};

/// A checkpoint as rules for layouts need it. Linears that they take and that are not NVFP4 appear quantized
/// by the rule's settings; they are quantized as they are read. The view equals the output of `quantize` for
/// these linears: stacks taken apart, other quantized linears in the dialect's spelling, config.json and
/// hf_quant_config.json for both. The dialect is the recipe's; without one ModelOpt's, or the source's own if
/// only that can describe the rest. NVFP4 that a rule for a sparse layout prunes by statistics or masks
/// appears pruned, under its own names. A source without such linears is returned as it is. Reads headers and
/// config alone. Throws Error if a linear cannot be quantized. Groups that are quantized as a whole share
/// `threads`: as many at a time as the limits have room for.
QuantizedSource open_quantized(Checkpoint source, const Recipe& recipe, const MakeRowQuantizer& make,
                               const MemoryLimits& limits = {}, int threads = 1);

}  // namespace twofour
