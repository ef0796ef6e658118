#include "lib/source/dialects/loader_lookup.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "formats/error.h"
#include "formats/families/family.h"
#include "formats/json/access.h"
#include "formats/naming.h"
#include "lib/base/findings/problems.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/lookup_machine.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace loader_lookup {
namespace {

using Kind = EngineLayer::Kind;

/// The engines' names of fused linears, in the order of the groups of fused_group().
constexpr const char* kFusedNames[] = {"gate_up_proj", "gate_up_proj", "qkv_proj", "fused_qkv_a_proj"};

/// True for an embedding. The classes of models handle embeddings themselves.
bool is_table(std::string_view module) { return module.find("embed") != module.npos; }

/// True for a linear that the classes of models always build as floats, whatever the configuration states.
bool is_built_as_float(const LoadedModule& m) {
  if (m.scheme.format->coded) return false;
  constexpr int64_t kAnyLayers = std::numeric_limits<int64_t>::max();
  return module_role(m.name, kAnyLayers) == ModuleRole::kRouter || leaf_of(m.name) == "eh_proj";
}

/// The layers by their names, in the order of their first modules.
class Layers {
 public:
  void add(const LoadedModule& m) {
    if (is_table(m.name) || is_built_as_float(m)) return;
    const auto parsed = parse_module_name(m.name);
    if (parsed && parsed->kind == BlockKind::kRoutedExperts) {
      EngineLayer& layer = at(parsed->block, Kind::kExperts, parsed->block);
      const std::string leaf(leaf_of(m.name));
      const bool known = std::find(layer.parts.begin(), layer.parts.end(), leaf) != layer.parts.end();
      if (parsed->expert >= 0 && !known) layer.parts.push_back(leaf);
      layer.modules.push_back(&m);
    } else if (const auto fused = fused_group(m.name)) {
      const std::string name = fmt::format("{}.{}", fused->first, kFusedNames[fused->second]);
      EngineLayer& layer = at(name, Kind::kFused, name);
      layer.parts.push_back(m.name);
      layer.modules.push_back(&m);
    } else {
      at(m.name, is_head(m.name) ? Kind::kHead : Kind::kLinear, m.name).modules.push_back(&m);
    }
  }

  std::vector<EngineLayer> take() {
    for (EngineLayer& layer : layers_) {
      if (layer.kind == Kind::kFused) sort_parts(layer);
      if (layer.kind != Kind::kFused || layer.parts.size() > 1) continue;
      layer.kind = Kind::kLinear;  // an up_proj without a gate is a linear of its own
      layer.name = layer.parts[0];
      layer.parts.clear();
    }
    return std::move(layers_);
  }

