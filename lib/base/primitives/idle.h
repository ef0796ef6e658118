#pragma once
#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace twofour {

/// Objects that threads use one at a time. A thread makes one only if none is idle. Safe from several
/// threads.
template <class T>
class Idle {
 public:
  /// The object that was given back last, if one is idle. The caller has it alone.
  std::optional<T> take() {
    const std::lock_guard lock(mutex_);
    return idle_.empty() ? std::nullopt : take_at(idle_.end() - 1);
  }
  /// The first idle object that satisfies `wanted`, or the one that has been idle longest.
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
