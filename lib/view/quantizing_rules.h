#pragma once
#include <string>
#include <vector>

#include "lib/artifact/recipe.h"
#include "lib/checkpoint/linears.h"
#include "lib/plan/method.h"
#include "lib/view/layout_choice.h"

namespace twofour {

/// The dialect of the checkpoint that layouts are made from.
std::string dialect_of(const Checkpoint& checkpoint, const Recipe& recipe, const std::vector<Linear>& linears,
                       const std::vector<ComputedLinears>& chosen);

/// The rules by which all linears are quantized; those of the same words are one.
std::vector<Rule> quantizing_rules(const Recipe& recipe, const std::string& dialect,
                                   const std::vector<Linear>& linears,
                                   const std::vector<ComputedLinears>& chosen);

/// Plans NVFP4 that statistics or masks prune under its own names. A gate and its up get the larger of their
/// global scales, which a layout stores.
void plan_pruned_in_place(const Recipe& recipe, const std::vector<Linear>& linears,
                          const std::vector<ComputedLinears>& chosen, Planner& planner);

}  // namespace twofour
