#include "lib/recipe/selection/chooser.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"

namespace twofour {

Chooser::Chooser(const Selection& selection, int64_t layers)
    : selection_(selection),
      layers_(layers),
      include_(selection.include),
      exclude_(selection.exclude),
      also_(selection.also),
      used_roles_(selection.roles.size()) {}

bool Chooser::casts_draft(std::string_view module) const {
  return selection_.draft_experts == DraftExperts::kCast && is_draft_expert(module, layers_);
}

bool Chooser::keeps_draft(std::string_view module) const {
  return selection_.draft_experts == DraftExperts::kKeep && is_draft_expert(module, layers_);
}

bool Chooser::has_role(std::string_view module) {
  if (selection_.roles.empty()) return false;
  const auto role = casts_draft(module) ? ModuleRole::kRoutedExperts : module_role(module, layers_);
  const auto at = std::find(selection_.roles.begin(), selection_.roles.end(), role);
  if (at == selection_.roles.end()) return false;
  used_roles_[static_cast<size_t>(at - selection_.roles.begin())] = true;
  reason_ = role_name(*role).data();
  return true;
}

bool Chooser::adds(std::string_view module) {
  reason_ = options::kAlso.text();
  const bool named = also_.matches(module), role = has_role(module);
  by_role_ = role && !named;
  return (role || named) && !exclude_.matches(module) && !keeps_draft(module);
}

bool Chooser::chooses(std::string_view module, bool is_default) {
  // All patterns are evaluated, so that each records whether it ever matched.
  const bool included = include_.matches(module), added = also_.matches(module);
  const bool usual = selection_.from_default && is_default && (selection_.include.empty() || included);
  reason_ = !usual                       ? options::kAlso.text()
            : selection_.include.empty() ? "default set"
                                         : options::kInclude.text();
  const bool role = has_role(module);
  by_role_ = role && !usual && !added;
  return (usual || added || role) && !exclude_.matches(module) && !keeps_draft(module);
}

void Chooser::refuse_unused(const char* expected) const {
  include_.refuse_unused(selection_.is_match ? "match" : options::kInclude.text(), expected);
  exclude_.refuse_unused(options::kExclude.text(), expected);
  also_.refuse_unused(selection_.is_match ? "match" : options::kAlso.text(), expected);
  // Recipes for many families name roles that some of them lack.
  const bool any = std::find(used_roles_.begin(), used_roles_.end(), true) != used_roles_.end();
  if (any || used_roles_.empty() || !selection_.include.empty() || !selection_.also.empty()) return;
  throw Error(
      fmt::format("match '{}': expected modules of that role, found none", role_name(selection_.roles[0])));
}

}  // namespace twofour
