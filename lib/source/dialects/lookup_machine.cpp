#include "lib/source/dialects/lookup_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/error.h"
#include "formats/naming.h"

namespace twofour::lookups {
namespace {

using Kind = EngineLayer::Kind;

/// True if all parts of a fused layer pass, false if none passes. Throws Error if only some pass.
template <class F>
bool all_or_none(const EngineLayer& layer, const char* engine, F&& passes) {
  const auto count = std::count_if(layer.parts.begin(), layer.parts.end(), passes);
  if (count != 0 && count != std::ssize(layer.parts))
    throw Error(
        fmt::format("expected {} to find all of {} excluded or none, because it fuses them, found {} of {}",
                    engine, layer.name, count, layer.parts.size()));
  return count != 0;
}

/// Returns the prefixes under which an engine looks for a layer, beginning with `prefix` itself.
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

/// Returns the entry of a fused layer. It is the entry of those fused linears that are listed.
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

/// Returns the result for a layer with `scheme`, whose name in tables of loaders is `name`. It is the scheme;
/// if there is no loader for it, also a limit.
LookupResult load(const Loaders& loaders, const EngineLayer& layer, const Scheme& scheme,
                  std::string_view name) {
  if (!scheme.format->coded) return {};
  const bool experts = layer.kind == Kind::kExperts;
  const auto& have = experts ? loaders.experts : loaders.linears;
  if (std::find(have.begin(), have.end(), name) != have.end()) return {scheme};
  return {scheme, fmt::format("has no loader for {} in {}", name, experts ? "experts" : "linears"), true};
}

class Steps : public LoaderLookup {
 public:
  explicit Steps(std::vector<Step> steps) : steps_(std::move(steps)) {}
  LookupResult find(const EngineLayer& layer) const override {
    for (const Step& step : steps_) {
      if (auto result = step(layer)) return *result;
    }
    return {};
  }

 private:
  std::vector<Step> steps_;
};

/// Finds the group of a layer by an engine's rules.
class GroupFinder {
 public:
  GroupFinder(const GroupRules& rules, TargetGroups groups) : rules_(rules), groups_(std::move(groups)) {}

  std::optional<LookupResult> operator()(const EngineLayer& layer) const {
    const Json* group = layer.kind == Kind::kExperts ? find_experts(layer) : find_layer(layer);
    if (group == nullptr) return LookupResult{};
    const Scheme scheme = configured_scheme(*group);
    return load(rules_.loaders, layer, scheme, scheme_label(scheme, false));
  }

 private:
  bool is_ignored(const std::string& name) const {
    if (groups_.ignored.matches(name)) return true;
    for (size_t dot = name.find('.'); rules_.ignores_ends && dot != name.npos;
         dot = name.find('.', dot + 1)) {
      if (groups_.ignored.has_name(name.substr(dot + 1))) return true;
    }
    return false;
  }
  bool is_ignored(const EngineLayer& layer, const std::string& name) const {
    if (layer.kind != Kind::kFused) return is_ignored(name);
    if (rules_.ignores_ends ? groups_.ignored.has_name(name) : groups_.ignored.matches(name)) return true;
    return all_or_none(layer, rules_.engine, [&](const std::string& part) { return is_ignored(part); });
  }
  const Json* by_target(const std::string& name) const {
    const auto at = groups_.targets.find(name);
    return at ? groups_.groups[*at] : nullptr;
  }
  const Json* by_parts(const EngineLayer& layer) const {
    const bool all = layer.kind == Kind::kFused &&
                     std::all_of(layer.parts.begin(), layer.parts.end(),
                                 [&](const std::string& part) { return groups_.targets.matches(part); });
    return all ? by_target(layer.parts[0]) : nullptr;
  }
  const Json* find_layer(const EngineLayer& layer) const {
    const bool head = layer.kind == Kind::kHead;
    const std::string name = rules_.name_of(layer);
    if (is_ignored(layer, name)) return nullptr;
    if (const Json* group = by_target(name)) return group;
    if (head && rules_.head_class == nullptr) return nullptr;
    const Json* of_class = groups_.of_class(head ? rules_.head_class : "ColumnParallelLinear");
    const Json* of_parts = by_parts(layer);
    if (rules_.class_first) std::swap(of_class, of_parts);
    if (of_parts != nullptr) return of_parts;
    if (of_class == nullptr && rules_.needs_a_group)
      throw Error(fmt::format("expected a target or an entry of ignore, without which {} stops, found none",
                              rules_.engine));
    return of_class;
  }
  /// Finds the group of experts by the matrices of the first expert.
  const Json* find_experts(const EngineLayer& layer) const {
    static const std::vector<std::string> usual = {"gate_proj", "up_proj", "down_proj"};
    std::optional<const Json*> found;
    for (const std::string& part : rules_.files_names && !layer.parts.empty() ? layer.parts : usual) {
      const Json* one = find_expert(fmt::format("{}.0.{}", layer.name, part));
      if (found && !is_same(one, *found))
        throw Error(
            fmt::format("expected {} to find one format for gate, up and down of {}, found others for {}",
                        rules_.engine, layer.name, part));
      found = one;
    }
    return found.value_or(nullptr);
  }
  const Json* find_expert(const std::string& name) const {
    if (is_ignored(name)) return nullptr;
    if (const Json* group = by_target(name)) return group;
    // "Linear" also covers experts.
    for (const char* of : {"Linear", rules_.experts_class}) {
      if (const Json* group = groups_.of_class(of)) return group;
    }
    if (!rules_.needs_a_group) return nullptr;
    throw Error(
        fmt::format("expected a target or an entry of ignore for {}, without which {} stops, found none",
                    name, rules_.engine));
  }
  static bool is_same(const Json* a, const Json* b) {
    if (a == nullptr || b == nullptr) return a == b;
    return member(*a, "weights") == member(*b, "weights") &&
           member(*a, "input_activations") == member(*b, "input_activations");
  }

