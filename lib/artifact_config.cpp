#include "lib/checkpoint/quantization_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/encode_config.h"
#include "lib/checkpoint/model_config.h"
#include "lib/quantization_config.h"

namespace twofour {
namespace {

/// "model.layers.7.mlp" -> "model.layers.*.mlp"
std::string generalize(const std::string& name) {
  std::string pattern;
  for (size_t i = 0; i <= name.size();) {
    const size_t dot = std::min(name.find('.', i), name.size());
    const std::string piece = name.substr(i, dot - i);
    const bool number = !piece.empty() &&
                        std::all_of(piece.begin(), piece.end(), [](char c) { return c >= '0' && c <= '9'; });
    pattern += (pattern.empty() ? "" : ".") + (number ? std::string("*") : piece);
    i = dot + 1;
  }
  return pattern;
}

/// Blocks as globs where a glob matches converted modules only, else by name.
std::vector<std::string> converted_patterns(const Checkpoint& c, const Plan& plan) {
  std::map<std::string, std::set<std::string>> blocks;
  std::set<size_t> taken;
  for (const Target& t : plan.targets) {
    blocks[generalize(t.block)].insert(t.block);
    for (const SourceRows& s : t.sources) taken.insert(s.module);
  }
  std::vector<std::string> patterns;
  for (const auto& [glob, names] : blocks) {
    const Pattern pattern(glob), below(glob + ".*");
    bool exact = names.size() == 1;
    for (size_t i = 0; i < c.nvfp4_modules().size() && !exact; ++i) {
      const std::string& name = c.nvfp4_modules()[i].name;
      exact = !taken.count(i) && (pattern.matches(name) || below.matches(name));
    }
    if (exact) {
      patterns.insert(patterns.end(), names.begin(), names.end());
    } else {
      patterns.push_back(glob);
    }
  }
  return patterns;
}

/// Where a config may have its entry, the first one that is there counts: multimodal checkpoints have it
/// beside the language model's sizes, older ones of compressed-tensors under another key.
struct EntryPlace {
  const char* holder;  ///< within config.json; nullptr: at its top
  const char* key;
  std::string name() const { return holder ? fmt::format("{}.{}", holder, key) : key; }
};
const std::vector<EntryPlace>& entry_places() {
  static const auto places = [] {
    std::vector<EntryPlace> all;
    for (const char* key : {"quantization_config", "compression_config"}) {
      all.push_back({nullptr, key});
      for (const char* holder : kLanguageConfigs) all.push_back({holder, key});
    }
    return all;
  }();
  return places;
}
bool is_usual(const EntryPlace& place) { return &place == &entry_places().front(); }

bool has_object(const Json& config, const char* key) {
  return config.is_object() && config.contains(key) && config[key].is_object();
}

/// What stands at a place; nullptr: nothing.
const Json* value_at(const Json& config, const EntryPlace& place) {
  if (place.holder && !has_object(config, place.holder)) return nullptr;
  const Json& at = place.holder ? config[place.holder] : config;
  return at.is_object() && at.contains(place.key) ? &at[place.key] : nullptr;
}

/// Whether it is an entry: null, {} and what is no object say nothing.
bool says_something(const Json* entry) { return entry != nullptr && entry->is_object() && !entry->empty(); }

const EntryPlace* entry_place(const Json& config) {
  for (const EntryPlace& place : entry_places()) {
    if (says_something(value_at(config, place))) return &place;
  }
  return nullptr;
}

/// A config with this entry, within `holder` or, nullptr, at its top, and no other.
Json with_entry(Json config, const char* holder, Json entry) {
  if (!config.is_object()) config = Json::object();
  for (const EntryPlace& place : entry_places()) {
    if (place.holder && !has_object(config, place.holder)) continue;
    Json& at = place.holder ? config[place.holder] : config;
    // An entry that stays keeps its place.
    const bool stays = place.holder == holder && place.key == std::string_view("quantization_config");
    if (!stays || entry.is_null()) at.erase(place.key);
  }
  if (!entry.is_null()) (holder ? config[holder] : config)["quantization_config"] = std::move(entry);
  return config;
}

}  // namespace

Json config_with_quantization(const Checkpoint& source, Json entry) {
  const EntryPlace* place = entry_place(source.config());
  return with_entry(source.config(), place ? place->holder : nullptr, std::move(entry));
}

namespace {

/// config.json for a layout.
Json layout_config(const Checkpoint& source, const Plan& plan) {
  Json entry = {{"quant_method", "twofour"}, {"layout", plan.recipe.layout}};
  with_layout(plan.recipe.layout, [&]<class L>() { entry["pattern"] = L::pattern; });
  entry["modules"] = converted_patterns(source, plan);
  entry["base"] = source_quantization(source);
  const EntryPlace* place = entry_place(source.config());
  if (place && !is_usual(*place)) entry["base_place"] = place->name();
  // Copies of it and entries that say nothing.
  for (const EntryPlace& other : entry_places()) {
    const Json* value = value_at(source.config(), other);
    if (&other != place && value != nullptr) entry["beside_base"][other.name()] = *value;
  }
  return with_entry(source.config(), nullptr, std::move(entry));  // where a reader of layouts looks
}

/// Adds names to a list of what is not quantized, and takes them off the lists of what is.
void leave_unquantized(Json& entry, const char* key, const std::vector<std::string>& names) {
  if (!entry.is_object()) return;
  if (!entry.contains(key) || !entry[key].is_array()) entry[key] = Json::array();
  for (const std::string& name : names) {
    entry[key].push_back(name);
    if (entry.contains("quantized_layers") && entry["quantized_layers"].is_object())
      entry["quantized_layers"].erase(name);
  }
}

/// What describes a checkpoint of which some modules, or all, are BF16 now.
std::map<std::string, std::string> bf16_texts(const Checkpoint& source, const Plan& plan) {
  if (plan.modules.size() == source.nvfp4_modules().size()) {
    return {{"config.json", format_json(config_with_quantization(source, nullptr))}};
  }
  std::vector<std::string> names;
  for (const ModulePlan& m : plan.modules) names.push_back(source.nvfp4_modules()[m.module].name);
  Json entry = source_quantization(source), file = source.hf_quant_config();
  // Without an entry in config.json the other file's words stay its own.
  if (entry == file) entry = nullptr;
  std::map<std::string, std::string> texts;
  leave_unquantized(entry, "ignore", names);
  texts["config.json"] = format_json(config_with_quantization(source, entry));
  if (file.is_object() && file.contains("quantization")) {
    leave_unquantized(file["quantization"], "exclude_modules", names);
    texts["hf_quant_config.json"] = format_json(file);
  }
  return texts;
}

/// What an artifact's source had.
std::map<std::string, std::string> original_texts(const Checkpoint& source) {
  std::map<std::string, std::string> texts;
  if (source.config().is_object()) texts["config.json"] = format_json(source.config());
  if (source.hf_quant_config().is_object())
    texts["hf_quant_config.json"] = format_json(source.hf_quant_config());
  return texts;
}

/// Throws where an entry stands in a config within a config of a language model: nobody looks there.
void refuse_deep_entries(const Checkpoint& source) {
  const Json& config = source.config();
  for (const Json* nested : model_configs(config)) {
    const bool is_near =
        nested == &config ||
        std::any_of(std::begin(kLanguageConfigs), std::end(kLanguageConfigs), [&](const char* holder) {
          return has_object(config, holder) && nested == &config[holder];
        });
    for (const char* key : {"quantization_config", "compression_config"}) {
      if (is_near || !nested->contains(key) || !says_something(&(*nested)[key])) continue;
      throw Error(fmt::format("{}: expected {} at its top or one config below, found one deeper",
                              (source.path() / "config.json").string(), key));
    }
  }
}

}  // namespace

void refuse_entries_that_cannot_be_kept(const Checkpoint& source) {
  std::map<std::string_view, const EntryPlace*> firsts;  // by holder, the top first
  for (const EntryPlace& place : entry_places()) {
    if (says_something(value_at(source.config(), place)))
      firsts.try_emplace(place.holder ? place.holder : "", &place);
  }
  for (const auto& [holder, place] : firsts) {
    const EntryPlace& first = *firsts.begin()->second;
    if (*value_at(source.config(), *place) == *value_at(source.config(), first)) continue;
    throw Error(fmt::format("{}: {}: expected what {} says, found another quantization",
                            (source.path() / "config.json").string(), place->name(), first.name()));
  }
  refuse_deep_entries(source);
}

std::optional<QuantizationEntry> quantization_entry(const Json& config) {
  const EntryPlace* place = entry_place(config);
  if (!place) return std::nullopt;
  return QuantizationEntry{*value_at(config, *place), place->name()};
}

Json source_quantization(const Checkpoint& source) {
  const auto entry = quantization_entry(source.config());
  return entry ? entry->value : source.hf_quant_config();
}

std::string quantization_place(const Checkpoint& source, const std::string& key) {
  const auto entry = quantization_entry(source.config());
  if (!entry) return fmt::format("{}: {}", (source.path() / "hf_quant_config.json").string(), key);
  return fmt::format("{}: {}.{}", (source.path() / "config.json").string(), entry->place, key);
}

Json original_config(const Json& config, const Json& hf_quant_config) {
  if (!config.is_object() || !config.contains("quantization_config")) return config;
  const Json entry = config["quantization_config"];
  if (!entry.is_object() || entry.value("quant_method", Json()) != "twofour") return config;
  const Json base = entry.value("base", Json()), name = entry.value("base_place", Json());
  const Json beside = entry.value("beside_base", Json());
  Json original = with_entry(config, nullptr, entry);
  bool top = false, placed = base.is_null() || base == hf_quant_config;
  const auto put = [&](const EntryPlace& place, const Json& value) {
    (place.holder ? original[place.holder] : original)[place.key] = value;
    top = top || is_usual(place);
  };
  for (const EntryPlace& place : entry_places()) {
    if (place.holder && !has_object(config, place.holder)) continue;
    if (!placed && !is_usual(place) && name == place.name()) {
      put(place, base);
      placed = true;
    } else if (beside.is_object() && beside.contains(place.name())) {
      put(place, beside[place.name()]);
    }
  }
  if (!placed) put(entry_places().front(), base);
  if (!top) original.erase("quantization_config");
  return original;
}

std::map<std::string, std::string> artifact_texts(const Checkpoint& source, const Plan& plan) {
  switch (rewrite_of(plan.recipe.layout)) {
    case Rewrite::kPrune:
      return source.is_view() ? original_texts(source) : std::map<std::string, std::string>{};
    case Rewrite::kNvfp4: {
      if (plan.keeps_dialect) return original_texts(source);
      const bool modelopt = plan.recipe.dialect == "modelopt";
      const Nvfp4Config c = translate_config(source, modelopt);
      if (!modelopt)
        return {{"config.json", format_json(config_with_quantization(source, compressed_tensors_config(c)))}};
      return {{"config.json", format_json(config_with_quantization(source, modelopt_config(c)))},
              {"hf_quant_config.json", format_json(hf_quant_config(c))}};
    }
    case Rewrite::kBf16:
      return bf16_texts(source, plan);
    case Rewrite::kFp8:
    case Rewrite::kQuantize:
      return encode_texts(source, plan);
    case Rewrite::kNone:
      break;
  }
  return {{"config.json", format_json(layout_config(source, plan))}};
}

bool is_copied_sidecar(const Checkpoint& source, const Plan& plan, const std::string& name) {
  const bool rewritten = name == "config.json" || name == "hf_quant_config.json";
  return !rewritten || (rewrite_of(plan.recipe.layout) == Rewrite::kPrune && !source.is_view());
}

std::string artifact_index(const Plan& plan) {
  std::map<std::string_view, std::string_view> files;
  for (const OutputTensor& t : plan.tensors) files[t.info.name] = plan.files[t.file].name;
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", plan.data_bytes);
  for (auto it = files.begin(); it != files.end(); ++it) {
    text += fmt::format("{}\n    {}: {}", it == files.begin() ? "" : ",", json_quote(it->first),
                        json_quote(it->second));
  }
  return text + "\n  }\n}\n";
}

std::set<std::string> artifact_files(const Checkpoint& source, const Plan& plan) {
  std::set<std::string> files{kIndexName, kManifestName};
  for (const OutputFile& file : plan.files) files.insert(file.name);
  for (const auto& [name, bytes] : plan.sidecars) {
    if (is_copied_sidecar(source, plan, name)) files.insert(name);
  }
  for (const auto& [name, text] : artifact_texts(source, plan)) files.insert(name);
  return files;
}

}  // namespace twofour
