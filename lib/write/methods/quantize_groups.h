#pragma once
#include <string>
#include <vector>

#include "lib/write/encode/choose_solvings.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/plan/method.h"

namespace twofour {

/// Plans the quantization of the linears that `rule` takes, by the settings of `encode`. This includes the
/// groups that share a scale, their tensors, input scales and entries. Problems and findings go to the
/// planner. Throws Error if there is nothing to quantize.
void plan_quantized_groups(const EncodeRule& encode, const Rule& rule, Planner& planner);

/// Plans NVFP4 modules of the source that statistics or masks prune by the settings of `rule`. They keep
/// their names and scales. Stacks are problems. `folds_pairs` is as in EncodeRule.
void plan_pruned_groups(const Rule& rule, const std::vector<size_t>& modules, bool folds_pairs,
                        Planner& planner);

/// Linears as groups of matrices that share a scale, with figures for reports.
struct FormedGroups {
  QuantizedGroups groups;
  size_t matrices = 0;
  size_t without_kept = 0;         ///< number of matrices that have no global scale in `kept`
  std::string first_without_kept;  ///< name of the first such matrix
  size_t without_input_scale = 0;  ///< FP8 matrices whose source has no input scale, although loaders need
                                   ///< one
  size_t input_scales_dropped = 0;
  size_t rounded_twice = 0;  ///< number of linears that were quantized before
  bool has_experts = false;  ///< some linears are routed experts
};

/// Forms the groups of linears. Each expert of a stack has its own matrices. Each matrix has its tensors,
/// under the names of the rule's dialect, and each group the tensors of the source from which it is made.
/// `kept` has global scales that are given, as in Rule::kept. Invalid scales of the source become problems of
/// the planner. Throws Error with all problems if stacks have unknown names.
FormedGroups form_groups(const EncodeRule& encode, const FixedGlobalScales& kept,
                         const std::vector<Linear>& linears, Planner& planner);

}  // namespace twofour
