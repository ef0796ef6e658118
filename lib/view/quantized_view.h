#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "lib/artifact/recipe.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/encode/quantized_group.h"
#include "lib/findings/finding.h"
#include "lib/plan/tensor_rewrite.h"
#include "lib/view/plan_computed.h"

namespace twofour {

/// What all rows of a group of matrices share in NVFP4, found by a pass over all of them.
struct GroupScale {
  float amax = 0;               ///< largest magnitude
  std::optional<int> exponent;  ///< of MXFP4 that NVFP4 holds without loss: the global scale is 2^exponent
  float written = 0;            ///< the global scale as the dialect stores it
  Findings findings = {};       ///< what people should know of the group
};

/// A group quantized as a whole.
struct QuantizedRows {
  std::vector<std::vector<uint8_t>> parts;  ///< the bytes of each part of the group
  std::vector<EncodedResult> results;       ///< of each matrix
};

/// Quantizes rows of groups to NVFP4 by the words of their rule, and rewrites other tensors. One a thread.
class RowQuantizer {
 public:
  virtual ~RowQuantizer() = default;
  /// All of a group, whose weights are chosen by statistics or masks. Throws Error where they cannot be.
  virtual QuantizedRows quantize(const QuantizedGroup& group) = 0;
  /// The pass over all matrices of a group. Throws Error where they cannot be quantized: NaN, infinity.
  virtual GroupScale survey(const QuantizedGroup& group) = 0;
  /// Some rows of matrix `matrix` of a group: `codes` [rows, (k1 - k0) / 2] and `scales` [rows,
  /// (k1 - k0) / 16]. k0 and k1 are multiples of 16, of 32 where MXFP4 is cast.
  virtual void quantize(const QuantizedGroup& group, const GroupScale& scale, size_t matrix,
                        const RowRange& rows, std::span<uint8_t> codes, std::span<uint8_t> scales) = 0;
  /// Bytes of a tensor from `begin` on, whole grains of it or up to its end.
  virtual void rewrite(const TensorRewrite& tensor, uint64_t begin, std::span<uint8_t> out) = 0;
};
/// Makes the quantizer of one thread, which reads from a checkpoint that outlives it; whole groups it
/// quantizes on so many threads.
using MakeRowQuantizer = std::function<std::unique_ptr<RowQuantizer>(const Checkpoint& source, int threads)>;

/// What open_quantized() shows.
struct QuantizedSource {
  Checkpoint shown;
  /// What is computed of it, for those who compute it by themselves; null: nothing.
  std::shared_ptr<const ComputedPlan> computed = {};
  const Checkpoint* stored = nullptr;  ///< that it is computed from; `shown` keeps it
};

/// A checkpoint as rules for layouts need it: linears that they take and that are not NVFP4 appear quantized,
/// by the rule's words as they are read. It is what `quantize` writes of these linears, in the recipe's
/// dialect; without one in ModelOpt's, or in the source's own where that alone has words for the rest: stacks
/// taken apart, other quantized linears in the dialect's spelling, config.json and hf_quant_config.json for
/// both. NVFP4 that a rule for a sparse layout prunes by statistics or masks appears pruned, under its own
/// names. A source without such linears is returned as it is. Reads headers and config alone. Throws Error
/// where a linear cannot be quantized. Groups that are quantized as a whole share `threads`: as many at a
/// time as the limits have room for.
QuantizedSource open_quantized(Checkpoint source, const Recipe& recipe, const MakeRowQuantizer& make,
                               const MemoryLimits& limits = {}, int threads = 1);

}  // namespace twofour
