#include "lib/prove/origins/configured_formats.h"

#include <algorithm>

#include "lib/source/config/quantization_config.h"

namespace twofour {

ConfiguredFormats::ConfiguredFormats(const Checkpoint& c) : c_(c) {
  if (const auto entry = quantization_entry(c.config())) take(entry->value);
  if (!c.hf_quant_config().is_object()) return;
  const auto nested = c.hf_quant_config().find("quantization");
  take(nested == c.hf_quant_config().end() ? c.hf_quant_config() : *nested);
}

std::vector<bool> ConfiguredFormats::listed(const std::string& module) {
  std::vector<bool> all;
  for (Lists& lists : lists_) {
    bool hit = false;
    for (std::string name = module; !hit; name = name.substr(0, name.rfind('.'))) {
      hit = lists.patterns.matches(name);
      if (name.find('.') == name.npos) break;
    }
    for (const std::string& part : lists.parts)
      hit = hit || ("." + module + ".").find("." + part + ".") != std::string::npos;
    all.push_back(hit);
  }
  return all;
}

bool ConfiguredFormats::is_target(const std::string& module) {
  if (!targets_) return !method_.empty();
  return is_any_linear_ || targets_->matches(module);
}

std::vector<Json> ConfiguredFormats::entries(const std::string& module) const {
  std::vector<Json> all;
  for (const auto& map : entries_) {
    Json found;
    for (std::string name = module; found.is_null(); name = name.substr(0, name.rfind('.'))) {
      if (const auto at = map.find(name); at != map.end()) found = at->second;
      if (name.find('.') == name.npos) break;
    }
    all.push_back(found);
  }
  return all;
}

void ConfiguredFormats::take(const Json& holder) {
  const Json method = holder.value("quant_method", Json("modelopt"));
  if (method_.empty() && method.is_string()) method_ = method.get<std::string>();
  std::map<std::string, std::string> texts;
  bool any = false;
  for (const char* key : {"ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"}) {
    const auto at = holder.find(key);
    if (at == holder.end() || !at->is_array()) continue;
    any = true;
    for (const Json& text : *at) {
      if (text.is_string()) texts[text.get<std::string>()] = key;
    }
  }
  if (any) {
    std::vector<std::string> parts;
    for (const auto& [text, key] : texts) {
      if (!is_wild(text) && !is_known(text)) parts.push_back(text);
    }
    lists_.push_back({PatternList(texts), std::move(parts)});
  }
  if (method == "compressed-tensors") take_targets(holder);
  const auto layers = holder.find("quantized_layers");
  if (layers == holder.end() || !layers->is_object()) return;
  auto& map = entries_.emplace_back();
  for (const auto& [name, entry] : layers->items()) map[name] = entry;
}

void ConfiguredFormats::take_targets(const Json& holder) {
  std::map<std::string, std::string> texts;
  for (const Json& group : holder.value("config_groups", Json::object())) {
    for (const Json& target : group.value("targets", Json::array())) {
      is_any_linear_ = is_any_linear_ || target == "Linear";
      if (target.is_string()) texts[target.get<std::string>()] = "targets";
    }
  }
  targets_.emplace(texts);
}

bool ConfiguredFormats::is_known(const std::string& name) const {
  const auto tensors = c_.tensors();
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), name,
                                   [](const TensorInfo& t, const std::string& n) { return t.name < n; });
  const auto below = std::lower_bound(at, tensors.end(), name + ".",
                                      [](const TensorInfo& t, const std::string& n) { return t.name < n; });
  return (at != tensors.end() && at->name == name) ||
         (below != tensors.end() && below->name.starts_with(name + "."));
}

}  // namespace twofour
