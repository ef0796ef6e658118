#pragma once
#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace twofour {

/// A pool of objects, each used by one thread at a time. A thread makes a new object only if none is idle.
/// Safe from several threads.
template <class T>
class Idle {
 public:
  /// Takes the object that was given back last. Empty if none is idle. No other thread uses the object until
  /// the caller gives it back.
  std::optional<T> take() {
    const std::lock_guard lock(mutex_);
    return idle_.empty() ? std::nullopt : take_at(idle_.end() - 1);
  }
  /// Takes the first idle object for which `wanted` returns true. If there is none, takes the object that has
  /// been idle longest. Empty if none is idle.
  template <class Wanted>
  std::optional<T> take(const Wanted& wanted) {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::nullopt;
    const auto at = std::find_if(idle_.begin(), idle_.end(), wanted);
    return take_at(at == idle_.end() ? idle_.begin() : at);
  }
  void give_back(T one) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(one));
  }

 private:
  std::optional<T> take_at(typename std::vector<T>::iterator at) {
    std::optional<T> one(std::move(*at));
    idle_.erase(at);
    return one;
  }

  std::mutex mutex_;
  std::vector<T> idle_;
};

}  // namespace twofour
