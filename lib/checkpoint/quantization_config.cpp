#include "lib/checkpoint/quantization_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "formats/error.h"
#include "lib/checkpoint/model_config.h"

namespace twofour {
namespace {

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

/// The value at a place; nullptr if there is none.
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

/// Throws if an entry is in a config within a config of a language model, where loaders do not look.
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

Json config_with_quantization(const Checkpoint& source, Json entry) {
  return with_quantization(source.config(), std::move(entry));
}

Json with_quantization(Json config, Json entry) {
  const EntryPlace* place = entry_place(config);
  return with_entry(std::move(config), place ? place->holder : nullptr, std::move(entry));
}

Json config_with_layout(const Checkpoint& source, Json entry, const Json* base) {
  entry["base"] = base ? *base : source_quantization(source);
  const EntryPlace* place = entry_place(source.config());
  if (place && !is_usual(*place)) entry["base_place"] = place->name();
  // Copies of it and entries that say nothing.
  for (const EntryPlace& other : entry_places()) {
    const Json* value = value_at(source.config(), other);
    if (&other != place && value != nullptr) entry["beside_base"][other.name()] = *value;
  }
  return with_entry(source.config(), nullptr, std::move(entry));  // where a reader of layouts looks
}

std::optional<SideConfig> read_side_config(const std::filesystem::path& directory) {
  std::error_code error;
  for (const char* name : kSideConfigs) {
    const auto path = directory / name;
    if (!std::filesystem::is_regular_file(path, error)) continue;
    Json value = parse_json(path.string(), read_text(path));
    if (!value.is_object())
      throw Error(fmt::format("{}: expected a JSON object, found {}", path.string(), value.type_name()));
    const bool awq = value.contains("w_bit") || value.contains("q_group_size");
    if (!value.contains("quant_method")) value["quant_method"] = awq ? "awq" : "gptq";
    return SideConfig{name, std::move(value)};
  }
  return std::nullopt;
}

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

namespace {

/// Whether the KV cache is FP8, as either dialect says it. Anything else but none has no words in both.
bool is_fp8_kv_cache(const Json& entry, const Json& hf_quant) {
  const Json* algo = nullptr;
  if (hf_quant.is_object() && hf_quant.contains("quantization")) {
    const Json& q = hf_quant["quantization"];
    if (q.is_object() && q.contains("kv_cache_quant_algo")) algo = &q["kv_cache_quant_algo"];
  }
  if ((algo == nullptr || algo->is_null()) && entry.is_object() && entry.contains("kv_cache_scheme")) {
    algo = &entry["kv_cache_scheme"];
  }
  if (algo == nullptr || algo->is_null()) return false;
  const auto says = [&](const char* key, const Json& value) {
    return algo->is_object() && algo->contains(key) && (*algo)[key] == value;
  };
  const bool fp8 = *algo == "FP8" || (says("num_bits", 8) && says("type", "float"));
  if (!fp8) {
    throw Error(fmt::format("kv_cache_quant_algo: expected FP8 or none, which both dialects have, found {}",
                            quoted_setting(*algo)));
  }
  return true;
}

}  // namespace

bool has_fp8_kv_cache(const Checkpoint& source) {
  return is_fp8_kv_cache(source_quantization(source), source.hf_quant_config());
}

}  // namespace twofour
