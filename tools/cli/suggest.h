#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// The candidate that `typed` most likely meant, as the end of a message: "; did you mean lint?". It begins
/// with `typed` or is within two edits (a swap counts as one); empty if no candidate does.
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& candidates);

}  // namespace twofour
