#pragma once
#include <algorithm>
#include <list>
#include <utility>

namespace twofour {

/// Values by keys, the one used last first. The caller says when the one used longest ago goes. Not safe from
/// several threads.
template <class Key, class Value>
class RecentlyUsed {
 public:
  /// The value of a key, which is the one used last now, or nullptr.
  Value* find(const Key& key) {
    const auto at = std::find_if(held_.begin(), held_.end(), [&](auto& held) { return held.first == key; });
    if (at == held_.end()) return nullptr;
    held_.splice(held_.begin(), held_, at);
    return &held_.front().second;
  }
  /// Adds a value under a key that is not held. It stays where it is until it is taken out.
  Value& add(Key key, Value value) { return held_.emplace_front(std::move(key), std::move(value)).second; }
  /// Takes the value out that was used longest ago; there is one.
  Value take_oldest() {
    Value value = std::move(held_.back().second);
    held_.pop_back();
    return value;
  }
  size_t size() const { return held_.size(); }

 private:
  std::list<std::pair<Key, Value>> held_;
};

}  // namespace twofour
