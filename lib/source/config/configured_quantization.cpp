#include "lib/source/config/configured_quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <utility>

#include "formats/module_kinds.h"
#include "formats/module_names.h"
#include "lib/base/names/quantization_methods.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"

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

const Json& settings_of(const Json& config) {
  const Json& nested = member(config, "quantization");
  return nested.is_object() ? nested : config;
}

std::map<std::string, std::string> ignored_of(const Json& settings, const std::string& place) {
  std::map<std::string, std::string> ignored;
  for (const char* key : {"ignore", "exclude_modules"}) {
    for (std::string& text : strings_of(settings, key))
      ignored.try_emplace(std::move(text), fmt::format("{}{}", place, key));
  }
  return ignored;
}

std::string path_of_settings(std::string place, bool is_nested) {
  if (is_nested) place += place.empty() ? "quantization" : ".quantization";
  return place.empty() ? place : place + '.';
}

}  // namespace

bool is_exception_for(const std::string& text, const std::string& module) {
  if (text == module) return true;
  const std::string expression = text.starts_with("+:") || text.starts_with("-:") ? text.substr(2) : text;
  const ConfigPattern pattern("re:.*" + expression);
  return pattern.known() && pattern.matches(module);
}

std::optional<WeightFormat> format_of_algorithm(std::string_view algorithm) {
  constexpr std::string_view kNvfp4[] = {"NVFP4",          "W4A16_NVFP4", "NVFP4_AWQ",     "NVFP4_SVD",
                                         "NVFP4_SVDQUANT", "NVFP4_ARC",   "W4A8_NVFP4_FP8"};
  constexpr std::string_view kMxfp4[] = {"W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8", "W4A16_MXFP4", "MXFP4"};
  constexpr std::string_view kFp8[] = {"FP8",    "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "FP8_PB_REAL",
                                       "FP8_PB", "FP8_BLOCK_SCALES"};
  const auto is_in = [&](std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), algorithm) != names.end();
  };
  if (algorithm.empty() || algorithm == "MIXED_PRECISION" || algorithm == "NO_QUANT") return std::nullopt;
  if (is_in(kNvfp4)) return WeightFormat::kNvfp4;
  if (is_in(kMxfp4)) return WeightFormat::kMxfp4;
  if (algorithm == "MXFP8") return WeightFormat::kMxfp8;
  return is_in(kFp8) ? WeightFormat::kFp8 : WeightFormat::kOther;
}

