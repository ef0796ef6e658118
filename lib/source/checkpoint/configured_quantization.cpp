#include "lib/source/checkpoint/configured_quantization.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/module_names.h"
#include "lib/source/checkpoint/quantization_config.h"

namespace twofour {
QuantMethod method_of(std::string_view text) {
  if (text.starts_with("modelopt")) return QuantMethod::kModelOpt;
  if (text == "compressed-tensors") return QuantMethod::kGroups;
  if (text == "fp8") return QuantMethod::kFp8;
  if (text == "mxfp4") return QuantMethod::kMxfp4;
  if (text == "mxfp8") return QuantMethod::kMxfp8;
  if (text == "gptq") return QuantMethod::kGptq;
  if (text == "awq") return QuantMethod::kAwq;
  return text.empty() ? QuantMethod::kNone : QuantMethod::kOther;
}

namespace {

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

/// True if `text`, an entry of "dynamic" or "extra_config", is for a module. It may be the module's name, or
/// an expression that matches anywhere in the name.
bool is_for(const std::string& text, const std::string& module) {
  if (text == module) return true;
  const std::string expression = text.starts_with("+:") || text.starts_with("-:") ? text.substr(2) : text;
  const ConfigPattern pattern("re:.*" + expression);
  return pattern.known() && pattern.matches(module);
}

}  // namespace

ConfiguredQuantization::ConfiguredQuantization(const Json& config, std::string at)
    : method_text(text_of(config, "quant_method")),
      words(&words_of(config)),
      place(path_of_words(std::move(at), words != &config)),
      is_nested(words != &config),
      algorithm(lookups::algorithm_of(*words)),
      ignored_(ignored_of(*words, place)),
      targets_(*words) {
  method = method_of(quantization_method(config));
  // If the object below "quantization" has no method, this is the only fault. It is read as ModelOpt's.
  if (method == QuantMethod::kNone && (is_nested || !algorithm.empty())) method = QuantMethod::kModelOpt;
}

bool ConfiguredQuantization::targets_all_linears() const {
  return !groups().is_object() || std::all_of(groups().begin(), groups().end(), [](const Json& group) {
    return strings_of(group, "targets") == std::vector<std::string>{"Linear"};
  });
}

std::optional<std::pair<std::string_view, const Json*>> ConfiguredQuantization::find_layer(
    std::string_view module) const {
  std::optional<std::pair<std::string_view, const Json*>> found;
  if (!layers().is_object()) return found;
  any_above(module, [&](std::string_view name) {
    if (const auto at = layers().find(name); at != layers().end()) found.emplace(name, &*at);
    return found.has_value();
  });
  return found;
}

ConfiguredFormat ConfiguredQuantization::find(const std::string& module, const std::string& other) {
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
    // An entry may also be a string with the algorithm, which is an older form of DeepSeek-V4.
    return {&entry, fmt::format("{}quantized_layers.{}", place, layer->first),
            entry.is_string() ? entry.get<std::string>() : lookups::algorithm_of(entry)};
  }
  if (algorithm.empty()) return {};
  if (!patterns_) patterns_.emplace(ignored_);
  if (patterns_->matches(module)) return {};
  return {words, place + "quant_algo", algorithm};
}

Json ConfiguredQuantization::group_of(const std::string& module) const {
  const Json* group = targets_.find(module);
  if (group == nullptr) return nullptr;
  Json entry = *group;
  entry.erase("targets");
  if (!entry.contains("format")) entry["format"] = member(*words, "format");
  return entry;
}

const Json& ConfiguredQuantization::group_weights(const std::string& module) const {
  static const Json none;
  const Json* group = targets_.find(module);
  return group == nullptr ? none : member(*group, "weights");
}

std::string_view ConfiguredQuantization::symmetry_of(const std::string& module) const {
  if (groups().is_object()) {
    const Json* group = targets_.find(module);
    if (group == nullptr) group = targets_.of_class("Linear");
    const Json* weights = group == nullptr ? nullptr : &member(*group, "weights");
    if (weights == nullptr || !weights->is_object()) return {};
    // Source: compressed-tensors, quantization/quant_args.py.
    const auto symmetric = flag_of(*weights, "symmetric");
    if (!symmetric) return "default, symmetric: true,";
    return *symmetric ? "symmetric: true" : std::string_view();
  }
  if (quantization_method(*words) == "awq")
    return flag_of(*words, "zero_point") == false ? "zero_point: false" : std::string_view();
  const Json& own = exception_of(module, "sym");
  return (own.is_null() ? member(*words, "sym") : own) == true ? "sym: true" : std::string_view();
}

const Json& ConfiguredQuantization::exception_of(const std::string& module, std::string_view key) const {
  for (const char* exceptions : {"dynamic", "extra_config"}) {
    for (const auto& [text, entry] : members_of(*words, exceptions)) {
      const Json& own = member(entry, key);
      if (!own.is_null() && is_for(text, module)) return own;
    }
  }
  static const Json none;
  return none;
}

SourceGroups::SourceGroups(Json config)
    : config_(std::make_unique<const Json>(
          text_of(config, "quant_method") == "twofour" ? member(config, "base") : std::move(config))),
      configured_(*config_) {}

}  // namespace twofour
