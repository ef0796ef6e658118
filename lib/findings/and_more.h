#pragma once
#include <fmt/format.h>

#include <string>

namespace twofour {

/// What a message that shows some of `all` says of the others: and_more(3, " and {} more") is " and 2 more".
/// Empty where all are shown.
inline std::string and_more(size_t all, fmt::format_string<size_t> text, size_t shown = 1) {
  return all > shown ? fmt::format(text, all - shown) : "";
}

}  // namespace twofour
