#include "lib/source/model/parameters.h"

namespace twofour {

std::optional<Parameter> find_parameter(const FamilySizes& sizes, std::string_view name, int64_t layer) {
  const std::string weight = std::string(name) + ".weight", bias = std::string(name) + ".bias";
  std::optional<Parameter> found;
  for (const FamilyRow& row : sizes.rows()) {
    if (found ? !row.is_bias || row.name != bias : row.name != weight && row.name != name) continue;
    if (!sizes.holds(row.when, layer)) continue;
    const auto n = sizes.size(row.n, layer), k = row.k.empty() ? 1 : sizes.size(row.k, layer);
    if (found) {
      found->has_bias = true;
    } else if (n && k) {
      found = Parameter{*n, *k, false};
    }
  }
  return found;
}

std::vector<std::string> router_names(const FamilySizes& sizes, int64_t layer) {
  std::vector<std::string> names;
  for (const FamilyRow& row : sizes.rows()) {
    if (row.kind == ParameterKind::kRouter && row.n != "1" && sizes.holds(row.when, layer))
      names.emplace_back(row.module());
  }
  return names;
}

}  // namespace twofour
