#include <fmt/format.h>

#include <algorithm>

#include "formats/json/access.h"
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

std::string shown(const Json& value) { return value.is_null() ? "absent" : json_line(value); }

std::string first_difference(const Json& expected, const Json& found) {
  if (!expected.is_object() || !found.is_object()) return "expected the source's text, found another";
  for (const auto& [key, value] : expected.items()) {
    if (member(found, key) != value)
      return fmt::format("{}: expected {}, found {}", key, shown(value), shown(member(found, key)));
  }
  for (const auto& [key, value] : found.items()) {
    if (!expected.contains(key)) return fmt::format("{}: expected none, found {}", key, shown(value));
  }
  return "expected the source's quantization, found another";
}

bool takes_from_donor(const RepairNote& note) { return !note.donor.empty(); }

std::set<std::string> files_of_donor(const RepairNote& note) {
  const auto at = std::find_if(note.mends.begin(), note.mends.end(),
                               [](const MendNote& m) { return m.mend == "donor-tensors"; });
  return at == note.mends.end() || note.donor.empty() ? std::set<std::string>() : at->files;
}

}  // namespace twofour
