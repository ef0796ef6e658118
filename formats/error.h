#pragma once
#include <stdexcept>
#include <string>

namespace twofour {

/// Wrong input. The message reads "where: what, expected, found", is shown to the user unchanged, and the
/// program ends with exit code 2.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The user pressed Ctrl-C; the program tidies up and ends with exit code 130.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
  /// `what`: what the user should know about it.
  explicit Interrupted(const std::string& what) : std::runtime_error(what) {}
};

}  // namespace twofour
