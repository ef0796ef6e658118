#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/dialects/loader_rows.h"
#include "lib/names/pattern.h"

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

/// Names alone, and for experts names that have theirs in them: what lists of any method begin with.
bool is_skipped(const std::vector<std::string>& listed, const EngineLayer& layer) {
  const auto has = [&](const std::string& name) {
    return std::find(listed.begin(), listed.end(), name) != listed.end();
  };
  if (layer.kind == Kind::kFused) {
    if (has(layer.name)) return true;
    std::vector<bool> parts;
    for (const std::string& part : layer.parts) parts.push_back(has(part));
    return all_or_none(parts, layer, kEngine);
  }
  if (layer.name.find("experts") == layer.name.npos) return has(layer.name);
  return std::any_of(listed.begin(), listed.end(), [&](const std::string& text) {
    return text.find("experts") != text.npos && text.find(layer.name) != text.npos;
  });
}

/// ModelOpt's patterns: names, then names within names, then globs. Of fused linears the two last see the
/// name of the whole.
class Exclusions {
 public:
  explicit Exclusions(std::vector<std::string> texts) : texts_(std::move(texts)) {
    for (const std::string& text : texts_) {
      if (!text.starts_with("re:")) globs_.emplace_back(text);
    }
  }
  bool has(const EngineLayer& layer) const {
    if (is_skipped(texts_, layer)) return true;
    const bool within = std::any_of(texts_.begin(), texts_.end(), [&](const std::string& text) {
      return text != layer.name && layer.name.find(text) != layer.name.npos;
    });
    return within || any_matches(globs_, layer.name);
  }

 private:
  std::vector<std::string> texts_;
  std::vector<NamePattern> globs_;
};

/// One algorithm for all that is not excluded.
class Single : public LoaderLookup {
 public:
  Single(std::vector<std::string> excluded, std::string algorithm)
      : excluded_(std::move(excluded)), algorithm_(std::move(algorithm)) {}
  LookupResult find(const EngineLayer& layer) const override {
    if (excluded_.has(layer)) return {};
    for (const char* part : {"vision_tower", "vision_model", "vit_large_projector"}) {
      if (layer.name.find(part) != layer.name.npos) return {};
    }
    return load({kLinears, kSingleExperts}, layer, format_of_entry({{"quant_algo", algorithm_}}), algorithm_);
  }

 private:
  Exclusions excluded_;
  std::string algorithm_;
};

/// An algorithm a module: what is not listed is not quantized.
class Mixed : public LoaderLookup {
 public:
  Mixed(std::vector<std::string> excluded, const Json& layers)
      : excluded_(std::move(excluded)), layers_(layers) {
    if (layers_.empty()) throw Error("quantized_layers: expected modules, which vLLM demands, found none");
    std::set<std::pair<int64_t, int64_t>> blocks;
    for (const auto& [name, entry] : layers_.entries()) {
      const std::string algorithm = algorithm_of(*entry);
      if (algorithm != "FP8_PB_WO" && algorithm != "FP8_BLOCK_SCALES") continue;
      const NamedFormat format = format_of_entry(*entry);
      blocks.insert({format.rows, format.cols});
    }
    if (blocks.size() > 1)
      throw Error(fmt::format(
          "quantized_layers: expected one size of FP8 blocks, which vLLM demands, found {}", blocks.size()));
  }
  LookupResult find(const EngineLayer& layer) const override {
    if (excluded_.has(layer)) return {};
    const Json* entry = find_mixed(layers_, kMixed, layer);
    if (entry == nullptr) return {};
    return load({kLinears, kMixedExperts}, layer, format_of_entry(*entry), algorithm_of(*entry));
  }

 private:
  Exclusions excluded_;
  LayerMap layers_;
};

/// compressed-tensors: the first target that matches the name, then what matches all of what is fused, then
/// the class.
class Groups : public LoaderLookup {
 public:
  explicit Groups(const Json& config) : groups_(config) {}
  bool all_known() const { return groups_.all_known(); }

  LookupResult find(const EngineLayer& layer) const override {
    const Json* group = layer.kind == Kind::kExperts ? find_experts(layer) : find_layer(layer);
    if (group == nullptr) return {};
    const NamedFormat format = format_of_entry(*group);
    return load({kGroups, kGroups}, layer, format, describe(NamedFormat{format.kind}));
  }

 private:
  bool is_ignored(const EngineLayer& layer) const {
    if (groups_.ignored.matches(layer.name) || layer.kind != Kind::kFused)
      return groups_.ignored.matches(layer.name);
    std::vector<bool> parts;
    for (const std::string& part : layer.parts) parts.push_back(groups_.ignored.matches(part));
    return all_or_none(parts, layer, kEngine);
  }
  const Json* find_layer(const EngineLayer& layer) const {
    if (is_ignored(layer)) return nullptr;
    if (const auto at = groups_.targets.find(layer.name)) return groups_.groups[*at];
    if (layer.kind == Kind::kFused) {
      const bool all = std::all_of(layer.parts.begin(), layer.parts.end(),
                                   [&](const std::string& part) { return groups_.targets.matches(part); });
      if (all) return groups_.groups[*groups_.targets.find(layer.parts[0])];
    }
    return groups_.of_class(layer.kind == Kind::kHead ? "ParallelLMHead" : "ColumnParallelLinear");
  }
  /// The first expert's matrices, by what the files call them.
  const Json* find_experts(const EngineLayer& layer) const {
    static const std::vector<std::string> usual = {"gate_proj", "up_proj", "down_proj"};
    const Json* found = nullptr;
    bool first = true;
    for (const std::string& part : layer.parts.empty() ? usual : layer.parts) {
      const std::string name = fmt::format("{}.0.{}", layer.name, part);
      const Json* one = groups_.ignored.matches(name) ? nullptr : find_expert(name);
      if (!first && !is_same(one, found))
        throw Error(
            fmt::format("expected {} to find one format for gate, up and down of {}, found others for {}",
                        kEngine, layer.name, part));
      found = one;
      first = false;
    }
    return found;
  }
  const Json* find_expert(const std::string& name) const {
    if (const auto at = groups_.targets.find(name)) return groups_.groups[*at];
    const Json* linear = groups_.of_class("Linear");  // "Linear" alone reaches experts, too
    return linear != nullptr ? linear : groups_.of_class("RoutedExperts");
  }
  static bool is_same(const Json* a, const Json* b) {
    if (a == nullptr || b == nullptr) return a == b;
    return member(*a, "weights") == member(*b, "weights") &&
           member(*a, "input_activations") == member(*b, "input_activations");
  }

