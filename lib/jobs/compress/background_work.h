#pragma once
#include <chrono>
#include <exception>
#include <functional>
#include <thread>

namespace twofour {

/// One piece of work at a time on a thread of its own.
class BackgroundWork {
 public:
  /// Starts `work` after the work before it. Throws like wait(), and Error if there is no thread.
  void start(std::function<void()> work);
  /// Waits for the work. Throws what it threw. Returns the time that this took.
  std::chrono::steady_clock::duration wait();
  /// Waits for the work, whose exception is lost.
  void abandon();

 private:
  std::exception_ptr error_;
  std::jthread thread_;
};

}  // namespace twofour
