#pragma once
#include <string>
#include <vector>

namespace twofour {

/// Returns the targets of one group of a compressed-tensors config. `members` has the modules of each group.
/// A target is a regular expression that leaves out the part of the name before "layers" or "mtp", since
/// loaders rename that part. If no expression tells the group from the others, targets are exact names.
/// Experts get targets for w1, w2 and w3, and for the names that loaders use: gate_proj, up_proj and
/// down_proj.
std::vector<std::string> target_patterns(const std::vector<std::vector<std::string>>& members, size_t group);

}  // namespace twofour
