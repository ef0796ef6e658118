#pragma once
#include <cstddef>
#include <vector>

#include "lib/artifact/recipe.h"
#include "lib/checkpoint/linears.h"

namespace twofour {

/// The linears that the rules for layouts take and that are not NVFP4, so that they are quantized first: of
/// each rule of the recipe, those that no rule before it takes. Those of the default set are among them where
/// the set has no NVFP4 at all, floats that producers leave alone apart; those that a rule names always.
std::vector<std::vector<size_t>> choose_to_quantize(const Checkpoint& source,
                                                    const std::vector<Linear>& linears, const Recipe& recipe);

/// Whether a rule's `to` is a layout.
bool makes_layout(const Rule& rule);

}  // namespace twofour
