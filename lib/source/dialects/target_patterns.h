#pragma once
#include <string>
#include <vector>

namespace twofour {

/// The targets of one group of a compressed-tensors config. `members`: the modules of each group. Targets are
/// regular expressions without the part before "layers" or "mtp", which loaders rename, and exact names if no
/// expression distinguishes the group from the others. Experts have targets for w1, w2 and w3 and for the
/// names that loaders use: gate_proj, up_proj and down_proj.
std::vector<std::string> target_patterns(const std::vector<std::vector<std::string>>& members, size_t group);

}  // namespace twofour
