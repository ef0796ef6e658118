#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "formats/module_names.h"
#include "formats/naming.h"
#include "lib/base/names/pattern.h"
#include "lib/source/dialects/lookup_machine.h"

// Source: TensorRT-LLM of late 2026, _torch/model_config.py, _torch/models/modeling_utils.py,
// models/{quant_config_utils,modeling_utils}.py, quantization/{mode,modelopt_config}.py.

namespace twofour::lookups {
namespace tensorrt_llm {
namespace {

using Kind = EngineLayer::Kind;

/// The algorithms that TensorRT-LLM knows. It fails at any other name.
constexpr std::string_view kAlgorithms[] = {"FP8",
                                            "FP8_PER_CHANNEL_PER_TOKEN",
                                            "FP8_BLOCK_SCALES",
                                            "NVFP4",
                                            "W4A16_NVFP4",
                                            "W4A8_NVFP4_FP8",
                                            "MXFP8",
                                            "W4A8_MXFP4_FP8",
                                            "W4A8_MXFP4_MXFP8",
                                            "W4A16_MXFP4",
                                            "W4A16_AWQ",
                                            "W4A8_AWQ",
                                            "W4A16_GPTQ",
                                            "W8A16",
                                            "W4A16",
                                            "INT8",
                                            "W8A8_SQ_PER_CHANNEL"};
constexpr std::string_view kExperts[] = {
    "FP8",         "FP8_BLOCK_SCALES", "NVFP4",          "W4A16_NVFP4",
    "MXFP8",       "W4A8_NVFP4_FP8",   "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8",
    "W4A16_MXFP4", "W4A8_AWQ"};

bool is_known(std::string_view algorithm) {
  return std::find(std::begin(kAlgorithms), std::end(kAlgorithms), algorithm) != std::end(kAlgorithms);
}

/// Returns TensorRT-LLM's name of a layer. Fused projections of latent attention have the name of one part.
std::string name_of(const EngineLayer& layer) {
  constexpr std::string_view kFused = ".fused_qkv_a_proj";
  if (!layer.name.ends_with(kFused)) return layer.name;
  return layer.name.substr(0, layer.name.size() - kFused.size()) + ".kv_a_proj_with_mqa";
}

/// Makes the test of a pattern. It must match the whole name of a module, or of a module above it.
NameTest pattern_of(const std::string& text) {
  if (text.starts_with("re:")) {
    const ConfigPattern whole(fmt::format("re:(?:{})$", text.substr(3)));
    if (!whole.known()) return {};
    return [whole](const std::string& name) {
      return any_above(name, [&](std::string_view own) { return whole.matches(own); });
    };
  }
  std::vector<NamePattern> globs = {NamePattern(text)};
  if (text.ends_with(".*")) globs.emplace_back(text.substr(0, text.size() - 2));
  return [globs](const std::string& name) {
    return any_above(name, [&](std::string_view own) { return any_matches(globs, own); });
  };
}

/// Returns the names of a layer that are compared with exclusions. An excluded linear excludes its fused
/// layer, too.
std::vector<std::string> names_of(const EngineLayer& layer) {
  std::vector<std::string> names = {name_of(layer)};
  if (layer.kind == Kind::kFused && names[0] == layer.name)
    names.insert(names.end(), layer.parts.begin(), layer.parts.end());
  return names;
}

constexpr ListRules kPatterns = {
    .engine = "TensorRT-LLM", .takes = nullptr, .pattern = pattern_of, .names = names_of};

/// Returns a lookup by `steps` for all layers except heads. For heads it returns a limit.
std::unique_ptr<LoaderLookup> lookup_beside_heads(std::vector<Step> steps) {
  steps.insert(steps.begin(), limit_of(Kind::kHead, "has no loader for heads in all of its versions"));
  return lookup_by(std::move(steps));
}

/// Returns a lookup that reads all layers in one format, except excluded ones.
std::unique_ptr<LoaderLookup> read_single(Scheme format, std::string algorithm, ModuleList excluded) {
  return lookup_beside_heads(
      {leave(std::move(excluded)), read_algorithm({kAlgorithms, kExperts}, std::move(algorithm), format)});
}

/// Returns a layer's entry. For experts, it is the entry of the first name that contains the block's name.
/// For fused linears, it is that of the first name that contains the first linear's name. Any other layer
/// must have the entry's name.
const Json* find_layer(const LayerMap& layers, const EngineLayer& layer) {
  if (layer.kind == Kind::kExperts) return layers.first_with(layer.name);
  if (layer.kind != Kind::kFused ||
      !(layer.name.ends_with(".qkv_proj") || layer.name.ends_with(".gate_up_proj")))
    return layers.find(name_of(layer));
  const std::string above(module_of(layer.name));
  if (layer.name.ends_with(".qkv_proj")) return layers.first_with(above + ".q_proj");
  const Json* gate = layers.first_with(above + ".gate_proj");
  return gate != nullptr ? gate : layers.first_with(above + ".gate_up_proj");
}

/// True if no class of TensorRT-LLM fuses linears with these names. Examples are w1 and w3 of LFM2 outside of
/// experts.
bool is_foreign(const EngineLayer& layer) {
  return layer.kind == Kind::kFused && layer.name.ends_with(".gate_up_proj") && !layer.parts.empty() &&
         layer.parts[0].ends_with(".w1");
}

/// Returns a lookup with an algorithm for each module. TensorRT-LLM has no class for linears with foreign
/// names.
std::unique_ptr<LoaderLookup> read_layers_of(std::function<const Json*(const EngineLayer&)> find,
                                             std::optional<ModuleList> excluded) {
  const Step refuse_foreign = [](const EngineLayer& layer) {
    return is_foreign(layer) ? std::optional(LookupResult{{}, "has no class with linears of these names"})
                             : std::nullopt;
  };
  return lookup_beside_heads(
      {refuse_foreign, read_layers({kAlgorithms, kExperts}, std::move(find), std::move(excluded))});
}

/// Returns the algorithm of a group of compressed-tensors; empty: TensorRT-LLM fails at the group.
std::string algorithm_of_group(const Json& group) {
  using namespace schemes;
  const Scheme format = configured_scheme(group);
  const std::string inputs = text_of(member(group, "input_activations"), "strategy");
  const Json& input_group = member(member(group, "input_activations"), "group_size");
  if (format == kMxfp4) return "W4A16_MXFP4";
  if (format == kNvfp4 && inputs == "tensor_group") return "NVFP4";
  if (format == kFp8Row && inputs == "token") return "FP8_PER_CHANNEL_PER_TOKEN";
  if (is_fp8_blocks(format) && inputs == "group" && input_group == 128) return "FP8_BLOCK_SCALES";
  return "";
}

/// Reads several groups of compressed-tensors. Exact targets go before expressions, and both are in the order
/// of their text. TensorRT-LLM makes a map of modules from the groups and looks layers up in it as in
/// ModelOpt's map.
std::unique_ptr<LoaderLookup> read_map_of(const TargetGroups& groups,
                                          const std::vector<LoadedModule>& modules) {
  std::vector<size_t> order(groups.groups.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto& texts = groups.targets.texts();
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(texts[a].find("re:") != std::string::npos, texts[a]) <
           std::pair(texts[b].find("re:") != std::string::npos, texts[b]);
  });
  TargetList sorted;
  for (const size_t i : order) sorted.add(texts[i]);
  const auto map = std::make_shared<Json>(Json::object());
  for (const LoadedModule& m : modules) {
    const auto at = sorted.find(m.name);
    if (!at || groups.ignored.matches(m.name)) continue;
    const Json& group = *groups.groups[order[*at]];
    Json& entry = (*map)[m.name] = {{"quant_algo", algorithm_of_group(group)}};
    if (const Scheme format = configured_scheme(group); format.rows > 0) entry["group_size"] = format.rows;
  }
  return read_layers_of(
      [map, layers = LayerMap(*map)](const EngineLayer& layer) { return find_layer(layers, layer); },
      std::nullopt);
}

/// Returns the reason why TensorRT-LLM fails at these groups; empty: it does not fail.
std::string stop_of(const TargetGroups& groups) {
  for (const Json* group : groups.all) {
    if (algorithm_of_group(*group).empty())
      return fmt::format("stops at a group of {}", scheme_label(configured_scheme(*group), false));
  }
  for (const std::string& text : groups.targets.texts()) {
    // A target without dots is the name of a class.
    const bool is_class = !text.starts_with("re:") && text.find('.') == text.npos && text != "lm_head";
    if (groups.all.size() > 1 && is_class)
      return fmt::format("stops at the target {} of several groups, since it knows no classes", text);
  }
  return "";
}

std::unique_ptr<LoaderLookup> read_target_groups(const Json& config,
                                                 const std::vector<LoadedModule>& modules) {
  const TargetGroups groups(config);
  if (!groups.all_known() || groups.all.empty()) return nullptr;
  if (std::string why = stop_of(groups); !why.empty()) return lookup_by({stop(std::move(why))});
  if (groups.all.size() > 1) return read_map_of(groups, modules);
  std::vector<std::string> texts = strings_of(config, "modules_to_not_convert");
  for (const std::string& text : groups.ignored.texts()) texts.push_back(text);
  ModuleList excluded(kPatterns, std::move(texts));
  if (!excluded.all_known()) return nullptr;
  return read_single(configured_scheme(*groups.all[0]), algorithm_of_group(*groups.all[0]),
                     std::move(excluded));
}

/// Reads "fp8" in blocks of 128 x 128. All layers have this format, except listed ones and those that
/// TensorRT-LLM splits itself.
std::unique_ptr<LoaderLookup> read_fp8(const Json& config) {
  const Scheme format = configured_scheme(config);
  if (is_fp8_blocks(format) && !(format.rows == 128 && format.cols == 128))
    return lookup_by({stop("stops at FP8 blocks of another size than 128 x 128")});
  const Step take_apart =
      [list = ModuleList(kPatterns, {"*kv_b_proj*", "*k_b_proj*", "*eh_proj"})](const EngineLayer& layer) {
        return list.has({Kind::kLinear, layer.name}) ? std::optional(LookupResult{.takes_any = true})
                                                     : std::nullopt;
      };
  ModuleList listed(kPatterns,
                    strings_of_all(config, {"modules_to_not_convert", "ignored_layers", "ignore"}));
  return lookup_beside_heads({take_apart, leave(std::move(listed)), read_as(format)});
}

/// Reads DeepSeek-V4's routed experts in the format of the first expert's weights. Drafts are read only if
/// they are served.
std::unique_ptr<LoaderLookup> read_deepseek_v4(std::unique_ptr<LoaderLookup> rest, Scheme first) {
  using namespace schemes;
  const Step read_experts = [first](const EngineLayer& layer) -> std::optional<LookupResult> {
    if (layer.kind != Kind::kExperts || (first != kMxfp4 && first != kNvfp4)) return std::nullopt;
    if (!is_in_mtp(layer.name)) return LookupResult{first};
    return LookupResult{
        first, fmt::format("reads the experts of drafts as {}, like the first", scheme_label(first))};
  };
  const Step read_rest = [rest = std::shared_ptr<LoaderLookup>(std::move(rest))](const EngineLayer& layer) {
    LookupResult found = rest ? rest->find(layer) : LookupResult{};
    if (found.limit.empty()) found.limit = "knows DeepSeek-V4's linears by an FP8 configuration alone";
    return found;
  };
  return lookup_by({read_experts, read_rest});
}

std::unique_ptr<LoaderLookup> read_modelopt(const Json& config) {
  const ModelOptSettings settings(config, {"ignore"});
  const std::string configured = text_of(settings.settings, "quant_algo");
  // TensorRT-LLM knows this name alone in lower case.
  const std::string algorithm = configured == "fp8_pb_wo" ? "FP8_BLOCK_SCALES" : configured;
  const auto stop_at = [](const std::string& name) {
    return lookup_by({stop(fmt::format("stops at quant_algo {}", name))});
  };
  ModuleList excluded(kPatterns, settings.excluded);
  if (algorithm == "MIXED_PRECISION") {
    const LayerMap layers(settings.layers());
    for (const auto& [name, entry] : layers.entries()) {
      const std::string one = text_of(*entry, "quant_algo");
      if (!is_known(one)) return stop_at(one);
    }
    return read_layers_of([layers](const EngineLayer& layer) { return find_layer(layers, layer); },
                          std::move(excluded));
  }
  if (!is_known(algorithm)) return stop_at(algorithm);
  return read_single(configured_scheme({{"quant_algo", algorithm}}), algorithm, std::move(excluded));
}

std::unique_ptr<LoaderLookup> read_entry(const Json& entry, const std::vector<LoadedModule>& modules) {
  if (is_modelopt(entry)) return read_modelopt(entry);
  const std::string method = text_of(entry, "quant_method");
  if (method == "compressed-tensors") return read_target_groups(entry, modules);
  if (method == "fp8") return read_fp8(entry);
  if (method != "mxfp8") return nullptr;
  return read_single({schemes::kMxfp8}, "MXFP8",
                     {kPatterns, strings_of_all(entry, {"modules_to_not_convert", "ignored_layers"})});
}

}  // namespace
}  // namespace tensorrt_llm

// TensorRT-LLM reads hf_quant_config.json if it names an algorithm, otherwise config.json.
std::unique_ptr<LoaderLookup> read_tensorrt_llm(const LoadedConfig& config,
                                                const std::vector<LoadedModule>& modules) {
  if (config.lists_ends) return nullptr;  // TensorRT-LLM has no class for Ling 3
  const bool by_file = config.hf_quant_config.is_object() &&
                       !ModelOptSettings(config.hf_quant_config, {"ignore"}).algorithm.empty();
  auto rest =
      tensorrt_llm::read_entry(by_file ? config.hf_quant_config : config.quantization_config, modules);
  if (!config.deepseek_v4) return rest;
  return tensorrt_llm::read_deepseek_v4(std::move(rest), first_expert(modules));
}

}  // namespace twofour::lookups
