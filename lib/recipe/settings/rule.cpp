#include "lib/recipe/settings/rule.h"

#include <algorithm>

namespace twofour {

void FixedGlobalScales::sort() {
  std::sort(scales.begin(), scales.end(), [](const Scale& a, const Scale& b) { return a.name < b.name; });
}

const FixedGlobalScales::Scale* FixedGlobalScales::find(std::string_view name) const {
  const auto at = std::lower_bound(scales.begin(), scales.end(), name,
                                   [](const Scale& s, std::string_view n) { return s.name < n; });
  return at != scales.end() && at->name == name ? &*at : nullptr;
}

}  // namespace twofour
