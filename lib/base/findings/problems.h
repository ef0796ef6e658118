#pragma once
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "formats/error.h"

namespace twofour {

/// An Error about several things, one line each. Only the line ends between them start a new line when the
/// message is shown: line ends within a line, which may hold names from files, do not.
struct ErrorLines : Error {
  explicit ErrorLines(std::vector<std::string> all)
      : Error(fmt::format("{}", fmt::join(all, "\n"))), lines(std::move(all)) {}
  std::vector<std::string> lines;
};

/// The lines of any Error: most errors have one.
inline std::vector<std::string> lines_of(const Error& e) {
  const auto* several = dynamic_cast<const ErrorLines*>(&e);
  return several != nullptr ? several->lines : std::vector<std::string>{e.what()};
}

/// Collects problems and refuses them all at once, so that one run shows the whole list.
class Problems {
 public:
  void add(std::string message) {
    if (++count_ <= kShown) shown_.push_back(std::move(message));
  }
  /// Adds a message that is yet to be formatted.
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    if (++count_ <= kShown) shown_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  bool empty() const { return count_ == 0; }
  /// The list, one line each.
  std::vector<std::string> lines() const {
    std::vector<std::string> lines = shown_;
    if (count_ > kShown) lines.push_back(fmt::format("... and {} more", count_ - kShown));
    return lines;
  }
  /// Throws an Error with the list if there is one.
  void refuse() const {
    if (count_ > 0) throw ErrorLines(lines());
  }

 private:
  static constexpr size_t kShown = 20;
  size_t count_ = 0;
  std::vector<std::string> shown_;
};

}  // namespace twofour
