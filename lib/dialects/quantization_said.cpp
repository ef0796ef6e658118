#include "lib/dialects/quantization_said.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/module_names.h"
#include "lib/checkpoint/quantization_config.h"

namespace twofour {
namespace {

using lookups::member;
using lookups::strings_of;

QuantMethod method_of(std::string_view text) {
  if (text.starts_with("modelopt")) return QuantMethod::kModelOpt;
  if (text == "compressed-tensors") return QuantMethod::kGroups;
  if (text == "fp8") return QuantMethod::kFp8;
  if (text == "mxfp4") return QuantMethod::kMxfp4;
  if (text == "mxfp8") return QuantMethod::kMxfp8;
  if (text.starts_with("gptq")) return QuantMethod::kGptq;
  if (text.starts_with("awq")) return QuantMethod::kAwq;
  return text.empty() ? QuantMethod::kNone : QuantMethod::kOther;
}

const Json& words_of(const Json& config) {
  const Json& nested = member(config, "quantization");
  return nested.is_object() ? nested : config;
}

std::map<std::string, std::string> ignored_of(const Json& words, const std::string& place) {
  std::map<std::string, std::string> ignored;
  for (const char* key : {"ignore", "exclude_modules"}) {
    for (std::string& text : strings_of(words, key))
      ignored.try_emplace(std::move(text), fmt::format("{}{}", place, key));
  }
  return ignored;
}

std::string path_of_words(std::string place, bool is_nested) {
  if (is_nested) place += place.empty() ? "quantization" : ".quantization";
  return place.empty() ? place : place + '.';
}

}  // namespace

QuantizationSaid::QuantizationSaid(const Json& config, std::string at)
    : method_text(lookups::text_of(config, "quant_method")),
      words(&words_of(config)),
      place(path_of_words(std::move(at), words != &config)),
      is_nested(words != &config),
      algorithm(lookups::algorithm_of(*words)),
      ignored_(ignored_of(*words, place)),
      patterns_(ignored_),
      targets_(*words) {
  method = method_of(quantization_method(config));
  // Without a method in the inner form, what is wrong is the missing method alone.
  if (method == QuantMethod::kNone && (is_nested || !algorithm.empty())) method = QuantMethod::kModelOpt;
}

bool QuantizationSaid::targets_all_linears() const {
  return !groups().is_object() || std::all_of(groups().begin(), groups().end(), [](const Json& group) {
    return strings_of(group, "targets") == std::vector<std::string>{"Linear"};
  });
}

std::optional<std::pair<std::string_view, const Json*>> QuantizationSaid::find_layer(
    std::string_view module) const {
  std::optional<std::pair<std::string_view, const Json*>> found;
  if (!layers().is_object()) return found;
  any_above(module, [&](std::string_view name) {
    if (const auto at = layers().find(name); at != layers().end()) found.emplace(name, &*at);
    return found.has_value();
  });
  return found;
}

SaidOfModule QuantizationSaid::find(const std::string& module, const std::string& other) {
  if (method == QuantMethod::kGroups) {
    const Json* group = targets_.find(module);
    if (group == nullptr && !other.empty()) group = targets_.find(other);
    if (group == nullptr) return {};
    const auto at = std::find_if(groups().items().begin(), groups().items().end(),
                                 [&](const Json::Member& named) { return &named.second == group; });
    return {group, fmt::format("{}config_groups.{}", place, at->first)};
  }
  if (method != QuantMethod::kModelOpt) return {words, place};
  if (algorithm == "MIXED_PRECISION" || (algorithm.empty() && layers().is_object())) {
    const auto layer = find_layer(module);
    if (!layer) return {};
    const Json& entry = *layer->second;
    // DeepSeek-V4's have an older form, which names the algorithm alone.
    return {&entry, fmt::format("{}quantized_layers.{}", place, layer->first),
            entry.is_string() ? entry.get<std::string>() : lookups::algorithm_of(entry)};
  }
  if (algorithm.empty() || patterns_.matches(module)) return {};
  return {words, place + "quant_algo", algorithm};
}

Json QuantizationSaid::group_of(const std::string& module) const {
  const Json* group = targets_.find(module);
  if (group == nullptr) return nullptr;
  Json entry = *group;
  entry.erase("targets");
  if (!entry.contains("format")) entry["format"] = member(*words, "format");
  return entry;
}

}  // namespace twofour
