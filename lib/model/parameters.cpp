#include "lib/model/parameters.h"

namespace twofour {
namespace {

/// Calls `f` for each parameter of the row that the layer has.
template <class F>
void for_each_parameter(const FamilySizes& sizes, int64_t layer, F&& f) {
  for (const auto some : sizes.family().parameters) {
    for (const FamilyParameter& p : some) {
      if (sizes.holds(p.when, layer)) f(p);
    }
  }
}

}  // namespace

std::optional<Parameter> find_parameter(const FamilySizes& sizes, std::string_view name, int64_t layer) {
  std::optional<Parameter> found;
  for_each_parameter(sizes, layer, [&](const FamilyParameter& p) {
    if (found || name != p.name) return;
    const auto n = sizes.size(p.n, layer), k = *p.k == '\0' ? 1 : sizes.size(p.k, layer);
    if (n && k) found = Parameter{*n, *k, p.bias != nullptr && sizes.holds(p.bias, layer)};
  });
  return found;
}

std::vector<std::string> router_names(const FamilySizes& sizes, int64_t layer) {
  std::vector<std::string> names;
  for_each_parameter(sizes, layer, [&](const FamilyParameter& p) {
    if (p.kind == ParameterKind::kRouter && std::string_view(p.n) != "1") names.emplace_back(p.name);
  });
  return names;
}

}  // namespace twofour
