#pragma once
#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/lint/lint.h"
#include "lib/recipe/selection/input_scales.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

/// Checkpoints with input scales, and rules that give them.
namespace input_scale_model {

using namespace twofour;

/// Multipliers by module; 0: there is no input scale.
using Multipliers = std::map<std::string, float>;

inline const std::string kLayer = "model.layers.0.", kExperts = kLayer + "mlp.experts.";

inline void add_scalar(Tensors& to, const std::string& name, float value, const std::vector<int64_t>& shape) {
  std::vector<uint8_t> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  to.push_back({name, DType::kF32, shape, bytes});
}

inline void add_input_scale(Tensors& to, const std::string& dialect, const std::string& module,
                            float multiplier) {
  if (multiplier == 0) return;
  if (dialect == "modelopt")
    add_scalar(to, module + ".input_scale", multiplier, {});
  else
    add_scalar(to, module + ".input_global_scale", 1 / multiplier, {1});
}

inline Json config_of(const std::string& dialect, bool with_scales, const char* left = "lm_head") {
  Json entry;
  if (dialect == "modelopt") {
    entry = {{"quant_method", "modelopt"},
             {"quant_algo", with_scales ? "NVFP4" : "W4A16_NVFP4"},
             {"group_size", 16},
             {"ignore", {left}}};
  } else {
    const Json four = {{"num_bits", 4},
                       {"type", "float"},
                       {"strategy", "tensor_group"},
                       {"group_size", 16},
                       {"symmetric", true}};
    Json inputs = four, weights = four;
    inputs["dynamic"] = "local";
    weights["dynamic"] = false;
    entry = {{"quant_method", "compressed-tensors"},
             {"format", "nvfp4-pack-quantized"},
             {"ignore", {left}},
             {"config_groups",
              {{"group_0",
                {{"targets", {"Linear"}},
                 {"weights", weights},
                 {"input_activations", with_scales ? inputs : Json(nullptr)}}}}}};
  }
  return {{"model_type", "qwen3_moe"},
          {"num_hidden_layers", 1},
          {"num_experts", 3},
          {"quantization_config", entry}};
}

/// Three experts and an attention in NVFP4, with these input scales, and a head in BF16.
inline Tensors nvfp4_tensors(const std::string& dialect, const Multipliers& scales) {
  Tensors t;
  unsigned seed = 5;
  for (const auto& [module, multiplier] : scales) {
    const bool is_down = module.ends_with("down_proj");
    const Nvfp4Matrix m = random_matrix(is_down ? 32 : 48, is_down ? 48 : 32, ++seed);
    dialect == "modelopt" ? add_modelopt(t, module, m) : add_compressed_tensors(t, module, m);
    add_input_scale(t, dialect, module, multiplier);
  }
  add_floats(t, "lm_head", random_floats(32, 32, 2));
  return t;
}

/// Powers of two, so that reciprocals are exact. `spare` has none.
inline Multipliers source_scales(const std::string& spare = {}) {
  Multipliers all;
  float next = 1.0f / 64;
  for (const char* e : {"0.", "1.", "2."}) {
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) {
      const std::string name = kExperts + e + leaf;
      all[name] = (next *= 2);
    }
  }
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"}) all[kLayer + "self_attn." + leaf] = 0.125f;
  for (auto& [name, scale] : all) {
    if (!spare.empty() && name.find(spare) != name.npos) scale = 0;
  }
  return all;
}

inline Recipe keep_with(const std::string& dialect, const std::string& words, bool one_a_layer = false) {
  Rule rule;
  rule.to = "keep";
  rule.selection.from_default = false;
  rule.selection.also = parse_patterns({"*"});
  rule.input_scale = words;
  rule.one_input_scale_a_layer = one_a_layer;
  Recipe recipe(rule);
  recipe.dialect = dialect;
  return recipe;
}

inline Recipe quantize_with(const std::string& dialect, const std::string& words, bool one_a_layer = false) {
  Rule rule;
  rule.to = "quantize";
  rule.dialect = dialect;
  rule.input_scale = words;
  rule.one_input_scale_a_layer = one_a_layer;
  return Recipe(rule);
}

inline FixedGlobalScales amax_of(const Multipliers& scales) {
  FixedGlobalScales given;
  for (const auto& [name, scale] : scales)
    given.scales.push_back({name, std::bit_cast<uint32_t>(scale * 2688)});
  given.sort();
  return given;
}

