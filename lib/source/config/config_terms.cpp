#include "lib/source/config/config_terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "formats/json/access.h"
#include "formats/json/kind.h"
#include "formats/module_parts.h"
#include "formats/naming.h"
#include "lib/base/names/arrangement_words.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool has_any(std::string_view text, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return text.find(word) != text.npos; });
}

/// True if a setting turns nothing on: null, false, 0, "none", {}, or a list or object that has only these
/// values.
bool asks_nothing(const Json& value) {
  if (value.is_object() || value.is_array())
    return std::all_of(value.begin(), value.end(), [](const Json& inner) { return asks_nothing(inner); });
  if (value.is_string()) return value == "" || value == "none";
  return value.is_null() || value == false || value == 0;
}

/// True for a key or a word of a setting that names a transform of weights.
bool names_transform(const std::string& text) {
  return has_any(lower(text), {"transform_config", "rotate", "rotation", "hadamard", "spinquant", "quarot",
                               "flatquant", "quip"});
}

/// True for the keys of Quark's lists of steps before and during quantization.
bool is_algorithm_key(const std::string& key) {
  return key == "algo_config" || key == "pre_quant_opt_config";
}

/// True for keys whose members are no settings of storage: names of modules or groups, and "meta", where
/// GPTQModel notes how it made a checkpoint. Source: transformers, utils/quantization_config.py, GPTQConfig.
bool has_no_settings(std::string_view key) {
  constexpr std::string_view kKeys[] = {"meta",    "config_groups",        "quantized_layers",
                                        "dynamic", "extra_config",         "layer_quant_config",
                                        "modules", "module_fqn_to_config", "layer_type_quant_config"};
  return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

/// True if a step of Quark stores weights for rotated inputs. A rotation r4 does, and an r1 that is online.
/// For an r1 that is not online and for r2, other weights undo the rotation. r3 rotates only queries and
/// keys. A rotation that the step does not state counts as done, since versions differ. Source: AMD Quark
/// 0.13, algorithm/rotation/rotation.py, get_online_rotation_layers; vLLM, quantization/quark, which reads
/// online_rotation_layers.
bool rotates_inputs(const Json& step) {
  if (!has_any(lower(text_of(step, "name")), {"rotat", "quarot", "spinquant"})) return false;
  const Json& online = member(step, "online_config");
  return member(step, "r4") != false || !asks_nothing(member(step, "online_r1_rotation")) ||
         !asks_nothing(member(online, "online_rotation_layers")) ||
         !asks_nothing(member(online, "use_input_prescale"));
}

/// A key of a quantization config that decides values, and its type.
struct TypedKey {
  const char* key;
  JsonKind kind;
};
using enum JsonKind;

/// Keys of every entry.
constexpr TypedKey kEntryKeys[] = {
    {"quant_method", kText},       {"config_groups", kObject},
    {"quantized_layers", kObject}, {"dynamic", kObject},
    {"extra_config", kObject},     {"ignore", kTexts},
    {"exclude_modules", kTexts},   {"fmt", kText},
    {"weight_block_size", kSizes},
};
/// Keys of GPTQ, AWQ and AutoRound, and of their exceptions for single modules.
constexpr TypedKey kIntegerKeys[] = {
    {"group_size", kIntegerOrPair},
    {"q_group_size", kInteger},
    {"sym", kFlag},
    {"desc_act", kFlag},
    {"zero_point", kFlag},
    {"checkpoint_format", kText},
    {"packing_format", kText},
    {"format", kText},
};
/// Their bits, and those of a method that is not known: EXL3 has fractions.
constexpr TypedKey kBits[] = {{"bits", kInteger}, {"w_bit", kInteger}};
constexpr TypedKey kOtherBits[] = {{"bits", kNumber}, {"w_bit", kNumber}};
/// Keys of ModelOpt, and of its entries for single modules.
constexpr TypedKey kModelOptKeys[] = {
    {"quant_algo", kText},     {"group_size", kInteger},   {"block", kInteger},
    {"has_zero_point", kFlag}, {"pre_quant_scale", kFlag},
};
/// Keys of a group of compressed-tensors, and of its weights.
constexpr TypedKey kGroupKeys[] = {{"weights", kObject}, {"targets", kTexts}};
constexpr TypedKey kWeightsKeys[] = {
    {"num_bits", kInteger},      {"group_size", kInteger}, {"type", kText},
    {"strategy", kText},         {"symmetric", kFlag},     {"actorder", kFlagOrText},
    {"block_structure", kSizes},
};

/// Finds keys with another JSON type than readers expect.
class OddTypes {
 public:
  explicit OddTypes(std::string file) : file_(std::move(file)) {}

  void look(const std::string& place, const Json& entry) {
    if (!entry.is_object()) return;
    look(below(place) + "base", member(entry, "base"));
    if (text_of(entry, "quant_method") == "twofour") return;
    look_at(place, entry, kEntryKeys);
    const std::string text = quantization_method(entry);
    QuantMethod method = method_of(text);
    if (method == QuantMethod::kNone && entry.contains("quant_algo")) method = QuantMethod::kModelOpt;
    if (method == QuantMethod::kModelOpt) {
      look_at(place, entry, kModelOptKeys);
    } else if (method == QuantMethod::kOther && text != "auto-round") {
      look_at_integers(place, entry, kOtherBits);
    } else if (method == QuantMethod::kGptq || method == QuantMethod::kAwq || method == QuantMethod::kNone ||
               method == QuantMethod::kOther) {
      look_at_integers(place, entry, kBits);
    }
    for (const auto& [name, layer] : members_of(entry, "quantized_layers"))
      look_at(fmt::format("{}quantized_layers.{}", below(place), name), layer, kModelOptKeys);
    for (const auto& [name, group] : members_of(entry, "config_groups")) {
      const std::string at = fmt::format("{}config_groups.{}", below(place), name);
      check(at, group, kObject);
      look_at(at, group, kGroupKeys);
      look_at(at + ".weights", member(group, "weights"), kWeightsKeys);
    }
    look(below(place) + "quantization", member(entry, "quantization"));
  }

  std::vector<ConfigTerm> found;

 private:
  static std::string below(const std::string& place) { return place.empty() ? place : place + "."; }

  void check(const std::string& place, const Json& value, JsonKind kind) {
    if (is_of_kind(value, kind)) return;
    const bool is_container = kind == kObject || kind == kTexts;
    found.push_back({file_, place,
                     fmt::format("expected {}, found {}", name_of_kind(kind), quoted_setting(value)),
                     is_container ? "bad-config" : "config-format"});
  }
  void look_at(const std::string& place, const Json& owner, std::span<const TypedKey> keys) {
    for (const TypedKey& typed : keys) check(below(place) + typed.key, member(owner, typed.key), typed.kind);
  }
  void look_at_integers(const std::string& place, const Json& entry, std::span<const TypedKey> bits) {
    look_at(place, entry, bits);
    look_at(place, entry, kIntegerKeys);
    for (const char* exceptions : {"dynamic", "extra_config"}) {
      for (const auto& [name, exception] : members_of(entry, exceptions)) {
        const std::string at = fmt::format("{}{}.{}", below(place), exceptions, name);
        check(at, exception, kObject);
        look_at(at, exception, bits);
        look_at(at, exception, kIntegerKeys);
      }
    }
  }

  const std::string file_;
};

class Search {
 public:
  explicit Search(std::span<const TensorInfo> tensors) : tensors_(tensors) {}

  void look(const std::string& file, const std::string& key, const Json& value) {
    if (value.is_array()) {
      for (size_t i = 0; i < value.size(); ++i) look(file, fmt::format("{}[{}]", key, i), value[i]);
    }
    if (!value.is_object()) return;
    const bool has_none = has_no_settings(key.substr(key.rfind('.') + 1));
    // The other keys of such an entry name layouts of twofour.
    const bool is_own = text_of(value, "quant_method") == "twofour";
    for (const auto& [name, inner] : value.items()) {
      if (is_own && name != "base" && name != "beside_base") continue;
      const std::string place = key.empty() ? name : fmt::format("{}.{}", key, name);
      if (is_algorithm_key(name)) {
        look_at_steps(file, place, inner);
      } else if (!has_none && name.find_first_of(".*:") == name.npos && names_order(name, inner)) {
        found.push_back({file, place,
                         fmt::format("expected codes and scales in the order of their weights, found {}, an "
                                     "arrangement that no reader undoes",
                                     quoted_setting(inner))});
      } else if (names_transform(name) || (inner.is_string() && names_transform(inner.get<std::string>()))) {
        add_transform(file, place, inner);
      } else if (name == "quant_algo") {
        look_at_algorithm(file, place, lookups::algorithm_of(value));
      } else if (name == "pre_quant_scale" || name == "has_zero_point") {
        if (inner == true) look_at_promise(file, key, place, name);
      } else {
        look(file, place, inner);
      }
    }
  }

  /// Looks for quantization entries and transforms where no reader looks: deeper in config.json than in a
  /// language model's config at the top.
  void look_deeper(const std::string& above, const Json& value) {
    if (!value.is_object()) return;
    for (const auto& [name, inner] : value.items()) {
      const bool is_entry = name == "quantization_config" || name == "compression_config";
      const bool is_transform = name == "transform_config" || name == "rotation_config";
      const std::string place = above.empty() ? name : above + "." + name;
      const bool is_read =
          above.empty() || std::find(std::begin(kLanguageConfigs), std::end(kLanguageConfigs), above) !=
                               std::end(kLanguageConfigs);
      if (!is_entry && !is_transform) {
        look_deeper(place, inner);
      } else if (!is_read && inner.is_object() && !asks_nothing(inner)) {
        found.push_back(
            {"config.json", place,
             fmt::format("expected {} at the top or one config below, where readers look, found one here",
                         name)});
      }
    }
  }

  void add_transform(const std::string& file, const std::string& place, const Json& value) {
    if (asks_nothing(value)) return;
    found.push_back(
        {file, place,
         fmt::format("expected none, found {}: the weights are stored transformed", quoted_setting(value))});
  }

  std::vector<ConfigTerm> found;

 private:
  /// True if a setting names an arrangement of bytes. Quark's "order" does for codes in the order of AWQ.
  bool names_order(const std::string& name, const Json& value) const {
    if (name == "pack_method" && value == "order") {
      return std::any_of(tensors_.begin(), tensors_.end(),
                         [](const TensorInfo& t) { return t.name.ends_with(".qweight"); });
    }
    return names_arrangement(name, value);
  }

  void look_at_steps(const std::string& file, const std::string& place, const Json& steps) {
    if (steps.is_array()) {
      for (size_t i = 0; i < steps.size(); ++i)
        look_at_steps(file, fmt::format("{}[{}]", place, i), steps[i]);
    } else if (steps.is_object() && steps.contains("name")) {
      if (rotates_inputs(steps)) add_transform(file, place, steps);
    } else {
      look(file, place, steps);
    }
  }

  void look_at_algorithm(const std::string& file, const std::string& place, const std::string& algorithm) {
    const bool adds = has_any(algorithm, {"NVFP4_SVD"});
    if ((!adds && !has_any(algorithm, {"NVFP4_AWQ"})) || tensors_.empty()) return;
    const char* const part = adds ? "svdquant_lora_a" : "pre_quant_scale";
    const bool is_there = std::any_of(tensors_.begin(), tensors_.end(),
                                      [&](const TensorInfo& t) { return t.name.find(part) != t.name.npos; });
    if (is_there) return;  // the tensor itself is refused
    found.push_back(
        {file, place,
         fmt::format("expected an algorithm without {}, because no tensor has this name, found {}", part,
                     json_quote_short(algorithm))});
  }

  /// Looks for the tensors that a setting promises. `owner` is the path of the object that has the setting.
  void look_at_promise(const std::string& file, const std::string& owner, const std::string& place,
                       const std::string& name) {
    if (tensors_.empty()) return;
    const bool scales = name == "pre_quant_scale";
    // An entry of quantized_layers is for one module. Scales of its inputs may be folded into a norm.
    constexpr std::string_view kLayers = "quantized_layers.";
    const size_t at = owner.find(kLayers);
    const std::string module = scales || at == owner.npos ? "" : owner.substr(at + kLayers.size());
    const bool is_there = std::any_of(tensors_.begin(), tensors_.end(), [&](const TensorInfo& t) {
      if (scales) return t.name.find(name) != t.name.npos;
      const auto part = parse_part_name(t.name);
      return part && part->part->kind == PartKind::kTerm && part->part->name.find("zero") != name.npos &&
             (module.empty() || part->module == module || is_below(part->module, module));
    });
    if (is_there) return;  // the tensor itself is refused, or a decoder accounts for it
    found.push_back(
        {file, place,
         fmt::format("expected false, because {} has {}, found true", module.empty() ? "no module" : module,
                     module.empty() ? (scales ? "one" : "zero points") : "no zero points"),
         "incomplete-module"});
  }

  const std::span<const TensorInfo> tensors_;
};

}  // namespace

