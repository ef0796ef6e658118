#include "lib/model_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace twofour {

const Json& model_setting(const Json& config, const char* key) {
  static const Json nothing;
  for (const Json* at : model_configs(config)) {
    if (at->contains(key)) return (*at)[key];
  }
  return nothing;
}

std::vector<const Json*> model_configs(const Json& config) {
  std::vector<const Json*> all;
  if (!config.is_object()) return all;
  all.push_back(&config);
  if (config.contains("text_config") && config["text_config"].is_object()) {
    all.push_back(&config["text_config"]);
  }
  return all;
}

std::string quoted_setting(const Json& value) {
  return json_quote_short(value.is_string() ? value.get<std::string>() : json_line(value));
}

int64_t promised_experts(const Json& config) {
  int64_t most = 0;
  if (!config.is_object()) return most;
  for (const auto& [key, value] : config.items()) {
    const bool counts = key == "num_experts" || key == "num_local_experts" || key == "n_routed_experts" ||
                        key == "moe_num_experts";
    if (counts && value.is_number_integer()) most = std::max(most, value.get<int64_t>());
    if (value.is_object() && key != "quantization_config") most = std::max(most, promised_experts(value));
  }
  return most;
}

}  // namespace twofour
