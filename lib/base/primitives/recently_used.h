#pragma once
#include <algorithm>
#include <list>
#include <utility>

namespace twofour {

/// Values by key, the most recently used first. The caller decides when the least recently used one is
/// evicted. Not safe from several threads.
template <class Key, class Value>
class RecentlyUsed {
 public:
  /// Returns the value of a key and makes it the most recently used one. Null if the key is absent.
  Value* find(const Key& key) {
    const auto at = std::find_if(held_.begin(), held_.end(), [&](auto& held) { return held.first == key; });
    if (at == held_.end()) return nullptr;
    held_.splice(held_.begin(), held_, at);
    return &held_.front().second;
  }
  /// Adds a value under a key that is not present. The address of the value stays valid until the value is
  /// taken out.
  Value& add(Key key, Value value) { return held_.emplace_front(std::move(key), std::move(value)).second; }
  /// Takes out the value that was used least recently. There must be a value.
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
