#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "formats/error.h"

namespace twofour {

/// Lets pieces of one tensor through in their order, whichever worker finished first, so that a tensor is
/// hashed from front to back. Never deadlocks as long as pieces are taken up in order.
class Turnstile {
 public:
  /// Waits until all pieces before `turn` went through, runs `f`, lets the next one in.
  template <class F>
  void pass(uint64_t turn, F&& f) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return next_ == turn || stopped_; });
    if (stopped_) throw Interrupted();
    lock.unlock();
    f();
    lock.lock();
    ++next_;
    changed_.notify_all();
  }
  /// Wakes everybody who waits; they throw Interrupted.
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;
  bool stopped_ = false;
};

}  // namespace twofour
