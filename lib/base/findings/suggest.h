#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// Suggests the candidate that `typed` most likely meant, as the end of a message: "; did you mean lint?".
/// The candidate begins with `typed` or is within two edits of it, and a swap of neighbours counts as one
/// edit. Empty if there is no such candidate.
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& candidates);

}  // namespace twofour