std::vector<ConfigTerm> find_odd_types(const std::string& file, const std::string& place, const Json& entry) {
  OddTypes types(file);
  types.look(place, entry);
  return std::move(types.found);
}

std::vector<ConfigTerm> find_config_terms(const Json& config, const Json& hf_quant_config,
                                          std::span<const TensorInfo> tensors) {
  Search search(tensors);
  const auto look_in = [&](const Json& holder, const std::string& above) {
    for (const char* key : {"quantization_config", "compression_config"})
      search.look("config.json", above + key, member(holder, key));
    for (const char* key : {"transform_config", "rotation_config"})
      search.add_transform("config.json", above + key, member(holder, key));
  };
  look_in(config, "");
  for (const char* holder : kLanguageConfigs) look_in(member(config, holder), fmt::format("{}.", holder));
  search.look_deeper("", config);
  search.look("hf_quant_config.json", "", hf_quant_config);
  const auto add_types = [&](const std::string& file, const std::string& place, const Json& entry) {
    std::ranges::move(find_odd_types(file, place, entry), std::back_inserter(search.found));
  };
  if (const auto entry = quantization_entry(config)) add_types("config.json", entry->place, entry->value);
  add_types("hf_quant_config.json", "", hf_quant_config);
  return std::move(search.found);
}

std::vector<ConfigTerm> find_side_terms(const std::filesystem::path& directory) {
  Search search({});
  for (const SideConfig& side : read_side_configs(directory)) search.look(side.file, "", side.value);
  // Source: transformers, utils/peft_utils.py, find_adapter_config_file: from_pretrained() looks for it.
  constexpr const char* kAdapter = "adapter_config.json";
  if (std::error_code none; std::filesystem::is_regular_file(directory / kAdapter, none)) {
    search.found.push_back(
        {kAdapter, "peft_type",
         "expected no adapter beside the weights, found one, which transformers loads with "
         "them: merge it, or remove its files"});
  }
  return std::move(search.found);
}

std::vector<ConfigTerm> find_config_terms(const Checkpoint& c, std::span<const TensorInfo> tensors) {
  auto found = find_config_terms(c.config_of_values(), c.hf_quant_config_of_values(), tensors);
  std::ranges::move(find_side_terms(c.is_directory() ? c.path() : c.path().parent_path()),
                    std::back_inserter(found));
  return found;
}

std::string text_of(const Checkpoint& c, const ConfigTerm& term) {
  return fmt::format("{}: {}: {}", (c.path() / term.file).string(), term.key, term.problem);
}

}  // namespace twofour
