#pragma once
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "formats/error.h"

namespace twofour {

/// An Error about several problems, with one line for each. When the message is shown, only the line ends
/// between problems start a new line. Line ends within a problem do not, since it may hold names from files.
struct ErrorLines : Error {
  explicit ErrorLines(std::vector<std::string> all)
      : Error(fmt::format("{}", fmt::join(all, "\n"))), lines(std::move(all)) {}
  std::vector<std::string> lines;
};

/// The lines of any Error. Most errors have one.
inline std::vector<std::string> lines_of(const Error& e) {
  const auto* several = dynamic_cast<const ErrorLines*>(&e);
  return several != nullptr ? several->lines : std::vector<std::string>{e.what()};
}

/// Collects problems and throws them all at once, so that one run shows the whole list.
class Problems {
 public:
  void add(std::string message) {
    if (++count_ <= kShown) shown_.push_back(std::move(message));
  }
  /// Formats a message and adds it.
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    if (++count_ <= kShown) shown_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  bool empty() const { return count_ == 0; }
  /// The problems. The first 20 have one line each, and one more line counts the rest.
  std::vector<std::string> lines() const {
    std::vector<std::string> lines = shown_;
    if (count_ > kShown) lines.push_back(fmt::format("... and {} more", count_ - kShown));
    return lines;
  }
  /// Throws an Error with lines() if there are problems.
  void refuse() const {
    if (count_ > 0) throw ErrorLines(lines());
  }

 private:
  static constexpr size_t kShown = 20;
  size_t count_ = 0;
  std::vector<std::string> shown_;
};

}  // namespace twofour
