#include "lib/graft/unquantized_lists.h"

#include <algorithm>

#include "lib/base/names/config_pattern.h"
#include "lib/graft/module_patterns.h"

namespace twofour {

bool is_list(const Json& holder, const char* key) {
  const auto at = holder.find(key);
  return at != holder.end() && at->is_array();
}

std::vector<std::string> with_ancestors(const std::string& module) {
  std::vector<std::string> names;
  for (std::string_view name = module; !name.empty(); name = parent_of(name)) names.emplace_back(name);
  return names;
}

bool names_module(const std::string& entry, const std::string& module) {
  return module == entry || module.starts_with(entry + ".") || module.ends_with("." + entry) ||
         module.find("." + entry + ".") != module.npos;
}

TensorNames::TensorNames(const std::vector<std::string>& sorted) : names_(sorted) {
  for (const std::string& name : sorted) tops_.insert(name.substr(0, name.find('.')));
}

bool TensorNames::has(const std::string& name) const {
  const auto at = std::lower_bound(names_.begin(), names_.end(), name);
  if (at != names_.end() && *at == name) return true;
  const auto below = std::lower_bound(names_.begin(), names_.end(), name + ".");
  return below != names_.end() && below->starts_with(name + ".");
}

template <class F>
bool TensorNames::any(F&& f) const {
  std::string last;
  return std::any_of(names_.begin(), names_.end(), [&](const std::string& tensor) {
    const std::string module(module_of(tensor));
    if (f(tensor)) return true;
    if (module == last) return false;
    last = module;
    return f(module);
  });
}

bool TensorNames::matched_by(const std::string& entry) const {
  if (!is_wild(entry)) {
    if (has(entry)) return true;
    // The entry is a whole name, from the top.
    if (tops_.contains(entry.substr(0, entry.find('.')))) return false;
    return any([&](const std::string& module) { return names_module(entry, module); });
  }
  const ConfigPattern pattern(entry);
  if (!pattern.known()) return true;
  return any([&](const std::string& module) { return pattern.matches(module); });
}

}  // namespace twofour
