#pragma once
#include <optional>
#include <string>

#include "formats/families/family.h"
#include "formats/json.h"

namespace twofour {

/// The language model of a config.json.
struct LanguageModel {
  const Json* config = nullptr;  ///< its own, which may be nested
  const FamilyShapes* family = nullptr;
  std::string model_type;
  bool is_nested = false;
};
/// Empty where no row of the families has its model_type.
std::optional<LanguageModel> find_language_model(const Json& config);

}  // namespace twofour
