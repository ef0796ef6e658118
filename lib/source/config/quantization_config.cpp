#include "lib/source/config/quantization_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "formats/error.h"
#include "formats/json/access.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

/// A place where a config may have its quantization entry. The first place with an entry counts. Multimodal
/// checkpoints have the entry beside the language model's sizes. Older compressed-tensors checkpoints have it
/// under another key.
struct EntryPlace {
  const char* holder;  ///< key of the object that has the entry; nullptr: the top of config.json
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

bool has_object(const Json& config, const char* key) { return member(config, key).is_object(); }

/// The value at a place; nullptr if there is none.
const Json* value_at(const Json& config, const EntryPlace& place) {
  if (place.holder && !has_object(config, place.holder)) return nullptr;
  const Json& at = place.holder ? config[place.holder] : config;
  return at.is_object() && at.contains(place.key) ? &at[place.key] : nullptr;
}

/// True if `entry` is an object that is not empty. Any other value is no entry.
bool says_something(const Json* entry) { return entry != nullptr && entry->is_object() && !entry->empty(); }

const EntryPlace* entry_place(const Json& config) {
  for (const EntryPlace& place : entry_places()) {
    if (says_something(value_at(config, place))) return &place;
  }
  return nullptr;
}

/// Returns the config with `entry` as its only entry, within `holder` or, if it is nullptr, at the top.
Json with_entry(Json config, const char* holder, Json entry) {
  if (!config.is_object()) config = Json::object();
  for (const EntryPlace& place : entry_places()) {
    if (place.holder && !has_object(config, place.holder)) continue;
    Json& at = place.holder ? config[place.holder] : config;
    // An entry that is replaced at its own place keeps its position among the keys.
    const bool stays = place.holder == holder && place.key == std::string_view("quantization_config");
    if (!stays || entry.is_null()) at.erase(place.key);
  }
  if (!entry.is_null()) (holder ? config[holder] : config)["quantization_config"] = std::move(entry);
  return config;
}

/// Throws Error if an entry is nested deeper than in a language model's config, where loaders do not look.
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
  // Keep copies of the entry, and empty entries.
  for (const EntryPlace& other : entry_places()) {
    const Json* value = value_at(source.config(), other);
    if (&other != place && value != nullptr) entry["beside_base"][other.name()] = *value;
  }
  return with_entry(source.config(), nullptr,
                    std::move(entry));  // readers of layouts expect it at the top level
}

std::vector<SideConfig> read_side_configs(const std::filesystem::path& directory) {
  std::vector<SideConfig> found;
  std::error_code error;
  for (const char* name : kSideConfigs) {
    const auto path = directory / name;
    if (!std::filesystem::is_regular_file(path, error)) continue;
    Json value = parse_json(path.string(), read_text(path));
    if (!value.is_object())
      throw Error(fmt::format("{}: expected a JSON object, found {}", path.string(), value.type_name()));
    if (Json inner = member(value, "quantization_config"); inner.is_object()) value = std::move(inner);
    const bool awq = value.contains("w_bit") || value.contains("q_group_size");
    if (!value.contains("quant_method")) value["quant_method"] = awq ? "awq" : "gptq";
    found.push_back({name, std::move(value)});
  }
  return found;
}

std::string quantization_method(const Json& entry) {
  constexpr std::pair<const char*, const char*> kSpellings[] = {{"auto-round", "auto-round"},
                                                                {"autoround", "auto-round"},
                                                                {"intel/auto-round", "auto-round"},
                                                                {"compressed-tensors", "compressed-tensors"}};
  const std::string configured = text_of(entry, "quant_method");
  std::string plain = configured;
  for (char& c : plain) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [spelling, method] : kSpellings) {
    if (plain == spelling) return method;
  }
  for (const char* family : {"gptq", "awq"}) {
    if (plain.find(family) != plain.npos) return family;
  }
  return configured;
}

