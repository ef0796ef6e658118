#pragma once
#include <stdexcept>
#include <string>

namespace twofour {

/// An error in the input. The message reads "where: what, expected, found" and is shown to the user
/// unchanged. The program ends with exit code 2.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The user pressed Ctrl-C. The program tidies up and ends with exit code 130.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
  /// `what` tells the user the state after the interruption.
  explicit Interrupted(const std::string& what) : std::runtime_error(what) {}
};

}  // namespace twofour
