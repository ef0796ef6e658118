#pragma once
#include <string>
#include <vector>

#include "lib/write/encode/choose_solvings.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/plan/method.h"

namespace twofour {

/// Plans the quantization by `encode` of the linears that `rule` takes: groups that share a scale, their
/// tensors, input scales and entries. Problems and findings go to the planner. Throws Error if there is
/// nothing to quantize.
void plan_quantized_groups(const EncodeRule& encode, const Rule& rule, Planner& planner);

/// Plans NVFP4 modules of the source that statistics or masks prune under their own names and scales, by the
/// settings of `rule`; stacks are problems. `folds_pairs`: as in EncodeRule.
void plan_pruned_groups(const Rule& rule, const std::vector<size_t>& modules, bool folds_pairs,
                        Planner& planner);

/// Linears as groups of matrices that share a scale, with figures to report.
struct FormedGroups {
  QuantizedGroups groups;
  size_t matrices = 0;
  size_t without_kept = 0;         ///< matrices without a global scale among the given ones
  std::string first_without_kept;  ///< the first of them
  size_t without_input_scale = 0;  ///< FP8 matrices whose source has none, though loaders need one
  size_t input_scales_dropped = 0;
  size_t rounded_twice = 0;  ///< linears that were quantized already
  bool has_experts = false;  ///< routed ones
};

/// Forms the groups of linears: their matrices (each expert of a stack has its own), the tensors of each
/// under the names of the rule's dialect, and the tensors of the source that go into them. `kept`: global
/// scales that are given, as Rule::kept. Invalid scales of the source are problems of the planner; throws
/// Error with all problems on stacks of unknown names.
FormedGroups form_groups(const EncodeRule& encode, const FixedGlobalScales& kept,
                         const std::vector<Linear>& linears, Planner& planner);

}  // namespace twofour
