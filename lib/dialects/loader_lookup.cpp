#include "lib/dialects/loader_lookup.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/names/pattern.h"

namespace twofour {
namespace {

std::vector<std::string> strings_of(const Json& list) {
  std::vector<std::string> all;
  if (!list.is_array()) return all;
  for (const Json& item : list) {
    if (item.is_string()) all.push_back(item.get<std::string>());
  }
  return all;
}

/// ModelOpt's map of modules: exact names; what it does not name is not quantized.
class ModelOptLookup : public LoaderLookup {
 public:
  ModelOptLookup(const Json& layers, const Json& excluded) : excluded_(strings_of(excluded)) {
    for (const auto& [name, entry] : layers.items()) layers_.emplace(name, entry);
    for (const std::string& text : excluded_) globs_.emplace_back(text);
  }

  Json find(const std::string& module) const override {
    if (is_excluded(module)) return nullptr;
    if (const auto at = layers_.find(module); at != layers_.end()) return at->second;
    for (const auto& [from, to] : {std::pair{"language_model.model.", "model.language_model."},
                                   {"model.language_model.", "language_model.model."}}) {
      if (!module.starts_with(from)) continue;
      const auto at = layers_.find(to + module.substr(std::string_view(from).size()));
      if (at != layers_.end()) return at->second;
    }
    if (const auto at = layers_.find("lm_head"); module.ends_with(".lm_head") && at != layers_.end())
      return at->second;
    return first_below(module);
  }

  Json find_fused(const std::vector<std::string>& shards) const override {
    Json found = nullptr;
    for (const std::string& shard : shards) {
      const Json one = find(shard);
      if (one.is_null()) continue;  // the others speak for it
      if (!found.is_null() && found.at("quant_algo") != one.at("quant_algo"))
        throw Error(fmt::format("{}: expected one quant_algo within a fused layer, found {} and {}", shard,
                                found.at("quant_algo").dump(), one.at("quant_algo").dump()));
      found = one;
    }
    return found;
  }

  Json find_experts(const std::string& block) const override { return find(block); }

 private:
  bool is_excluded(const std::string& module) const {
    return any_matches(globs_, module) || std::any_of(excluded_.begin(), excluded_.end(), [&](auto& text) {
             return module.find(text) != std::string::npos;
           });
  }
  Json first_below(const std::string& module) const {
    const auto at = layers_.lower_bound(module + ".");
    return at != layers_.end() && at->first.starts_with(module + ".") ? at->second : Json(nullptr);
  }

  std::map<std::string, Json> layers_;
  std::vector<std::string> excluded_;
  std::vector<NamePattern> globs_;
};

/// compressed-tensors' groups: the first target that matches wins, so their order is their meaning.
class GroupLookup : public LoaderLookup {
 public:
  explicit GroupLookup(const Json& config) {
    for (const std::string& text : strings_of(config.value("ignore", Json()))) ignored_.push_back(text);
    const Json groups = config.value("config_groups", Json::object());
    for (const auto& [name, group] : groups.items()) {
      Json entry = group;
      entry.erase("targets");
      for (const std::string& text : strings_of(group.value("targets", Json())))
        targets_.push_back({text, matcher(text), entries_.size()});
      entries_.push_back(std::move(entry));
    }
  }

  Json find(const std::string& module) const override {
    if (is_ignored(module)) return nullptr;
    for (const Target& target : targets_) {
      if (target.matches(module)) return entries_[target.entry];
    }
    // The class of a module comes after all names. That of a head is another, unless a name finds it.
    if (module_role(module, INT64_MAX) == ModuleRole::kHead) return nullptr;
    for (const Target& target : targets_) {
      if (target.text == "Linear") return entries_[target.entry];
    }
    return nullptr;
  }

  Json find_fused(const std::vector<std::string>& shards) const override {
    const bool ignored = is_ignored(shards[0]);
    for (const std::string& shard : shards) {
      if (is_ignored(shard) != ignored)
        throw Error(
            fmt::format("{}: expected all of a fused layer to be ignored or none, found some", shard));
    }
    return find(shards[0]);
  }

  /// Loaders ask for the first expert's matrices by these names, whatever the files call them.
  Json find_experts(const std::string& block) const override {
    Json found = nullptr;
    bool first = true;
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) {
      const std::string name = fmt::format("{}.0.{}", block, leaf);
      Json one = find(name);
      if (!first && one != found)
        throw Error(
            fmt::format("{}: expected the format of gate_proj, as all projections of experts need "
                        "the same, found another",
                        name));
      found = std::move(one);
      first = false;
    }
    return found;
  }

