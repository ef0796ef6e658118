#pragma once
#include <fmt/format.h>

#include <string>

namespace twofour {

/// The part of a message that counts the items of `all` that it does not show. and_more(3, " and {} more") is
/// " and 2 more". Empty if all are shown.
inline std::string and_more(size_t all, fmt::format_string<size_t> text, size_t shown = 1) {
  return all > shown ? fmt::format(text, all - shown) : "";
}

}  // namespace twofour
