#pragma once
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/linears.h"

namespace twofour {

/// Throws Error unless the donor's modules fit the base's config and tensors. Compares the hidden size, the
/// vocabulary, the layers, the experts, and the shapes of the modules that they replace. `goes` marks the
/// base's tensors that are removed, `comes` the donor's tensors that are added. Both are indexed by position
/// in the checkpoint's tensors.
void refuse_unlike_shapes(const Checkpoint& base, const std::vector<Linear>& of_base,
                          const std::vector<bool>& goes, const Checkpoint& donor,
                          const std::vector<Linear>& of_donor, const std::vector<bool>& comes);

}  // namespace twofour