 private:
  struct Target {
    std::string text;
    std::shared_ptr<const NamePattern> pattern;  ///< nullptr: an exact name
    size_t entry;
    bool matches(const std::string& module) const {
      return pattern ? pattern->matches(module) : text == module;
    }
  };
  static std::shared_ptr<const NamePattern> matcher(const std::string& text) {
    return text.starts_with("re:") ? std::make_shared<const NamePattern>(text) : nullptr;
  }
  bool is_ignored(const std::string& module) const {
    return std::any_of(ignored_.begin(), ignored_.end(), [&](const Ignored& i) {
      return i.pattern ? i.pattern->matches(module) : i.text == module;
    });
  }
  struct Ignored {
    Ignored(const std::string& from) : text(from), pattern(matcher(from)) {}
    std::string text;
    std::shared_ptr<const NamePattern> pattern;
  };

  std::vector<Ignored> ignored_;
  std::vector<Target> targets_;
  std::vector<Json> entries_;
};

/// What the loader treats as one: linears that it fuses, and blocks of routed experts; others alone.
struct LoadedLayer {
  bool experts = false;
  std::vector<const WrittenModule*> modules;
};

std::map<std::string, LoadedLayer> loaded_layers(const WrittenModel& model) {
  std::map<std::string, LoadedLayer> layers;
  for (const WrittenModule& m : model.modules) {
    const auto parsed = parse_module_name(m.name);
    if (parsed && parsed->kind == BlockKind::kRoutedExperts) {
      LoadedLayer& layer = layers[std::string(parsed->block)];
      layer.experts = true;
      layer.modules.push_back(&m);
      continue;
    }
    const auto fused = fused_group(m.name);
    layers[fused ? fmt::format("{}.#{}", fused->first, fused->second) : m.name].modules.push_back(&m);
  }
  return layers;
}

std::string entry_text(const WrittenModel& model, const std::optional<size_t>& entry) {
  if (!entry) return "none";
  const Json& json = model.entries[*entry];
  if (json.contains("quant_algo")) return json["quant_algo"].get<std::string>();
  return json.value("format", json.dump());
}

}  // namespace

std::unique_ptr<LoaderLookup> make_lookup(const ConfigEntries& config) {
  const Json& entry = config.quantization_config;
  if (!entry.is_object()) return nullptr;
  const std::string method = entry.value("quant_method", "");
  if (method == "modelopt" && entry.value("quant_algo", "") == "MIXED_PRECISION") {
    return std::make_unique<ModelOptLookup>(entry.value("quantized_layers", Json::object()),
                                            entry.value("ignore", Json::array()));
  }
  if (method == "compressed-tensors") return std::make_unique<GroupLookup>(entry);
  return nullptr;
}

std::vector<std::string> find_split_layers(const WrittenModel& model) {
  std::vector<std::string> problems;
  for (const auto& [name, layer] : loaded_layers(model)) {
    const auto& first = *layer.modules[0];
    const auto other = std::find_if(layer.modules.begin(), layer.modules.end(),
                                    [&](const WrittenModule* m) { return m->entry != first.entry; });
    if (other == layer.modules.end()) continue;
    problems.push_back(fmt::format("{}: expected {} like {}, since loaders give {} one format, found {}",
                                   (*other)->name, entry_text(model, first.entry), first.name,
                                   layer.experts ? "the experts of a layer" : "linears that they fuse",
                                   entry_text(model, (*other)->entry)));
  }
  return problems;
}

std::vector<std::string> find_lookup_conflicts(const WrittenModel& model, const ConfigEntries& config) {
  std::vector<std::string> problems;
  const auto lookup = make_lookup(config);
  if (!lookup) return problems;
  for (const auto& [name, layer] : loaded_layers(model)) {
    const WrittenModule& first = *layer.modules[0];
    const Json expected = first.entry ? model.entries[*first.entry] : Json(nullptr);
    try {
      std::vector<std::string> shards;
      for (const WrittenModule* m : layer.modules) shards.push_back(m->name);
      const Json found = layer.experts        ? lookup->find_experts(name)
                         : shards.size() == 1 ? lookup->find(first.name)
                                              : lookup->find_fused(shards);
      if (found == expected) continue;
      problems.push_back(fmt::format("{}: expected its loader to find {}, found {}", first.name,
                                     expected.is_null() ? "nothing" : expected.dump(),
                                     found.is_null() ? "nothing" : found.dump()));
    } catch (const Error& e) {
      problems.emplace_back(e.what());
    }
  }
  return problems;
}

}  // namespace twofour
