#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include "lib/error_lines.h"

namespace twofour {

/// Collects what is wrong before refusing it all at once, so that one run shows the whole list.
class Problems {
 public:
  void add(std::string message) {
    if (++count_ <= kShown) shown_.push_back(std::move(message));
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
