#pragma once
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "formats/error.h"

namespace twofour {

/// An Error that tells of several things, a line each. Only its own line ends count for such when it is
/// shown: those of a line, which may hold names from files, are not obeyed.
struct ErrorLines : Error {
  explicit ErrorLines(std::vector<std::string> all)
      : Error(fmt::format("{}", fmt::join(all, "\n"))), lines(std::move(all)) {}
  std::vector<std::string> lines;
};

/// The lines of any Error: most have one.
inline std::vector<std::string> lines_of(const Error& e) {
  const auto* several = dynamic_cast<const ErrorLines*>(&e);
  return several != nullptr ? several->lines : std::vector<std::string>{e.what()};
}

}  // namespace twofour
