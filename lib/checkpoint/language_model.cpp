#include "lib/checkpoint/language_model.h"

#include <vector>

#include "lib/checkpoint/model_config.h"

namespace twofour {

std::optional<LanguageModel> find_language_model(const Json& config) {
  const std::vector<const Json*> all = model_configs(config);
  for (auto at = all.rbegin(); at != all.rend(); ++at) {
    const auto type = (*at)->find("model_type");
    if (type == (*at)->end() || !type->is_string()) continue;
    const std::string& name = type->get_ref<const std::string&>();
    if (const FamilyShapes* family = find_family_shapes(name)) {
      // Sizes that are nested without a model_type are of the model that they are nested in.
      const bool says_sizes = (*at)->contains("hidden_size") || all.back()->contains("model_type");
      const Json* own = says_sizes ? *at : all.back();
      return LanguageModel{own, family, name, own != all.front()};
    }
  }
  return std::nullopt;
}

}  // namespace twofour