ConfiguredQuantization::ConfiguredQuantization(const Json& config, std::string at)
    : method_text(text_of(config, "quant_method")),
      settings(&settings_of(config)),
      place(path_of_settings(std::move(at), settings != &config)),
      is_nested(settings != &config),
      algorithm(lookups::algorithm_of(*settings)),
      ignored_(ignored_of(*settings, place)),
      targets_(*settings) {
  method = method_of(quantization_method(config));
  // An object below "quantization" without a method is read as ModelOpt's.
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

ConfiguredFormat ConfiguredQuantization::find_group(const std::string& module) const {
  const Json* group = targets_.find(module);
  if (group == nullptr) return {};
  const auto at = std::find_if(groups().items().begin(), groups().items().end(),
                               [&](const Json::Member& named) { return &named.second == group; });
  return {group, "config_groups." + std::string(at->first)};
}

ConfiguredFormat ConfiguredQuantization::find_quark(const std::string& module) {
  ConfiguredFormat found{&member(*settings, "global_quant_config"), "global_quant_config"};
  for (const auto& [text, layer] : members_of(*settings, "layer_quant_config")) {
    const ConfigPattern& pattern = quark_patterns_.try_emplace(text, text).first->second;
    if (text != module && !(pattern.known() && pattern.matches(module))) continue;
    found = {&layer, "layer_quant_config." + text};
  }
  return found;
}

ConfiguredFormat ConfiguredQuantization::find(const std::string& module, const std::string& other) {
  if (method == QuantMethod::kGroups) {
    ConfiguredFormat found = find_group(module);
    if (found.entry == nullptr && !other.empty()) found = find_group(other);
    if (found.entry != nullptr) found.place = place + found.place;
    return found;
  }
  if (method != QuantMethod::kModelOpt) return {settings, place};
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
  return {settings, place + "quant_algo", algorithm};
}

Json ConfiguredQuantization::group_of(const std::string& module) const {
  const Json* group = targets_.find(module);
  if (group == nullptr) return nullptr;
  Json entry = *group;
  entry.erase("targets");
  if (!entry.contains("format")) entry["format"] = member(*settings, "format");
  return entry;
}

const Json& ConfiguredQuantization::group_weights(const std::string& module) const {
  static const Json none;
  const Json* group = targets_.find(module);
  return group == nullptr ? none : member(*group, "weights");
}

std::optional<int64_t> ConfiguredQuantization::group_size_of(const std::string& module) {
  const ConfiguredFormat configured = find(module);
  if (configured.entry == nullptr) return std::nullopt;
  for (const Json* at : {configured.entry, &member(*configured.entry, "weights")}) {
    if (const auto size = integer_of(*at, "group_size"); size && *size > 0) return size;
  }
  // ModelOpt's config.json has the size in a group beside quant_algo.
  if (const auto size = integer_of(group_weights(module), "group_size"); size && *size > 0) return size;
  for (const auto& [name, group] : members_of(*configured.entry, "config_groups")) {
    const Json& weights = member(group, "weights");
    const auto size = integer_of(weights, "group_size");
    if (size && *size > 0 && member(weights, "num_bits") == 4) return size;
  }
  if (configured.algorithm == "W4A8_NVFP4_FP8") return 32;
  return configured.algorithm.find("NVFP4") != std::string::npos ? std::optional<int64_t>(16) : std::nullopt;
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
  if (quantization_method(*settings) == "awq")
    return flag_of(*settings, "zero_point") == false ? "zero_point: false" : std::string_view();
  const Json& own = exception_of(module, "sym");
  return (own.is_null() ? member(*settings, "sym") : own) == true ? "sym: true" : std::string_view();
}

const Json& ConfiguredQuantization::exception_of(const std::string& module, std::string_view key) const {
  for (const char* exceptions : {"dynamic", "extra_config"}) {
    for (const auto& [text, entry] : members_of(*settings, exceptions)) {
      const Json& own = member(entry, key);
      if (!own.is_null() && is_exception_for(text, module)) return own;
    }
  }
  static const Json none;
  return none;
}

std::optional<std::pair<int64_t, int64_t>> ConfiguredQuantization::block_of(const std::string& module) {
  if (const auto sizes = pair_of(member(group_weights(module), "block_structure"));
      sizes && is_stated_size(sizes->first) && is_stated_size(sizes->second))
    return sizes;
  if (method != QuantMethod::kModelOpt) return std::nullopt;
  const ConfiguredFormat configured = find(module);
  if (configured.algorithm.find("FP8_") == std::string::npos) return std::nullopt;
  int64_t size = integer_of(*configured.entry, "block").value_or(0);
  const bool has_blocks = configured.algorithm.find("PB") != std::string::npos ||
                          configured.algorithm.find("BLOCK") != std::string::npos;
  if (size <= 0 && has_blocks) size = integer_of(*configured.entry, "group_size").value_or(0);
  return is_stated_size(size) ? std::optional(std::pair(size, size)) : std::nullopt;
}

bool ConfiguredQuantization::allows_order(const std::string& module) const {
  if (groups().is_object()) {
    const Json& weights = group_weights(module);
    const Json& order = member(weights, "actorder");
    return !weights.is_object() || order == "group" || order == "dynamic" || order == true;
  }
  const Json& own = exception_of(module, "desc_act");
  return (own.is_null() ? member(*settings, "desc_act") : own) != false;
}

SourceGroups::SourceGroups(Json config)
    : config_(std::make_unique<const Json>(
          text_of(config, "quant_method") == "twofour" ? member(config, "base") : std::move(config))),
      configured_(*config_) {}

}  // namespace twofour
