#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// The candidate that `typed` most likely meant, as the end of a message: "; did you mean lint?". One that
/// begins with it, or within two edits (swaps count as one); empty where nothing comes close.
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& candidates);

}  // namespace twofour
