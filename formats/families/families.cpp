#include "formats/families/family.h"

#include <algorithm>
#include <vector>

namespace twofour {

std::span<const FamilyShapes> family_shapes() {
  static const std::vector<FamilyShapes> all = [] {
    std::vector<FamilyShapes> rows;
    for (const auto some : {dense_families(), layer_norm_families(), sparse_families(), latent_families(),
                            hybrid_families(), mamba_families()})
      rows.insert(rows.end(), some.begin(), some.end());
    return rows;
  }();
  return all;
}

const FamilyShapes* find_family_shapes(std::string_view model_type) {
  for (const FamilyShapes& family : family_shapes()) {
    for (const char* type : family.model_types) {
      if (type != nullptr && model_type == type) return &family;
    }
  }
  return nullptr;
}

}  // namespace twofour
