#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// The candidate that `typed` most likely meant: a prefix of one only, or within two edits (swaps count as
/// one).
std::optional<std::string> suggest(std::string_view typed, const std::vector<std::string>& candidates);

}  // namespace twofour