void refuse_entries_that_cannot_be_kept(const Checkpoint& source) {
  std::map<std::string_view, const EntryPlace*> firsts;  // the first entry of each holder; the top is ""
  for (const EntryPlace& place : entry_places()) {
    if (says_something(value_at(source.config(), place)))
      firsts.try_emplace(place.holder ? place.holder : "", &place);
  }
  for (const auto& [holder, place] : firsts) {
    const EntryPlace& first = *firsts.begin()->second;
    if (*value_at(source.config(), *place) == *value_at(source.config(), first)) continue;
    throw Error(fmt::format("{}: {}: expected the quantization in {}, found a different one",
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

Json quantization_of_values(const Checkpoint& source) {
  const auto entry = quantization_entry(source.config_of_values());
  return entry ? entry->value : source.hf_quant_config_of_values();
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

/// True if the KV cache is FP8 in either of the two dialects. Throws Error on any other format, which one of
/// them cannot express.
bool is_fp8_kv_cache(const Json& entry, const Json& hf_quant) {
  const Json& named = member(member(hf_quant, "quantization"), "kv_cache_quant_algo");
  const Json& algo = named.is_null() ? member(entry, "kv_cache_scheme") : named;
  if (algo.is_null()) return false;
  if (const std::string strategy = text_of(algo, "strategy"); !strategy.empty() && strategy != "tensor")
    throw Error(fmt::format("kv_cache_scheme.strategy: expected tensor, which both dialects have, found {}",
                            json_quote_short(strategy)));
  if (algo == "FP8" || (member(algo, "num_bits") == 8 && member(algo, "type") == "float")) return true;
  throw Error(fmt::format("kv_cache_quant_algo: expected FP8 or none, which both dialects have, found {}",
                          quoted_setting(algo)));
}

}  // namespace

bool has_fp8_kv_cache(const Checkpoint& source) {
  return is_fp8_kv_cache(source_quantization(source), source.hf_quant_config());
}

bool is_stated_size(int64_t stated) { return stated > 0 && stated <= int64_t{1} << 30; }

namespace {

using Block = std::pair<int64_t, int64_t>;

std::optional<Block> parse_block(const Json& stated) {
  Block block = pair_of(stated).value_or(Block());
  if (const std::string text = text_of(stated); !text.empty()) {
    const char *end = text.data() + text.size(), *at = std::from_chars(text.data(), end, block.first).ptr;
    if (at == end || *at != 'x' || std::from_chars(at + 1, end, block.second).ptr != end) return {};
  }
  return is_stated_size(block.first) && is_stated_size(block.second) ? std::optional(block) : std::nullopt;
}

/// Calls `f` with the integer of the first key in `keys` that has an integer.
template <class F>
void with_number(const Json& json, std::initializer_list<const char*> keys, F&& f) {
  for (const char* key : keys) {
    if (const auto number = integer_of(json, key)) return f(*number);
  }
}

void add_block(const Json& holder, const char* key, StatedStorage& to) {
  const Json& stated = member(holder, key);
  if (const auto block = parse_block(stated)) {
    to.blocks.push_back(*block);
  } else if (!stated.is_null()) {
    to.unread_blocks.push_back(stated.dump());
  }
}

void add_group(const Json& group, bool has_defaults, StatedStorage& to) {
  const Json& weights = member(group, "weights");
  if (!weights.is_object()) return;
  add_block(weights, "block_structure", to);
  if (text_of(weights, "type") == "float") return;
  with_number(weights, {"group_size"}, [&](int64_t size) { to.group_sizes.push_back(size); });
  with_number(weights, {"num_bits"}, [&](int64_t bits) { to.bits.insert(bits); });
  // Source: compressed-tensors, quantization/quant_args.py.
  if (has_defaults && !weights.contains("num_bits")) to.bits.insert(8);
}

}  // namespace

StatedStorage stated_storage(const Json& quantization) {
  StatedStorage stated;
  if (!quantization.is_object()) return stated;
  stated.method = quantization_method(quantization);
  add_block(quantization, "weight_block_size", stated);
  const Json& groups = member(quantization, "config_groups");
  if (groups.is_structured()) {
    for (const Json& group : groups) add_group(group, stated.method == "compressed-tensors", stated);
  }
  const QuantMethod method = method_of(stated.method);
  stated.is_unlisted =
      method == QuantMethod::kOther && stated.method != "auto-round" && stated.method != "twofour";
  const bool is_integer = method == QuantMethod::kGptq || method == QuantMethod::kAwq ||
                          method == QuantMethod::kNone || method == QuantMethod::kOther;
  if (is_integer && stated.method != "twofour") {
    with_number(quantization, {"bits", "w_bit"}, [&](int64_t bits) { stated.bits.insert(bits); });
    with_number(quantization, {"group_size", "q_group_size"},
                [&](int64_t size) { stated.group_sizes.push_back(size); });
    for (const char* key : {"packing_format", "checkpoint_format", "version"}) {
      if (stated.format.empty()) stated.format = text_of(quantization, key);
    }
  }
  if (stated.method == "auto-round" && stated.format == "auto_round:auto_gptq") {
    const std::string format = text_of(quantization, "checkpoint_format");
    if (format != "gptq") stated.other_format = format;
  }
  if (is_integer && stated.method != "awq" && stated.method != "auto-round") {
    const std::string format = text_of(quantization, "format");  // GPTQModel's newer key
    if (stated.format.empty()) stated.format = format;
    if (format != stated.format) stated.other_format = format;
    stated.has_order = member(quantization, "desc_act") == true;
    const Json& author = member(member(quantization, "meta"), "quantizer");
    stated.by_gptqmodel = author.dump().find("gptqmodel") != std::string::npos;
  }
  const Json& format = member(quantization, "fmt");
  stated.fp8_format = format.is_string() ? format.get<std::string>() : format.is_null() ? "" : format.dump();
  const bool nothing = stated.blocks.empty() && stated.unread_blocks.empty() && stated.group_sizes.empty();
  return nothing && quantization.contains("base") ? stated_storage(quantization["base"]) : stated;
}

}  // namespace twofour