 private:
  EngineLayer& at(const std::string& key, Kind kind, const std::string& name) {
    const auto [found, fresh] = places_.emplace(key, layers_.size());
    if (fresh) layers_.push_back({kind, name});
    return layers_[found->second];
  }
  /// Sorts the parts of a fused layer in the engines' order of rows: q, k, v.
  static void sort_parts(EngineLayer& layer) {
    const auto rank = [](const std::string& part) {
      constexpr std::string_view kOrder[] = {"q_proj", "k_proj", "v_proj"};
      const auto at = std::find(std::begin(kOrder), std::end(kOrder), leaf_of(part));
      return at - std::begin(kOrder);
    };
    std::stable_sort(layer.parts.begin(), layer.parts.end(),
                     [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
  }

  std::vector<EngineLayer> layers_;
  std::map<std::string, size_t> places_;
};

bool is_split(const EngineLayer& layer) {
  return std::any_of(layer.modules.begin(), layer.modules.end(), [&](const LoadedModule* m) {
    return !(m->scheme == layer.modules[0]->scheme) || m->one_block != layer.modules[0]->one_block;
  });
}

/// True if a loader that expects the scheme `promised` can read the stored scheme.
bool is_read_as(const LoadedModule& stored, const Scheme& promised) {
  const Scheme& scheme = stored.scheme;
  if (!scheme.format->is_known() || !promised.format->is_known())
    return scheme.format->coded && promised.format->coded;
  // Loaders ignore scales that they do not use.
  if (scheme.format->global_scale && promised == schemes::kNvfp4WeightOnly) return true;
  if (stored.one_block && is_fp8_blocks(promised))
    return scheme.granularity == Granularity::kTensor || promised.rows <= 1;
  const bool any_blocks = is_fp8_blocks(scheme) && (scheme.rows == 0 || promised.rows == 0);
  return any_blocks ? is_fp8_blocks(promised) : scheme == promised;
}

/// Compares the format that an engine finds for a layer with the stored one.
void check_layer(const Engine& engine, const LoaderLookup& lookup, const EngineLayer& layer,
                 std::vector<LookupFinding>& findings) {
  LookupResult result;
  try {
    result = lookup.find(layer);
  } catch (const Error& e) {
    findings.push_back({false, is_split(layer), engine.name, layer.modules[0]->name, e.what()});
    return;
  }
  for (const LoadedModule* m : layer.modules) {
    const bool same = is_read_as(*m, result.scheme);
    // An engine without a loader treats a layer as floats.
    const bool is_fine = result.lacks_loader ? !m->scheme.format->coded : same;
    if (is_fine) continue;
    if (result.takes_any) continue;
    const bool is_limit = !result.limit.empty() && (same || !result.lacks_loader);
    std::string message = is_limit ? fmt::format("{} {}", engine.name, result.limit)
                                   : fmt::format("expected {} to read {}, found {}", engine.name,
                                                 scheme_label(m->scheme), scheme_label(result.scheme));
    findings.push_back({is_limit, is_split(layer), engine.name, m->name, std::move(message)});
    return;
  }
}

std::string entry_text(const WrittenModel& model, const std::optional<size_t>& entry) {
  if (!entry) return "floats";
  const Json& json = model.entries[*entry];
  if (json.contains("quant_algo")) return json["quant_algo"].get<std::string>();
  const std::string strategy = json.value("weights", Json::object()).value("strategy", "");
  const bool has_inputs = json.contains("input_activations") && json["input_activations"].is_object();
  return fmt::format("{} ({}, {})", json.value("format", json.dump()), strategy,
                     has_inputs ? "with activations" : "only weights");
}

std::vector<LoadedModule> stored_modules(const WrittenModel& model) {
  std::vector<LoadedModule> modules;
  for (const WrittenModule& m : model.modules)
    modules.push_back({m.name, m.entry ? configured_scheme(model.entries[*m.entry]) : Scheme()});
  return modules;
}

}  // namespace
}  // namespace loader_lookup

std::span<const Engine> engines() {
  static constexpr Engine all[] = {{"vLLM", lookups::read_vllm},
                                   {"SGLang", lookups::read_sglang},
                                   {"TensorRT-LLM", lookups::read_tensorrt_llm}};
  return all;
}

LoadedModule loaded_module(std::string name, const Scheme& stored, int64_t n, int64_t k) {
  LoadedModule module{std::move(name), as_configured(stored)};
  const Scheme& configured = module.scheme;
  const bool is_tensor = configured == schemes::kFp8Tensor && n <= kFp8Block;
  module.one_block = k <= kFp8Block && (is_tensor || configured == schemes::kFp8Row);
  return module;
}

LoadedModule loaded_module(const Checkpoint& c, const Linear& m) {
  return loaded_module(m.name, scheme_of(c, m), m.n, m.k);
}

LoadedConfig loaded_config(const Json& config, ConfigEntries entries) {
  LoadedConfig loaded{std::move(entries.quantization_config), std::move(entries.hf_quant_config)};
  for (const Json* type : model_settings(config, "model_type")) {
    const std::string name = text_of(*type);
    const FamilyShapes* family = find_family_shapes(name);
    loaded.deepseek_v4 = loaded.deepseek_v4 || name.starts_with("deepseek_v4");
    loaded.lists_ends = loaded.lists_ends || (family != nullptr && family->lists_ends);
  }
  std::vector<const Json*> dtypes = model_settings(config, "expert_dtype");
  if (const auto set = entries.settings.find("expert_dtype"); set != entries.settings.end()) dtypes = {&*set};
  loaded.expert_dtype = dtypes.empty()           ? text_of(loaded.quantization_config, "expert_dtype")
                        : dtypes[0]->is_string() ? dtypes[0]->get<std::string>()
                                                 : "";
  return loaded;
}

std::vector<EngineLayer> engine_layers(const std::vector<LoadedModule>& modules) {
  loader_lookup::Layers layers;
  for (const LoadedModule& m : modules) layers.add(m);
  return layers.take();
}

std::vector<LookupFinding> check_lookups(const LoadedConfig& config, const std::vector<LoadedModule>& modules,
                                         std::span<const Engine> asked) {
  std::vector<LookupFinding> findings;
  const std::vector<EngineLayer> layers = engine_layers(modules);
  for (const Engine& engine : asked) {
    std::unique_ptr<LoaderLookup> lookup;
    try {
      lookup = engine.read(config, modules);
    } catch (const Error& e) {
      findings.push_back({false, false, engine.name, "", e.what()});
    }
    if (!lookup) continue;
    for (const EngineLayer& layer : layers) {
      // The class of DeepSeek-V4 itself knows which linears are not quantized, and no configuration states
      // it.
      const bool is_known = config.deepseek_v4 && layer.kind != EngineLayer::Kind::kExperts &&
                            !layer.modules[0]->scheme.format->coded;
      if (!is_known) loader_lookup::check_layer(engine, *lookup, layer, findings);
    }
  }
  return findings;
}

namespace loader_lookup {
namespace {

/// Returns the faults of a configuration at layers that are not split.
std::vector<std::string> conflicts_of(const LoadedConfig& config, const std::vector<LoadedModule>& modules) {
  std::vector<std::string> conflicts;
  for (const LookupFinding& f : check_lookups(config, modules)) {
    if (f.is_limit || f.is_split) continue;
    conflicts.push_back(f.module.empty() ? f.message : fmt::format("{}: {}", f.module, f.message));
  }
  return conflicts;
}

}  // namespace
}  // namespace loader_lookup

std::vector<std::string> find_lookup_conflicts(const WrittenModel& model, const ConfigEntries& config) {
  return loader_lookup::conflicts_of(loaded_config(model.source->config(), config),
                                     loader_lookup::stored_modules(model));
}

std::vector<std::string> find_lookup_conflicts(const Checkpoint& c, const Json& config,
                                               const Json& hf_quant_config) {
  Problems problems;
  std::vector<LoadedModule> modules;
  for (const Linear& m : find_weight_modules(c, problems)) modules.push_back(loaded_module(c, m));
  if (!problems.empty()) return {};
  const auto entry = quantization_entry(config);
  return loader_lookup::conflicts_of(loaded_config(config, {entry ? entry->value : Json(), hf_quant_config}),
                                     modules);
}

std::vector<std::string> find_split_layers(const WrittenModel& model) {
  std::map<std::string_view, const WrittenModule*> written;
  for (const WrittenModule& m : model.modules) written.emplace(m.name, &m);
  std::vector<std::string> problems;
  const std::vector<LoadedModule> modules = loader_lookup::stored_modules(model);
  for (const EngineLayer& layer : engine_layers(modules)) {
    const WrittenModule& first = *written.at(layer.modules[0]->name);
    for (const LoadedModule* m : layer.modules) {
      const WrittenModule& other = *written.at(m->name);
      if (other.entry == first.entry) continue;
      problems.push_back(fmt::format(
          "{}: expected {} like {}, because loaders give {} one format, found {}", other.name,
          loader_lookup::entry_text(model, first.entry), first.name,
          layer.kind == EngineLayer::Kind::kExperts ? "the experts of a layer" : "linears that they fuse",
          loader_lookup::entry_text(model, other.entry)));
      break;
    }
  }
  return problems;
}

}  // namespace twofour