  TargetGroups groups_;
};

/// Names and their ends behind a dot. Source: utils/quant_utils.py, is_layer_skipped with match_mode
/// "suffix".
bool ends_listed(const std::vector<std::string>& listed, const EngineLayer& layer) {
  const auto has = [&](const std::string& name) {
    return std::any_of(listed.begin(), listed.end(),
                       [&](const std::string& text) { return name == text || name.ends_with("." + text); });
  };
  if (layer.kind != Kind::kFused || has(layer.name)) return has(layer.name);
  std::vector<bool> parts;
  for (const std::string& part : layer.parts) parts.push_back(has(part));
  return all_or_none(parts, layer, kEngine);
}

/// "fp8": all that is not listed.
class Fp8 : public LoaderLookup {
 public:
  explicit Fp8(const Json& config, bool lists_ends = false)
      : format_(format_of_entry(config)), lists_ends_(lists_ends) {
    listed_ = strings_of(member(config, "ignored_layers"));
    if (listed_.empty()) listed_ = strings_of(member(config, "modules_to_not_convert"));
  }
  LookupResult find(const EngineLayer& layer) const override {
    if (layer.kind == Kind::kHead) return {{}, "has no loader for FP8 heads"};
    return is_listed(layer) ? LookupResult{} : LookupResult{format_};
  }

 protected:
  bool is_listed(const EngineLayer& layer) const {
    return lists_ends_ ? ends_listed(listed_, layer) : is_skipped(listed_, layer);
  }

 private:
  NamedFormat format_;
  bool lists_ends_;
  std::vector<std::string> listed_;
};

/// The same with experts in the format of config.json's expert_dtype.
class DeepSeekV4 : public Fp8 {
 public:
  explicit DeepSeekV4(const LoadedConfig& config)
      : Fp8(config.quantization_config),
        dtype_(config.expert_dtype.empty() ? "fp4" : config.expert_dtype),
        nvfp4_(text_of(config.quantization_config, "moe_quant_algo") == "NVFP4") {
    if (dtype_ != "fp4" && dtype_ != "fp8")
      throw Error(fmt::format("expert_dtype: expected fp4 or fp8, which vLLM knows, found {}", dtype_));
  }
  LookupResult find(const EngineLayer& layer) const override {
    if (layer.kind != Kind::kExperts || is_listed(layer) || dtype_ == "fp8") return Fp8::find(layer);
    const NamedFormat format{nvfp4_ ? NamedFormat::Kind::kNvfp4 : NamedFormat::Kind::kMxfp4};
    if (!is_in_mtp(layer.name)) return {format};
    return {format, fmt::format("reads the experts of drafts as {}, like all others", describe(format))};
  }

 private:
  std::string dtype_;
  bool nvfp4_;
};

/// A checkpoint that says NVFP4 and has activations in no group is for its weights alone.
std::string single_algorithm(const ModelOptWords& words, const Json& config) {
  const Json& groups = member(config, "config_groups");
  if (words.algorithm != "NVFP4" || !groups.is_object() || groups.empty()) return words.algorithm;
  const bool weights_alone = std::all_of(groups.begin(), groups.end(), [](const Json& group) {
    return group.is_object() && member(group, "input_activations").is_null();
  });
  return weights_alone ? "W4A16_NVFP4" : words.algorithm;
}

}  // namespace
}  // namespace vllm

std::unique_ptr<LoaderLookup> read_vllm(const LoadedConfig& config, const std::vector<LoadedModule>&) {
  const Json& entry = inline_first(config);
  const std::string method = text_of(entry, "quant_method");
  if (method == "fp8" && config.deepseek_v4) return std::make_unique<vllm::DeepSeekV4>(config);
  if (method == "fp8") return std::make_unique<vllm::Fp8>(entry, config.lists_ends);
  if (method == "mxfp8")
    return std::make_unique<vllm::Single>(strings_of(member(entry, "ignored_layers")), "MXFP8");
  if (method == "compressed-tensors") {
    auto groups = std::make_unique<vllm::Groups>(entry);
    return groups->all_known() ? std::move(groups) : nullptr;
  }
  if (!is_modelopt(entry)) return nullptr;
  const ModelOptWords words(entry, {"ignore", "exclude_modules"});
  if (words.algorithm == "MIXED_PRECISION")
    return std::make_unique<vllm::Mixed>(words.excluded, words.layers());
  return std::make_unique<vllm::Single>(words.excluded, vllm::single_algorithm(words, entry));
}

}  // namespace twofour::lookups
