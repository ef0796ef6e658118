#pragma once
#include "lib/encode/quantized_group.h"
#include "lib/plan/method.h"

namespace twofour {

/// Plans what `encode` makes of the linears that `rule` takes: groups that share a scale, their tensors,
/// input scales and entries. Problems and findings go to the planner. Throws Error where there is nothing to
/// quantize.
void plan_quantized_groups(const EncodeRule& encode, const Rule& rule, Planner& planner);

}  // namespace twofour
