#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/base/names/pattern.h"
#include "lib/source/dialects/lookup_machine.h"

// Source: vLLM 0.33.0, model_executor/layers/quantization/{modelopt,fp8}.py, compressed_tensors/, utils/;
// models/deepseek_v4/quant_config.py.

namespace twofour::lookups {
namespace vllm {
namespace {

using Kind = EngineLayer::Kind;

constexpr const char* kEngine = "vLLM";
constexpr MixedRules kMixed = {kEngine, false, true};

constexpr std::string_view kLinears[] = {
    "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8"};
constexpr std::string_view kMixedExperts[] = {"FP8",   "FP8_PB_WO",   "FP8_BLOCK_SCALES",
                                              "NVFP4", "W4A16_NVFP4", "MXFP8"};
constexpr std::string_view kSingleExperts[] = {"FP8", "NVFP4", "W4A16_NVFP4", "MXFP8"};
constexpr std::string_view kGroups[] = {"NVFP4",
                                        "NVFP4 without input scales",
                                        "FP8 with a scale a tensor",
                                        "FP8 with a scale a row",
                                        "FP8 by blocks",
                                        "MXFP8",
                                        "MXFP4",
                                        "INT4"};

bool is_equal(std::string_view text, std::string_view name) { return text == name; }
std::string own_name(const EngineLayer& layer) { return layer.name; }
std::vector<std::string> own_names(const EngineLayer& layer) { return {layer.name}; }

/// Makes the test of a pattern, which matches as a substring or as a glob.
NameTest pattern_of(const std::string& text) {
  if (text.starts_with("re:"))
    return [text](const std::string& name) { return name.find(text) != name.npos; };
  return [text, glob = NamePattern(text)](const std::string& name) {
    return name.find(text) != name.npos || glob.matches(name);
  };
}

/// The rules for all methods except ModelOpt's. Source: utils/quant_utils.py, is_layer_skipped; for Ling's
/// class, with match_mode "suffix".
constexpr ListRules kNames = {kEngine, is_equal, true, true};
constexpr ListRules kEnds = {
    kEngine, [](std::string_view text, std::string_view name) { return ends_in(name, text); }, true};
/// The rules for ModelOpt. They try names, then substrings of names, then globs. For fused linears,
/// substrings and globs are compared with the fused layer's name.
constexpr ListRules kPatterns = {kEngine, is_equal, true, true, pattern_of, own_names};

/// A layer's group is that of the first target that matches its name; else of a target that matches all fused
/// parts; else of its class.
constexpr GroupRules kGroupRules = {.engine = kEngine,
                                    .name_of = own_name,
                                    .head_class = "ParallelLMHead",
                                    .experts_class = "RoutedExperts",
                                    .class_first = false,
                                    .files_names = true,
                                    .ignores_ends = false,
                                    .needs_a_group = false,
                                    .loaders = {kGroups, kGroups}};

/// Returns a lookup that reads all layers by one algorithm, except excluded ones.
std::unique_ptr<LoaderLookup> read_single(std::vector<std::string> excluded, const std::string& algorithm) {
  const Step leave_towers = [](const EngineLayer& layer) -> std::optional<LookupResult> {
    for (const char* part : {"vision_tower", "vision_model", "vit_large_projector"}) {
      if (layer.name.find(part) != layer.name.npos) return LookupResult{};
    }
    return std::nullopt;
  };
  return lookup_by({leave({kPatterns, std::move(excluded)}), leave_towers,
                    read_algorithm({kLinears, kSingleExperts}, algorithm,
                                   configured_scheme({{"quant_algo", algorithm}}))});
}

/// Reads a ModelOpt configuration with an algorithm for each module. A module that is not listed is not
/// quantized.
std::unique_ptr<LoaderLookup> read_mixed(const ModelOptSettings& settings) {
  const LayerMap layers(settings.layers());
  if (layers.empty()) throw Error("quantized_layers: expected modules, which vLLM requires, found none");
  std::set<std::pair<int64_t, int64_t>> blocks;
  for (const auto& [name, entry] : layers.entries()) {
    const std::string algorithm = algorithm_of(*entry);
    if (algorithm != "FP8_PB_WO" && algorithm != "FP8_BLOCK_SCALES") continue;
    const Scheme format = configured_scheme(*entry);
    blocks.insert({format.rows, format.cols});
  }
  if (blocks.size() > 1)
    throw Error(fmt::format(
        "quantized_layers: expected one size of FP8 blocks, which vLLM requires, found {}", blocks.size()));
  return lookup_by({leave({kPatterns, settings.excluded}),
                    read_layers({kLinears, kMixedExperts}, [layers](const EngineLayer& layer) {
                      return find_mixed(layers, kMixed, layer);
                    })});
}

/// Makes a step that reads DeepSeek-V4's experts by expert_dtype of config.json.
Step read_experts(const LoadedConfig& config) {
  const std::string dtype = config.expert_dtype.empty() ? "fp4" : config.expert_dtype;
  if (dtype != "fp4" && dtype != "fp8")
    throw Error(fmt::format("expert_dtype: expected fp4 or fp8, which vLLM supports, found {}", dtype));
  const bool nvfp4 = text_of(config.quantization_config, "moe_quant_algo") == "NVFP4";
  const Scheme format = nvfp4 ? schemes::kNvfp4 : schemes::kMxfp4;
  return [dtype, format](const EngineLayer& layer) -> std::optional<LookupResult> {
    if (layer.kind != Kind::kExperts || dtype == "fp8") return std::nullopt;
    if (!is_in_mtp(layer.name)) return LookupResult{format};
    return LookupResult{
        format, fmt::format("reads the experts of drafts as {}, like all others", scheme_label(format))};
  };
}

/// Reads "fp8". All layers have this format, except listed ones.
std::unique_ptr<LoaderLookup> read_fp8(const Json& entry, const LoadedConfig& config) {
  std::vector<std::string> listed = strings_of(entry, "ignored_layers");
  if (listed.empty()) listed = strings_of(entry, "modules_to_not_convert");
  const bool ends = config.lists_ends && !config.deepseek_v4;
  std::vector<Step> steps = {limit_of(Kind::kHead, "has no loader for FP8 heads"),
                             leave({ends ? kEnds : kNames, std::move(listed)})};
  if (config.deepseek_v4) steps.push_back(read_experts(config));
  steps.push_back(read_as(configured_scheme(entry)));
  return lookup_by(std::move(steps));
}

/// Returns the algorithm of all modules. NVFP4 is for weights alone if no group has activations.
std::string single_algorithm(const ModelOptSettings& settings, const Json& config) {
  const bool nvfp4 = settings.algorithm == "NVFP4";
  return nvfp4 && are_for_weights_alone(member(config, "config_groups")) ? "W4A16_NVFP4" : settings.algorithm;
}

/// Returns the first of `stated` that none of the lists has. Empty if there is none.
std::string first_without(const std::vector<std::string>& stated,
                          std::initializer_list<std::span<const std::string_view>> lists) {
  for (const std::string& format : stated) {
    const bool is_loaded = std::any_of(lists.begin(), lists.end(), [&](const auto& list) {
      return std::find(list.begin(), list.end(), format) != list.end();
    });
    if (!is_loaded && !format.empty()) return format;
  }
  return {};
}

/// Returns the formats of the groups of a compressed-tensors config, except those that no rule here names.
std::vector<std::string> formats_of_groups(const Json& entry) {
  std::vector<std::string> formats;
  const Json& groups = member(entry, "config_groups");
  if (!groups.is_object()) return formats;
  for (const auto& [name, group] : groups.items()) {
    const Json& weights = member(group, "weights");
    const Scheme format = configured_scheme(group);
    if (member(weights, "num_bits") == Json(6) && text_of(weights, "type") == "float") {
      formats.emplace_back(WeightFormat(WeightFormat::kMxfp6)->name);
    } else if (format != schemes::kOther && format.format->coded) {
      formats.push_back(scheme_label(format, false));
    }
  }
  return formats;
}

}  // namespace
}  // namespace vllm

std::unique_ptr<LoaderLookup> read_vllm(const LoadedConfig& config, const std::vector<LoadedModule>&) {
  const Json& entry = inline_first(config);
  const std::string method = text_of(entry, "quant_method");
  if (method == "fp8") return vllm::read_fp8(config.deepseek_v4 ? config.quantization_config : entry, config);
  if (method == "mxfp8") return vllm::read_single(strings_of(entry, "ignored_layers"), "MXFP8");
  if (method == "compressed-tensors") {
    TargetGroups groups(entry);
    return groups.all_known() ? lookup_by({read_groups(vllm::kGroupRules, std::move(groups))}) : nullptr;
  }
  if (!is_modelopt(entry)) return nullptr;
  const ModelOptSettings settings(entry, {"ignore", "exclude_modules"});
  if (settings.algorithm == "MIXED_PRECISION") return vllm::read_mixed(settings);
  return vllm::read_single(settings.excluded, vllm::single_algorithm(settings, entry));
}

}  // namespace twofour::lookups

namespace twofour {

std::string find_unloaded_by_vllm(const Json& quantization_config) {
  using namespace lookups;
  if (text_of(quantization_config, "quant_method") == "compressed-tensors")
    return vllm::first_without(vllm::formats_of_groups(quantization_config), {vllm::kGroups});
  if (!is_modelopt(quantization_config)) return {};
  const ModelOptSettings settings(quantization_config, {});
  if (settings.algorithm != "MIXED_PRECISION")
    return vllm::first_without({vllm::single_algorithm(settings, quantization_config)},
                               {vllm::kLinears, vllm::kSingleExperts});
  std::vector<std::string> stated;
  if (settings.layers().is_object()) {
    for (const auto& [name, entry] : settings.layers().items()) stated.push_back(algorithm_of(entry));
  }
  return vllm::first_without(stated, {vllm::kLinears, vllm::kMixedExperts});
}

}  // namespace twofour
