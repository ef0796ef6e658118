#include "lib/model_config.h"

#include <nlohmann/json.hpp>

namespace twofour {

Json model_setting(const Json& config, const char* key) {
  if (!config.is_object()) return {};
  if (config.contains(key)) return config[key];
  return config.contains("text_config") ? model_setting(config["text_config"], key) : Json();
}

std::vector<Json> model_configs(const Json& config) {
  std::vector<Json> all;
  if (!config.is_object()) return all;
  all.push_back(config);
  if (config.contains("text_config") && config["text_config"].is_object()) {
    all.push_back(config["text_config"]);
  }
  return all;
}

}  // namespace twofour
