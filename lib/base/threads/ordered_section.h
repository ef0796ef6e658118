#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "formats/error.h"

namespace twofour {

/// Lets byte ranges of one sequence pass in their order, no matter which thread finishes first, so that a
/// tensor is hashed from front to back. It never deadlocks if threads begin the ranges in order.
class OrderedSection {
 public:
  /// Waits until all bytes before `begin` have passed, runs `f`, then lets the range pass that begins at
  /// `begin` + `bytes`. Does nothing after release(). Throws Interrupted after stop().
  template <class F>
  void pass(uint64_t begin, uint64_t bytes, F&& f) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return next_ == begin || stopped_ || released_; });
    if (stopped_) throw Interrupted();
    if (released_) return;
    lock.unlock();
    f();
    lock.lock();
    next_ += bytes;
    changed_.notify_all();
  }
  /// Wakes all threads that wait in pass(), which then throws Interrupted.
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  /// Gives up the order when it is no longer needed. All threads that wait in pass() return without calling
  /// `f`.
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;
  bool stopped_ = false, released_ = false;
};

}  // namespace twofour
