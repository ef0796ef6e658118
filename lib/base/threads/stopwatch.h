#pragma once
#include <chrono>
#include <utility>

namespace twofour {

/// A clock that counts seconds and never goes back.
class Stopwatch {
 public:
  /// Seconds since construction or since the last lap.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  /// Returns seconds() and starts the next lap.
  double lap() {
    const auto now = Clock::now();
    return std::chrono::duration<double>(now - std::exchange(start_, now)).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace twofour
