#pragma once
#include <map>
#include <memory>
#include <typeindex>
#include <utility>
#include <vector>

#include "lib/plan/transformation.h"

namespace twofour {

/// What becomes of the modules of a checkpoint, in the order in which they were planned. It knows each by the
/// type under which it was added.
class Transformations {
 public:
  template <class T>
  void add(std::unique_ptr<T> one) {
    by_type_[typeid(T)].push_back(one.get());
    all_.push_back(std::move(one));
  }
  /// Those that were added as a T, in order.
  template <class T>
  std::vector<const T*> of() const {
    std::vector<const T*> found;
    const auto at = by_type_.find(typeid(T));
    if (at == by_type_.end()) return found;
    for (const Transformation* one : at->second) found.push_back(static_cast<const T*>(one));
    return found;
  }

  size_t size() const { return all_.size(); }
  const std::unique_ptr<Transformation>& operator[](size_t i) const { return all_[i]; }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<std::unique_ptr<Transformation>> all_;
  std::map<std::type_index, std::vector<const Transformation*>> by_type_;
};

}  // namespace twofour
