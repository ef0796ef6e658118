#include "lib/look/diff/configs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "formats/error.h"
#include "formats/json/access.h"
#include "lib/base/io/file.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/configured_scheme.h"

namespace twofour {
namespace {

/// Keys that change no number of a trained model's outputs. A key that is not in the list counts, because an
/// unknown key may be a factor, a window or a switch of a new family. Source: huggingface/transformers 5.17,
/// configuration_utils.py, generation/configuration_utils.py and the configuration_*.py of its models.
constexpr std::string_view kHarmless[] = {
    // The origin of a model, its loading and its labels.
    "name_or_path", "transformers_version", "auto_map", "dtype", "expert_dtype", "use_bfloat16", "license",
    "tokenizer_class", "processor_class", "finetuning_task", "task_specific_params", "problem_type",
    "id2label", "label2id", "num_labels", "torchscript", "tf_legacy_loss", "attn_implementation",
    "unsloth_fixed", "unsloth_version", "model_name", "language", "tags",
    // The results of a call, and its cache.
    "use_cache", "return_dict", "return_dict_in_generate", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "output_router_logits", "keys_to_ignore_at_inference",
    "cache_implementation", "chunk_size_feed_forward",
    // Training.
    "initializer_range", "initializer_factor", "initializer_cutoff_factor", "init_std", "initial_std",
    "attention_dropout", "hidden_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout",
    "embedding_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop", "classifier_dropout", "expert_dropout",
    "gradient_checkpointing", "router_aux_loss_coef", "router_z_loss_coef", "router_jitter_noise",
    "input_jitter_noise", "aux_loss_alpha", "seq_aux", "ep_size", "pretraining_tp", "mtp_loss_scaling_factor",
    "rescale_prenorm_residual"};

bool is_harmless(std::string_view key) {
  return key.starts_with('_') ||
         std::find(std::begin(kHarmless), std::end(kHarmless), key) != std::end(kHarmless);
}

constexpr std::string_view kQuantization[] = {"quantization_config", "compression_config", "quantization"};

/// Removes entries of quantization, which are compared by module, and gives torch_dtype its later name.
Json without_quantization(const Json& config) {
  if (!config.is_object()) return config;
  Json plain = Json::object();
  for (const auto& [key, value] : config.items()) {
    if (std::find(std::begin(kQuantization), std::end(kQuantization), key) != std::end(kQuantization))
      continue;
    const bool is_old = key == "torch_dtype";
    if (is_old && config.contains("dtype")) continue;
    plain[is_old ? "dtype" : key] = without_quantization(value);
  }
  return plain;
}

/// Writes rope_theta, partial_rotary_factor and rope_scaling as transformers 5 does, in rope_parameters.
Json with_rope_parameters(Json config) {
  Json rope = member(config, "rope_scaling");
  if (!rope.is_object()) rope = Json::object();
  if (const std::string type = text_of(rope, "type"); !type.empty()) {
    rope.erase("type");
    rope["rope_type"] = type;
  }
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    if (config.contains(key)) rope[key] = member(config, key);
    config.erase(key);
  }
  config.erase("rope_scaling");
  if (!rope.empty()) config["rope_parameters"] = rope;
  return config;
}

/// Returns the settings of a flat rope_parameters, without the type that is the default.
Json plain_rope(Json config) {
  Json rope = member(config, "rope_parameters");
  if (rope.is_object() && rope.value("rope_type", Json()) == "default") {
    rope.erase("rope_type");
    config["rope_parameters"] = rope;
  }
  return config;
}

std::string text_of_value(const Json& value) {
  constexpr size_t kMost = 120;
  std::string text = value.dump();
  if (text.size() > kMost) text = text.substr(0, kMost - 3) + "...";
  return text;
}

bool is_same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  if (a.is_array() && b.is_array()) return std::equal(a.begin(), a.end(), b.begin(), b.end(), is_same);
  return a == b;
}

class ConfigComparer {
 public:
  ConfigComparer(std::string file, std::vector<ConfigDifference>& found)
      : file_(std::move(file)), found_(found) {}

  void compare(Json a, Json b, const std::string& path, bool counts) {
    if (a.contains("rope_parameters") != b.contains("rope_parameters")) {
      if (!a.contains("rope_parameters")) a = with_rope_parameters(std::move(a));
      if (!b.contains("rope_parameters")) b = with_rope_parameters(std::move(b));
      a = plain_rope(std::move(a));
      b = plain_rope(std::move(b));
    }
    for (const auto& [key, value] : a.items()) compare_values(path + key, key, &value, find(b, key), counts);
    for (const auto& [key, value] : b.items()) {
      if (!a.contains(key)) compare_values(path + key, key, nullptr, &value, counts);
    }
  }

 private:
  static const Json* find(const Json& object, const std::string& key) {
    const auto at = object.find(key);
    return at == object.end() ? nullptr : &*at;
  }

