#pragma once
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/linears.h"

namespace twofour {

/// Throws Error unless the donor's modules fit the base's config and tensors: hidden size, vocabulary,
/// layers, experts, and shapes of the modules that they replace. `comes` and `goes` are by position in the
/// donor's and base's tensors.
void refuse_unlike_shapes(const Checkpoint& base, const std::vector<Linear>& of_base,
                          const std::vector<bool>& goes, const Checkpoint& donor,
                          const std::vector<Linear>& of_donor, const std::vector<bool>& comes);

}  // namespace twofour