  const GroupRules& rules_;
  TargetGroups groups_;
};

}  // namespace

ModuleList::ModuleList(const ListRules& rules, std::vector<std::string> texts)
    : rules_(rules), texts_(std::move(texts)) {
  if (rules_.pattern == nullptr) return;
  for (const std::string& text : texts_) {
    patterns_.push_back(rules_.pattern(text));
    all_known_ = all_known_ && patterns_.back();
  }
}

bool ModuleList::has_name(const EngineLayer& layer) const {
  const auto has = [&](const std::string& name) {
    return std::any_of(texts_.begin(), texts_.end(),
                       [&](const std::string& text) { return rules_.takes(text, name); });
  };
  if (layer.kind == Kind::kFused) {
    if (rules_.takes_fused && has(layer.name)) return true;
    return all_or_none(layer, rules_.engine, has);
  }
  if (has(layer.name)) return true;
  if (!rules_.takes_experts || layer.name.find("experts") == layer.name.npos) return false;
  return std::any_of(texts_.begin(), texts_.end(), [&](const std::string& text) {
    return text.find("experts") != text.npos && text.find(layer.name) != text.npos;
  });
}

bool ModuleList::has(const EngineLayer& layer) const {
  const bool by_name =
      rules_.takes != nullptr && !(rules_.experts_by_pattern && layer.kind == Kind::kExperts);
  if (by_name && has_name(layer)) return true;
  if (rules_.names == nullptr) return false;
  const std::vector<std::string> names = rules_.names(layer);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::any_of(patterns_.begin(), patterns_.end(),
                       [&](const NameTest& matches) { return matches && matches(name); });
  });
}

const Json* find_mixed(const LayerMap& layers, const MixedRules& rules, const EngineLayer& layer) {
  const std::vector<std::string> names = candidates(layer.name, rules);
  for (const std::string& name : names) {
    if (const Json* entry = layers.find(name)) return entry;
  }
  if (layer.kind == Kind::kFused) {
    if (const Json* entry = find_shards(layers, rules, layer)) return entry;
  }
  for (const std::string& name : names) {
    if (const Json* entry = layers.first_below(name)) return entry;
  }
  if (!rules.asks_parent || !layer.name.ends_with(".experts")) return nullptr;
  return layers.first_below(std::string(parent_of(layer.name)));
}

std::unique_ptr<LoaderLookup> lookup_by(std::vector<Step> steps) {
  return std::make_unique<Steps>(std::move(steps));
}

Step leave(ModuleList list) {
  return [list = std::move(list)](const EngineLayer& layer) {
    return list.has(layer) ? std::optional(LookupResult{}) : std::nullopt;
  };
}

Step read_as(Scheme format) {
  return [format](const EngineLayer&) { return LookupResult{format}; };
}

Step read_algorithm(Loaders loaders, std::string algorithm, Scheme format) {
  return [loaders, algorithm = std::move(algorithm), format](const EngineLayer& layer) {
    return load(loaders, layer, format, algorithm);
  };
}

Step read_layers(Loaders loaders, std::function<const Json*(const EngineLayer&)> find,
                 std::optional<ModuleList> list) {
  return [loaders, find = std::move(find), list = std::move(list)](const EngineLayer& layer) {
    const Json* entry = find(layer);
    if (entry == nullptr || (list && list->has(layer))) return LookupResult{};
    return load(loaders, layer, configured_scheme(*entry), algorithm_of(*entry));
  };
}

Step read_groups(const GroupRules& rules, TargetGroups groups) {
  return GroupFinder(rules, std::move(groups));
}

Step limit_of(EngineLayer::Kind kind, std::string limit) {
  return [kind, limit = std::move(limit)](const EngineLayer& layer) {
    return layer.kind == kind ? std::optional(LookupResult{{}, limit}) : std::nullopt;
  };
}

Step stop(std::string why) {
  return [why = std::move(why)](const EngineLayer&) { return LookupResult{{}, why}; };
}

Scheme first_expert(const std::vector<LoadedModule>& modules) {
  for (const LoadedModule& m : modules) {
    const auto parsed = parse_module_name(m.name);
    if (parsed && parsed->kind == BlockKind::kRoutedExperts) return m.scheme;
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

std::vector<std::string> strings_of_all(const Json& config, std::initializer_list<const char*> keys) {
  std::vector<std::string> all;
  for (const char* key : keys) {
    for (std::string& text : strings_of(config, key)) all.push_back(std::move(text));
  }
  return all;
}

std::vector<std::string> strings_of_first(const Json& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (!member(config, key).is_null()) return strings_of(config, key);
  }
  return {};
}

ModelOptSettings::ModelOptSettings(const Json& config, std::initializer_list<const char*> ignore)
    : settings(member(config, "quantization").is_object() ? member(config, "quantization") : config),
      algorithm(algorithm_of(settings)),
      excluded(&settings != &config ? strings_of(settings, "exclude_modules")
                                    : strings_of_first(settings, ignore)) {}

}  // namespace twofour::lookups
