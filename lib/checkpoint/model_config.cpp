#include "lib/checkpoint/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/error.h"

namespace twofour {
namespace {

void collect(const Json& config, std::vector<const Json*>& all) {
  if (!config.is_object()) return;
  all.push_back(&config);
  for (const char* key : kLanguageConfigs) {
    if (const auto at = config.find(key); at != config.end()) collect(*at, all);
  }
}

}  // namespace

std::vector<const Json*> model_configs(const Json& config) {
  std::vector<const Json*> all;
  collect(config, all);
  return all;
}

std::vector<const Json*> model_settings(const std::vector<const Json*>& configs, std::string_view key) {
  std::vector<const Json*> said;
  for (const Json* of : configs) {
    if (const auto at = of->find(key); at != of->end() && !at->is_null()) said.push_back(&*at);
  }
  return said;
}

std::vector<const Json*> model_settings(const Json& config, std::string_view key) {
  return model_settings(model_configs(config), key);
}

const Json& model_setting(const Json& config, std::string_view key, const std::string& where) {
  static const Json nothing;
  const auto said = model_settings(config, key);
  for (const Json* other : said) {
    if (*other == *said[0]) continue;
    throw Error(fmt::format("{}: {}: expected one value, found {} and, nested, {}", where, key,
                            quoted_setting(*said[0]), quoted_setting(*other)));
  }
  return said.empty() ? nothing : *said[0];
}

std::string quoted_setting(const Json& value) {
  constexpr size_t kShown = 256;
  // A string may stand for a number, NaN for one, which format_json() tells.
  std::string text = value.is_string() ? format_json(value) : json_line(value);
  if (text.starts_with('"')) return json_quote_short(value.get_ref<const std::string&>());
  if (text.ends_with('\n')) text.pop_back();
  return text.size() <= kShown ? text : json_quote_short(text);
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
