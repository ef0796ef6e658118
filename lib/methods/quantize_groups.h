#pragma once
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

}  // namespace twofour
