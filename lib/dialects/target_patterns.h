#pragma once
#include <string>
#include <vector>

namespace twofour {

/// The targets of one group of a compressed-tensors config, of several that `members` name: regular
/// expressions without what precedes "layers" or "mtp", which loaders rename, and exact names where no
/// expression tells the group from the others. Experts are named w1, w2 and w3 and as loaders ask for them:
/// gate_proj, up_proj and down_proj.
std::vector<std::string> target_patterns(const std::vector<std::vector<std::string>>& members, size_t group);

}  // namespace twofour