/// Converts, proves every byte, and lints what came out.
inline void convert_with(const Scratch& scratch, const Recipe& recipe, const char* from = "a",
                         const char* to = "b") {
  const Checkpoint source = Checkpoint::open(scratch / from);
  std::filesystem::remove_all(scratch / to);
  Progress progress;
  convert(source, make_plan(source, recipe), scratch / to, {}, progress);
  const ValidateReport report = validate_from(scratch / from, scratch / to);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
  const LintReport found = lint(scratch / to, {}, progress);
  for (const LintFinding& f : found.findings) {
    const std::string id = lint_rules()[f.rule].id;
    const bool about_scales = id == "missing-input-scale" || id == "unequal-input-scales" ||
                              id == "bad-input-scale" || id.starts_with("config-");
    CHECK_MESSAGE(!about_scales, id << ": " << f.where() << ": " << f.message);
  }
}

inline std::string refusal(const Scratch& scratch, const Recipe& recipe) {
  const Checkpoint source = Checkpoint::open(scratch / "a");
  return message_of([&] { make_plan(source, recipe); });
}

/// What a checkpoint stores, as multipliers; types and shapes are the dialect's.
inline Multipliers stored_scales(const std::filesystem::path& path, const std::string& dialect,
                                 const Multipliers& modules) {
  const bool divides = dialect == "compressed-tensors";
  const ReadTensors tensors = read_tensors(path);
  Multipliers found;
  size_t count = 0;
  for (const auto& [name, scale] : modules) {
    const auto at = tensors.find(name + (divides ? ".input_global_scale" : ".input_scale"));
    found[name] = 0;
    if (at == tensors.end()) continue;
    ++count;
    CHECK(at->second.dtype == DType::kF32);
    CHECK(at->second.shape == (divides ? std::vector<int64_t>{1} : std::vector<int64_t>{}));
    const float value = at->second.as<float>().at(0);
    found[name] = divides ? 1 / value : value;
  }
  for (const auto& [name, tensor] : tensors) {
    if (name.ends_with(".input_scale") || name.ends_with(".input_global_scale")) --count;
  }
  CHECK(count == 0);  // no others
  return found;
}

/// Whether the configuration, of one format, says of activations what the tensors do.
inline void check_config(const std::filesystem::path& path, const std::string& dialect,
                         const Multipliers& scales) {
  const bool with_scales = scales.begin()->second > 0;
  const auto files = read_tree(path);
  const Json entry = Json::parse(files.at("config.json")).at("quantization_config");
  if (dialect == "modelopt") {
    const char* algorithm = with_scales ? "NVFP4" : "W4A16_NVFP4";
    CHECK(entry.at("quant_algo") == algorithm);
    CHECK(Json::parse(files.at("hf_quant_config.json")).at("quantization").at("quant_algo") == algorithm);
  } else {
    const Json group = entry.at("config_groups").at("group_0");
    CHECK((group.contains("input_activations") && group.at("input_activations").is_object()) == with_scales);
  }
}

/// What engines fuse shares its largest scale.
inline Multipliers fused(Multipliers scales) {
  const auto share = [&](const std::vector<std::string>& names) {
    float most = 0;
    for (const std::string& name : names) most = std::max(most, scales.at(name));
    for (const std::string& name : names) scales[name] = most;
  };
  for (const char* e : {"0.", "1.", "2."}) share({kExperts + e + "gate_proj", kExperts + e + "up_proj"});
  const std::string attention = kLayer + "self_attn.";
  share({attention + "q_proj", attention + "k_proj", attention + "v_proj"});
  return scales;
}

/// Experts of the layer share the largest of gate and up, and of down.
inline Multipliers one_a_layer(Multipliers scales) {
  float gate_up = 0, down = 0;
  for (const auto& [name, scale] : scales) {
    if (name.find("experts") == name.npos) continue;
    float& most = name.ends_with("down_proj") ? down : gate_up;
    most = std::max(most, scale);
  }
  for (auto& [name, scale] : scales) {
    if (name.find("experts") != name.npos) scale = name.ends_with("down_proj") ? down : gate_up;
  }
  return scales;
}

inline Multipliers all_of(float scale) {
  Multipliers all = source_scales();
  for (auto& [name, own] : all) own = scale;
  return all;
}

const char* const kDialects[] = {"modelopt", "compressed-tensors"};

}  // namespace input_scale_model
