#include "lib/source/checkpoint/config_terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "lib/base/names/lookup_parts.h"
#include "lib/source/checkpoint/model_config.h"

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

bool is_transform_key(const std::string& key) {
  return has_any(lower(key), {"transform_config", "rotate", "rotation", "hadamard", "spinquant", "quarot"});
}

/// True for the keys of Quark's lists of steps before and during quantization.
bool is_algorithm_key(const std::string& key) {
  return key == "algo_config" || key == "pre_quant_opt_config";
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

class Search {
 public:
  explicit Search(std::span<const TensorInfo> tensors) : tensors_(tensors) {}

  void look(const std::string& file, const std::string& key, const Json& value) {
    if (value.is_array()) {
      for (size_t i = 0; i < value.size(); ++i) look(file, fmt::format("{}[{}]", key, i), value[i]);
    }
    if (!value.is_object()) return;
    for (const auto& [name, inner] : value.items()) {
      const std::string place = key.empty() ? name : fmt::format("{}.{}", key, name);
      if (is_algorithm_key(name)) {
        look_at_steps(file, place, inner);
      } else if (is_transform_key(name)) {
        add_transform(file, place, inner);
      } else if (name == "quant_algo") {
        look_at_algorithm(file, place, lookups::algorithm_of(value));
      } else {
        look(file, place, inner);
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
    found.push_back({file, place,
                     fmt::format("expected an algorithm without {}, as no tensor is called so, found {}",
                                 part, json_quote_short(algorithm))});
  }

  const std::span<const TensorInfo> tensors_;
};

}  // namespace

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
  search.look("hf_quant_config.json", "", hf_quant_config);
  return std::move(search.found);
}

std::vector<ConfigTerm> find_config_terms(const Checkpoint& c, std::span<const TensorInfo> tensors) {
  return find_config_terms(c.config_of_values(), c.hf_quant_config_of_values(), tensors);
}

std::string text_of(const Checkpoint& c, const ConfigTerm& term) {
  return fmt::format("{}: {}: {}", (c.path() / term.file).string(), term.key, term.problem);
}

}  // namespace twofour
