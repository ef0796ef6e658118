#include "formats/families/family.h"

#include <algorithm>
#include <vector>

namespace twofour {

std::span<const FamilyShapes> family_shapes() {
  static const std::vector<FamilyShapes> all = [] {
    std::vector<FamilyShapes> rows;
    for (const auto some : {dense_families(), sparse_families(), latent_families(), hybrid_families(),
                            delta_families(), windowed_families(), stacked_families()})
      rows.insert(rows.end(), some.begin(), some.end());
    return rows;
  }();
  return all;
}

namespace {

/// The row that has this text as a model_type or as its outer_type.
const FamilyShapes* find_row(std::string_view model_type) {
  for (const FamilyShapes& family : family_shapes()) {
    if (family.outer_type != nullptr && model_type == family.outer_type) return &family;
    for (const char* type : family.model_types) {
      if (type != nullptr && model_type == type) return &family;
    }
  }
  return nullptr;
}

}  // namespace

const FamilyShapes* find_family_shapes(std::string_view model_type) {
  const FamilyShapes* family = find_row(model_type);
  if (family == nullptr || family->parameters[0].empty()) return nullptr;
  const bool is_outer = family->outer_type != nullptr && model_type == family->outer_type;
  return is_outer ? nullptr : family;
}

const ExpertStacks* find_expert_stacks(std::string_view model_type) {
  const FamilyShapes* family = find_row(model_type);
  return family != nullptr && family->experts.stacks ? &*family->experts.stacks : nullptr;
}

const FamilyRouter* find_family_router(std::string_view model_type) {
  const FamilyShapes* family = find_row(model_type);
  return family != nullptr && family->router ? &*family->router : nullptr;
}

bool clamps_gates(std::string_view model_type) {
  const FamilyShapes* family = find_row(model_type);
  return family != nullptr && family->clamps_gates;
}

namespace {

/// Calls `f` for every model_type that the decoder runs.
template <class F>
void for_each_run(F&& f) {
  for (const FamilyShapes& family : family_shapes()) {
    if (!family.traits) continue;
    for (size_t i = 0; i < static_cast<size_t>(family.traits->types); ++i)
      f(std::string_view(family.model_types[i]), *family.traits);
  }
}

}  // namespace

const FamilyTraits* find_family_traits(std::string_view model_type) {
  const FamilyTraits* found = nullptr;
  for_each_run([&](std::string_view type, const FamilyTraits& traits) {
    if (type == model_type) found = &traits;
  });
  return found;
}

std::string decoder_families() {
  std::string names;
  for_each_run([&](std::string_view type, const FamilyTraits&) {
    if (!names.empty()) names += ", ";
    names += type;
  });
  return names;
}

}  // namespace twofour