  void compare_values(const std::string& path, std::string_view key, const Json* a, const Json* b,
                      bool counts) {
    counts = counts && !is_harmless(key);
    if (a != nullptr && b != nullptr) {
      if (is_same(*a, *b)) return;
      if (a->is_object() && b->is_object()) return compare(*a, *b, path + ".", counts);
      if (a->is_array() && b->is_array() && a->size() == b->size()) {
        const auto [x, y] = std::mismatch(a->begin(), a->end(), b->begin(), is_same);
        size_t at = 0;
        while (is_same(a->at(at), b->at(at))) ++at;
        return add(fmt::format("{}[{}]", path, at), &*x, &*y, counts);
      }
      return add(path, a, b, counts);
    }
    const Json& only = a != nullptr ? *a : *b;
    const bool is_empty = only.is_null() || (only.is_structured() && only.empty());
    add(path, a, b, counts && !is_empty);
  }

  void add(std::string key, const Json* a, const Json* b, bool counts) {
    found_.push_back({file_, std::move(key), a != nullptr ? text_of_value(*a) : "",
                      b != nullptr ? text_of_value(*b) : "", counts});
  }

  const std::string file_;
  std::vector<ConfigDifference>& found_;
};

/// Returns a config file of a directory; null if it is missing or no JSON.
Json read_config(const Checkpoint& c, const char* name) {
  const std::filesystem::path path = c.path() / name;
  if (!c.is_directory() || is_absent(path)) return nullptr;
  try {
    return parse_json(path.string(), read_text(path));
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return nullptr;
  }
}

std::optional<bool> has_fp8_cache(const Checkpoint& c) {
  try {
    return has_fp8_kv_cache(c);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Compares what two quantization entries state of each linear that both checkpoints have under one name.
void compare_quantization(const Matrices& ours, const Matrices& theirs,
                          std::vector<ConfigDifference>& found) {
  const Checkpoint &a = ours.checkpoint(), &b = theirs.checkpoint();
  const Json entry_a = source_quantization(a), entry_b = source_quantization(b);
  ConfiguredQuantization said_a(entry_a), said_b(entry_b);
  struct Group {
    std::string first;
    uint64_t count = 0;
  };
  std::map<std::string_view, const Linear*> by_name;
  for (const Linear& m : theirs.modules()) by_name.emplace(m.name, &m);
  std::map<std::tuple<bool, std::string, std::string>, Group> groups;
  const auto configured = [](ConfiguredQuantization& config, const std::string& name) {
    const Json* entry = config.find(name).entry;
    return entry == nullptr ? schemes::kFloat : configured_scheme(*entry);
  };
  for (const Linear& m : ours.modules()) {
    const auto other = by_name.find(m.name);
    if (other == by_name.end()) continue;
    const Scheme x = configured(said_a, m.name), y = configured(said_b, m.name);
    if (x == y) continue;
    // lint decides if an engine takes floats for codes, because it knows the engines' lists.
    const bool is_stored_alike = m.format->coded && as_configured(scheme_of(a, m)).format ==
                                                        as_configured(scheme_of(b, *other->second)).format;
    // A config without an entry states nothing. lint reports codes without an entry.
    const bool are_stated = !entry_a.is_null() && !entry_b.is_null();
    Group& group =
        groups[{are_stated && is_stored_alike && x.format != y.format, scheme_label(x), scheme_label(y)}];
    if (group.count++ == 0) group.first = m.name;
  }
  for (const auto& [key, group] : groups) {
    const auto& [counts, x, y] = key;
    const std::string more = group.count > 1 ? fmt::format(" and {} more", group.count - 1) : "";
    found.push_back({"config.json", fmt::format("quantization of {}{}", group.first, more), x, y, counts});
  }
  if (entry_a.is_null() || entry_b.is_null()) return;
  const auto x = has_fp8_cache(a), y = has_fp8_cache(b);
  const auto text = [](bool is_fp8) { return std::string(is_fp8 ? "FP8" : "not quantized"); };
  if (x && y && *x != *y)
    found.push_back({"config.json", "quantization of the KV cache", text(*x), text(*y)});
}

}  // namespace

std::vector<ConfigDifference> compare_configs(const Matrices& ours, const Matrices& theirs) {
  const Checkpoint &a = ours.checkpoint(), &b = theirs.checkpoint();
  std::vector<ConfigDifference> found;
  if (a.config().is_object() && b.config().is_object()) {
    ConfigComparer("config.json", found)
        .compare(without_quantization(a.config()), without_quantization(b.config()), "", true);
    compare_quantization(ours, theirs, found);
  }
  constexpr const char* kGeneration = "generation_config.json";
  const Json x = read_config(a, kGeneration), y = read_config(b, kGeneration);
  if (x.is_object() && y.is_object()) ConfigComparer(kGeneration, found).compare(x, y, "", true);
  return found;
}

}  // namespace twofour
