#pragma once
#include <string>
#include <vector>

#include "lib/encode/choose_solvings.h"
#include "lib/encode/quantized_group.h"
#include "lib/plan/method.h"

namespace twofour {

/// Plans what `encode` makes of the linears that `rule` takes: groups that share a scale, their tensors,
/// input scales and entries. Problems and findings go to the planner. Throws Error where there is nothing to
/// quantize.
void plan_quantized_groups(const EncodeRule& encode, const Rule& rule, Planner& planner);

/// Plans NVFP4 modules of the source that statistics or masks prune under their own names and scales, by the
/// words of `rule`; stacks are problems. `folds_pairs`: as EncodeRule has it.
void plan_pruned_groups(const Rule& rule, const std::vector<size_t>& modules, bool folds_pairs,
                        Planner& planner);

/// Linears as groups of matrices that share a scale, and what there is to report of them.
struct FormedGroups {
  QuantizedGroups groups;
  size_t matrices = 0;
  size_t without_kept = 0;         ///< matrices without a global scale among those that are to be kept
  std::string first_without_kept;  ///< the first of them
  size_t without_input_scale = 0;  ///< FP8 matrices whose source has none, though loaders want one
  size_t input_scales_dropped = 0;
  size_t rounded_twice = 0;  ///< linears that were quantized already
  bool has_experts = false;  ///< routed ones
};

/// Forms the groups of linears: their matrices, of stacks those of each expert, and the tensors of each under
/// the names of the rule's dialect, with the tensors of the source that go into them. `kept`: global scales
/// that are given, as Rule::kept. Scales of the source that are not sound are problems of the planner; throws
/// Error with all of them on stacks of unknown names.
FormedGroups form_groups(const EncodeRule& encode, const FixedGlobalScales& kept,
                         const std::vector<Linear>& linears, Planner& planner);

}  // namespace twofour
