#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "formats/naming.h"
#include "lib/source/dialects/lookup_machine.h"

// Source: SGLang 0.5.23, srt/layers/quantization/{modelopt_quant,fp8,utils}.py, compressed_tensors/;
// srt/configs/model_config.py.

namespace twofour::lookups {
namespace sglang {
namespace {

using Kind = EngineLayer::Kind;

constexpr const char* kEngine = "SGLang";
constexpr MixedRules kMixedRules = {kEngine, true, false};

constexpr std::string_view kMixed[] = {"FP8",   "FP8_PB_WO", "FP8_BLOCK_SCALES",
                                       "MXFP8", "NVFP4",     "W4A16_NVFP4"};
constexpr std::string_view kSingle[] = {"FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4"};
constexpr std::string_view kGroups[] = {"NVFP4",
                                        "NVFP4 without input scales",
                                        "FP8 with a scale a tensor",
                                        "FP8 with a scale a row",
                                        "FP8 by blocks",
                                        "INT4"};

/// Returns SGLang's name of a layer.
std::string name_of(const EngineLayer& layer) {
  return layer.name.ends_with(".fused_qkv_a_proj") ? layer.name + "_with_mqa" : layer.name;
}

/// Returns a layer's name with and without a language model's prefix.
std::vector<std::string> names_of(const EngineLayer& layer) {
  constexpr std::string_view kModel = "language_model.";
  std::vector<std::string> names = {name_of(layer)};
  if (names[0].starts_with(kModel)) names.push_back(names[0].substr(kModel.size()));
  return names;
}

/// True if `listed` consists of whole parts of a name: "mlp.gate" is in "layers.0.mlp.gate", but not in
/// "mlp.gate_proj".
bool is_path_part(std::string_view listed, std::string_view name) {
  for (size_t at = name.find(listed); at != name.npos; at = name.find(listed, at + 1)) {
    const size_t end = at + listed.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

/// A pattern in ModelOpt's list. It is a regular expression in which dots are literal and asterisks match any
/// text. It must match a whole name, or one whole part between dots.
class Exclusion {
 public:
  explicit Exclusion(const std::string& text) : text_(text), expression_(expression_of(text)) {}

  bool matches(const std::string& name) const {
    const auto is_whole = [&](std::string_view part) { return matches_whole(std::string(part)); };
    return matches_whole(name) || any_part(name, is_whole) || matches_fused(name);
  }

 private:
  static ConfigPattern expression_of(const std::string& text) {
    std::string regex = "re:(?:";
    for (const char c : text) regex += c == '.' ? "\\." : c == '*' ? ".*" : std::string{c};
    return ConfigPattern(text.find_first_of("*?[](){}|+^$\\") == text.npos ? text : regex + ")$");
  }
  bool matches_whole(const std::string& name) const {
    return name == text_ || (expression_.known() && expression_.matches(name));
  }
  /// True if the pattern matches a part of the fused projections of latent attention.
  bool matches_fused(const std::string& name) const {
    const std::string_view tail = leaf_of(text_);
    for (const char* part : {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"}) {
      if (tail == part && leaf_of(name).find(tail) != std::string_view::npos) return true;
    }
    return false;
  }

  std::string text_;
  ConfigPattern expression_;
};

/// The rules for methods "fp8" and "mxfp8". ModelOpt's rules begin with them, too.
constexpr ListRules kNames = {kEngine, is_path_part, false, true};
constexpr ListRules kPatterns = {.engine = kEngine,
                                 .takes = is_path_part,
                                 .takes_experts = true,
                                 .pattern = [](const std::string& text) -> NameTest {
                                   return [one = Exclusion(text)](const std::string& name) {
                                     return one.matches(name);
                                   };
                                 },
                                 .names = names_of,
                                 .experts_by_pattern = true};

/// A layer's group is that of the first target that matches its name; else of its class; else of a target
/// that matches all fused parts.
constexpr GroupRules kGroupRules = {.engine = kEngine,
                                    .name_of = name_of,
                                    .head_class = nullptr,
                                    .experts_class = "FusedMoE",
                                    .class_first = true,
                                    .files_names = false,
                                    .ignores_ends = true,
                                    .needs_a_group = true,
                                    .loaders = {kGroups, kGroups}};

/// Reads a ModelOpt configuration with an algorithm for each module. If none is NVFP4, SGLang treats the
/// checkpoint as another kind.
std::unique_ptr<LoaderLookup> read_mixed(const ModelOptSettings& settings) {
  const LayerMap layers(settings.layers());
  const bool has_nvfp4 = std::any_of(layers.entries().begin(), layers.entries().end(), [](const auto& layer) {
    const std::string algorithm = algorithm_of(*layer.second);
    return algorithm == "NVFP4" || algorithm == "W4A16_NVFP4";
  });
  if (!has_nvfp4) return lookup_by({stop("reads MIXED_PRECISION without NVFP4 as INT4 beside FP8")});
  const auto find = [layers](const EngineLayer& layer) { return find_mixed(layers, kMixedRules, layer); };
  return lookup_by({read_layers({kMixed, kMixed}, find, ModuleList(kPatterns, settings.excluded))});
}

/// Returns the lookup by groups of compressed-tensors.
std::unique_ptr<LoaderLookup> read_groups_of(const Json& config) {
  TargetGroups groups(config);
  if (!groups.all_known()) return nullptr;
  const Json* linear = groups.of_class("Linear");
  const bool takes_all_for_mxfp4 = text_of(config, "format").find("mxfp4") != std::string::npos ||
                                   (linear != nullptr && configured_scheme(*linear) == schemes::kMxfp4);
  const Step read = read_groups(kGroupRules, std::move(groups));
  return lookup_by({[read, takes_all_for_mxfp4](const EngineLayer& layer) {
    const auto found = read(layer);
    return takes_all_for_mxfp4 && layer.kind == Kind::kExperts
               ? LookupResult{{schemes::kMxfp4}, "reads all experts as MXFP4 if one group is"}
               : *found;
  }});
}

/// Makes a step that reads DeepSeek-V4's experts. They are NVFP4 if the configuration states this and does
/// not exclude them. Otherwise they are MXFP4, unless the first expert is in floats or in blocks of FP8.
Step read_experts(const Json& config, Scheme first) {
  using namespace schemes;
  const bool is_fp4 = !is_fp8_blocks(first) && first != kFloat;
  std::optional<ModuleList> excluded;
  if (algorithm_of(config) == "MIXED_PRECISION" && text_of(config, "moe_quant_algo") == "NVFP4" &&
      !member(config, "group_size").is_null())
    excluded.emplace(kPatterns, strings_of(config, "ignore"));
  return [is_fp4, excluded](const EngineLayer& layer) -> std::optional<LookupResult> {
    if (layer.kind != Kind::kExperts) return std::nullopt;
    if (excluded && !excluded->has(layer)) return LookupResult{{kNvfp4}};
    return is_fp4 ? std::optional(LookupResult{{kMxfp4}}) : std::nullopt;
  };
}

/// Makes the steps of "fp8" and "mxfp8". They read all layers except the listed ones, whose names may have
/// the prefix "model." or not.
std::vector<Step> read_listed(Scheme format, const std::vector<std::string>& listed) {
  std::vector<std::string> texts;
  for (const std::string& text : listed) {
    constexpr std::string_view kModel = "model.";
    const std::string base = text.starts_with(kModel) ? text.substr(kModel.size()) : text;
    texts.push_back(base);
    texts.push_back(fmt::format("{}{}", kModel, base));
  }
  return {limit_of(Kind::kHead, "has no loader for FP8 heads"), leave({kNames, std::move(texts)}),
          read_as(format)};
}

}  // namespace
}  // namespace sglang

std::unique_ptr<LoaderLookup> read_sglang(const LoadedConfig& config,
                                          const std::vector<LoadedModule>& modules) {
  const Json& entry = inline_first(config);
  const std::string method = text_of(entry, "quant_method");
  if (method == "fp8" || method == "mxfp8") {
    const auto listed = strings_of_first(entry, {"ignored_layers", "modules_to_not_convert"});
    std::vector<Step> steps =
        sglang::read_listed(method == "fp8" ? configured_scheme(entry) : schemes::kMxfp8, listed);
    if (method == "fp8" && config.deepseek_v4)
      steps.insert(steps.begin(), sglang::read_experts(entry, first_expert(modules)));
    return lookup_by(std::move(steps));
  }
  if (method == "compressed-tensors") return sglang::read_groups_of(entry);
  if (!is_modelopt(entry)) return nullptr;
  const ModelOptSettings settings(entry, {"ignore", "modules_to_not_convert", "exclude_modules"});
  if (settings.algorithm == "MXFP8")
    return lookup_by(sglang::read_listed(schemes::kMxfp8, settings.excluded));
  if (settings.algorithm == "MIXED_PRECISION") return sglang::read_mixed(settings);
  return lookup_by({leave({sglang::kPatterns, settings.excluded}),
                    read_algorithm({sglang::kSingle, sglang::kSingle}, settings.algorithm,
                                   configured_scheme({{"quant_algo", settings.algorithm}}))});
}

}  // namespace twofour::lookups
