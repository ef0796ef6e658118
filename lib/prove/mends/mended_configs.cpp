#include "lib/prove/mends/prove_repair.h"
#include "lib/source/config/model_config.h"

namespace twofour {

Json* setting_at(Json& config, const std::string& key) {
  if (!config.is_object()) return nullptr;
  if (const auto at = config.find(key); at != config.end()) return &*at;
  const size_t dot = key.find('.');
  if (dot != key.npos) {
    const auto at = config.find(key.substr(0, dot));
    return at == config.end() ? nullptr : setting_at(*at, key.substr(dot + 1));
  }
  for (const char* nested : kLanguageConfigs) {
    const auto at = config.find(nested);
    if (at == config.end()) continue;
    if (Json* const found = setting_at(*at, key)) return found;
  }
  return nullptr;
}

Json without_quantization(Json config) {
  if (!config.is_object()) return config;
  config.erase("quantization_config");
  config.erase("compression_config");
  for (const char* nested : kLanguageConfigs) {
    if (const auto at = config.find(nested); at != config.end()) *at = without_quantization(*at);
  }
  return config;
}

}  // namespace twofour
