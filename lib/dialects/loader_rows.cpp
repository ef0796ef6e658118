#include "lib/dialects/loader_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/error.h"
#include "formats/naming.h"

namespace twofour::lookups {
namespace {

/// Names under which an engine looks for a prefix.
std::vector<std::string> candidates(const std::string& prefix, const MixedRules& rules) {
  std::vector<std::string> names = {prefix};
  const auto try_under = [&](std::string_view from, const char* to) {
    if (prefix.starts_with(from)) names.push_back(to + prefix.substr(from.size()));
    return prefix.starts_with(from);
  };
  if (prefix.ends_with(".lm_head")) names.emplace_back("lm_head");
  if (try_under("language_model.model.", "model.language_model.")) return names;
  if (try_under("model.language_model.", "language_model.model.")) {
    if (rules.tries_model_prefix) try_under("model.language_model.", "model.");
  } else if (rules.tries_model_prefix) {
    try_under("model.", "model.language_model.");
  }
  return names;
}

/// The entry of linears that are fused, by those that are listed.
const Json* find_shards(const LayerMap& layers, const MixedRules& rules, const EngineLayer& layer) {
  const Json* found = nullptr;
  for (const std::string& part : layer.parts) {
    for (const std::string& base : candidates(std::string(parent_of(part)), rules)) {
      const Json* one = layers.find(fmt::format("{}.{}", base, leaf_of(part)));
      if (one == nullptr) continue;
      if (found != nullptr && algorithm_of(*found) != algorithm_of(*one))
        throw Error(
            fmt::format("expected {} to find one quant_algo within {}, which it fuses, found {} and {}",
                        rules.engine, layer.name, algorithm_of(*found), algorithm_of(*one)));
      found = one;
    }
  }
  return found;
}

}  // namespace

NamedFormat first_expert(const std::vector<LoadedModule>& modules) {
  for (const LoadedModule& m : modules) {
    const auto parsed = parse_module_name(m.name);
    if (parsed && parsed->kind == BlockKind::kRoutedExperts) return m.format;
  }
  return {};
}

bool is_modelopt(const Json& config) {
  return text_of(config, "quant_method").starts_with("modelopt") ||
         member(config, "quantization").is_object() ||
         text_of(member(config, "producer"), "name") == "modelopt";
}

const Json& inline_first(const LoadedConfig& config) {
  return config.quantization_config.is_object() ? config.quantization_config : config.hf_quant_config;
}

ModelOptWords::ModelOptWords(const Json& config, std::initializer_list<const char*> ignore)
    : words(member(config, "quantization").is_object() ? member(config, "quantization") : config),
      nested(&words != &config),
      algorithm(algorithm_of(words)) {
  if (nested) {
    excluded = strings_of(member(words, "exclude_modules"));
    return;
  }
  for (const char* key : ignore) {
    if (member(words, key).is_null()) continue;
    excluded = strings_of(member(words, key));
    return;
  }
}

const Json* find_mixed(const LayerMap& layers, const MixedRules& rules, const EngineLayer& layer) {
  const std::vector<std::string> names = candidates(layer.name, rules);
  for (const std::string& name : names) {
    if (const Json* entry = layers.find(name)) return entry;
  }
  if (layer.kind == EngineLayer::Kind::kFused) {
    if (const Json* entry = find_shards(layers, rules, layer)) return entry;
  }
  for (const std::string& name : names) {
    if (const Json* entry = layers.first_below(name)) return entry;
  }
  if (!rules.asks_parent || !layer.name.ends_with(".experts")) return nullptr;
  return layers.first_below(std::string(parent_of(layer.name)));
}

LookupResult load(const Loaders& loaders, const EngineLayer& layer, const NamedFormat& format,
                  std::string_view name) {
  if (format.kind == NamedFormat::Kind::kFloat) return {};
  const bool experts = layer.kind == EngineLayer::Kind::kExperts;
  const auto& have = experts ? loaders.experts : loaders.linears;
  if (std::find(have.begin(), have.end(), name) != have.end()) return {format};
  return {format, fmt::format("has no loader for {} in {}", name, experts ? "experts" : "linears"), true};
}

bool all_or_none(const std::vector<bool>& listed, const EngineLayer& layer, const char* engine) {
  const auto count = std::count(listed.begin(), listed.end(), true);
  if (count != 0 && static_cast<size_t>(count) != listed.size())
    throw Error(
        fmt::format("expected {} to find all of {} excluded or none, since it fuses them, found {} of {}",
                    engine, layer.name, count, listed.size()));
  return count != 0;
}

}  // namespace twofour::lookups
