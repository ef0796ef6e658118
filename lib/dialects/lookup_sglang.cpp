#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "formats/error.h"
#include "lib/dialects/loader_rows.h"

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
constexpr std::string_view kGroupLinears[] = {"NVFP4",
                                              "NVFP4 without input scales",
                                              "FP8 with a scale a tensor",
                                              "FP8 with a scale a row",
                                              "FP8 by blocks",
                                              "INT4"};
constexpr std::string_view kGroupExperts[] = {"NVFP4",
                                              "NVFP4 without input scales",
                                              "FP8 with a scale a tensor",
                                              "FP8 with a scale a row",
                                              "FP8 by blocks",
                                              "INT4"};

/// What it calls a layer.
std::string name_of(const EngineLayer& layer) {
  return layer.name.ends_with(".fused_qkv_a_proj") ? layer.name + "_with_mqa" : layer.name;
}

/// Whether a listed name is a part of the path: "mlp.gate" of "layers.0.mlp.gate", not of "mlp.gate_proj".
bool is_path_part(const std::string& listed, const std::string& name) {
  return ("." + name + ".").find("." + listed + ".") != std::string::npos;
}

bool is_any_part(const std::vector<std::string>& listed, const std::string& name) {
  return std::any_of(listed.begin(), listed.end(),
                     [&](const std::string& text) { return is_path_part(text, name); });
}

/// Lists of names: of the methods "fp8" and "mxfp8", and what ModelOpt's begin with.
bool is_skipped(const std::vector<std::string>& listed, const EngineLayer& layer) {
  if (layer.kind == Kind::kFused) {
    std::vector<bool> parts;
    for (const std::string& part : layer.parts) parts.push_back(is_any_part(listed, part));
    return all_or_none(parts, layer, kEngine);
  }
  if (is_any_part(listed, layer.name)) return true;
  if (layer.name.find("experts") == layer.name.npos) return false;
  return std::any_of(listed.begin(), listed.end(), [&](const std::string& text) {
    return text.find("experts") != text.npos && text.find(layer.name) != text.npos;
  });
}

/// A pattern of ModelOpt's list: a regular expression but for dots and asterisks, that must match a name, or
/// any part between its dots, from end to end.
class Exclusion {
 public:
  explicit Exclusion(const std::string& text) : text_(text), expression_(expression_of(text)) {}

  bool matches(const std::string& name) const {
    if (matches_whole(name)) return true;
    for (size_t at = 0; at <= name.size();) {
      const size_t dot = std::min(name.find('.', at), name.size());
      if (matches_whole(name.substr(at, dot - at))) return true;
      at = dot + 1;
    }
    return matches_fused(name);
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
  /// Parts of what is fused in models with latent attention.
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

class Exclusions {
 public:
  explicit Exclusions(std::vector<std::string> texts) : texts_(std::move(texts)) {
    for (const std::string& text : texts_) patterns_.emplace_back(text);
  }
  bool has(const EngineLayer& layer) const {
    if (layer.kind != Kind::kExperts && is_skipped(texts_, layer)) return true;
    const std::string name = name_of(layer);
    const std::string_view model = "language_model.";
    return matches(name) || (name.starts_with(model) && matches(name.substr(model.size())));
  }

 private:
  bool matches(const std::string& name) const {
    return std::any_of(patterns_.begin(), patterns_.end(),
                       [&](const Exclusion& p) { return p.matches(name); });
  }
  std::vector<std::string> texts_;
  std::vector<Exclusion> patterns_;
};

/// ModelOpt with one algorithm.
class Single : public LoaderLookup {
 public:
  Single(std::vector<std::string> excluded, std::string algorithm)
      : excluded_(std::move(excluded)), algorithm_(std::move(algorithm)) {}
  LookupResult find(const EngineLayer& layer) const override {
    if (excluded_.has(layer)) return {};
    return load({kSingle, kSingle}, layer, format_of_entry({{"quant_algo", algorithm_}}), algorithm_);
  }

 private:
  Exclusions excluded_;
  std::string algorithm_;
};

/// ModelOpt with an algorithm a module. Without NVFP4 among them it takes the checkpoint for another kind.
class Mixed : public LoaderLookup {
 public:
  Mixed(std::vector<std::string> excluded, const Json& layers)
      : excluded_(std::move(excluded)), layers_(layers) {
    for (const auto& [name, entry] : layers_.entries()) {
      const std::string algorithm = algorithm_of(*entry);
      has_nvfp4_ = has_nvfp4_ || algorithm == "NVFP4" || algorithm == "W4A16_NVFP4";
    }
  }
  LookupResult find(const EngineLayer& layer) const override {
    if (!has_nvfp4_) return {{}, "takes MIXED_PRECISION without NVFP4 for INT4 beside FP8"};
    const Json* entry = find_mixed(layers_, kMixedRules, layer);
    if (entry == nullptr || excluded_.has(layer)) return {};
    return load({kMixed, kMixed}, layer, format_of_entry(*entry), algorithm_of(*entry));
  }

 private:
  Exclusions excluded_;
  LayerMap layers_;
  bool has_nvfp4_ = false;
};

/// compressed-tensors: the first target that matches the name, then the class, then what matches all of what
/// is fused.
class Groups : public LoaderLookup {
 public:
  explicit Groups(const Json& config) : groups_(config), config_(config) {}
  bool all_known() const { return groups_.all_known(); }

  LookupResult find(const EngineLayer& layer) const override {
    const bool experts = layer.kind == Kind::kExperts;
    const Json* group = experts                     ? find_experts(layer)
                        : layer.kind == Kind::kHead ? find_head(layer)
                                                    : find_layer(layer);
    if (experts && takes_all_for_mxfp4())
      return {{NamedFormat::Kind::kMxfp4}, "takes all experts for MXFP4 where one group is"};
    if (group == nullptr) return {};
    const NamedFormat format = format_of_entry(*group);
    return load({kGroupLinears, kGroupExperts}, layer, format, describe(NamedFormat{format.kind}));
  }

 private:
  bool takes_all_for_mxfp4() const {
    const Json* linear = groups_.of_class("Linear");
    return text_of(config_, "format").find("mxfp4") != std::string::npos ||
           (linear != nullptr && format_of_entry(*linear).kind == NamedFormat::Kind::kMxfp4);
  }
  /// Entries are also ends of paths.
  bool is_ignored(const std::string& name) const {
    if (groups_.ignored.matches(name)) return true;
    for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
      if (groups_.ignored.has_name(name.substr(dot + 1))) return true;
    }
    return false;
  }
  bool is_ignored(const EngineLayer& layer) const {
    if (layer.kind != Kind::kFused || groups_.ignored.has_name(name_of(layer)))
      return is_ignored(name_of(layer));
    std::vector<bool> parts;
    for (const std::string& part : layer.parts) parts.push_back(is_ignored(part));
    return all_or_none(parts, layer, kEngine);
  }
  const Json* find_layer(const EngineLayer& layer) const {
    if (is_ignored(layer)) return nullptr;
    if (const auto at = groups_.targets.find(name_of(layer))) return groups_.groups[*at];
    if (const Json* linear = groups_.of_class("ColumnParallelLinear")) return linear;
    const bool all = layer.kind == Kind::kFused &&
                     std::all_of(layer.parts.begin(), layer.parts.end(),
                                 [&](const std::string& part) { return groups_.targets.matches(part); });
    if (all) return groups_.groups[*groups_.targets.find(layer.parts[0])];
    throw Error(
        fmt::format("expected a target or an entry of ignore, without which {} stops, found none", kEngine));
  }
  /// A head is quantized only where a target names it.
  const Json* find_head(const EngineLayer& layer) const {
    if (is_ignored(layer.name)) return nullptr;
    const auto at = groups_.targets.find(layer.name);
    return at ? groups_.groups[*at] : nullptr;
  }
  /// The first expert's matrices, by these names, whatever the files call them.
  const Json* find_experts(const EngineLayer& layer) const {
    const Json* found = nullptr;
    bool first = true;
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      const std::string name = fmt::format("{}.0.{}", layer.name, part);
      const Json* one = find_expert(name);
      if (!first && one != found && !(one != nullptr && found != nullptr && is_same(*one, *found)))
        throw Error(
            fmt::format("expected {} to find one format for gate, up and down of {}, found others for {}",
                        kEngine, layer.name, part));
      found = one;
      first = false;
    }
    return found;
  }
  const Json* find_expert(const std::string& name) const {
    if (is_ignored(name)) return nullptr;
    if (const auto at = groups_.targets.find(name)) return groups_.groups[*at];
    if (const Json* linear = groups_.of_class("Linear")) return linear;
    if (const Json* experts = groups_.of_class("FusedMoE")) return experts;
    throw Error(fmt::format(
        "expected a target or an entry of ignore for {}, without which {} stops, found none", name, kEngine));
  }
  static bool is_same(const Json& a, const Json& b) {
    return member(a, "weights") == member(b, "weights") &&
           member(a, "input_activations") == member(b, "input_activations");
  }

  TargetGroups groups_;
  const Json& config_;
};

/// "fp8" and "mxfp8": all that is not listed, with and without "model." before it.
class Fp8 : public LoaderLookup {
 public:
  Fp8(NamedFormat format, const std::vector<std::string>& listed) : format_(format) {
    for (const std::string& text : listed) {
      const std::string_view model = "model.";
      const std::string base = text.starts_with(model) ? text.substr(model.size()) : text;
      listed_.push_back(base);
      listed_.push_back("model." + base);
    }
  }
  LookupResult find(const EngineLayer& layer) const override {
    if (layer.kind == Kind::kHead) return {{}, "has no loader for FP8 heads"};
    if (is_skipped(listed_, layer)) return {};
    return {format_};
  }

 private:
  NamedFormat format_;
  std::vector<std::string> listed_;
};

std::vector<std::string> fp8_list(const Json& config) {
  const Json& layers = member(config, "ignored_layers");
  return strings_of(layers.is_null() ? member(config, "modules_to_not_convert") : layers);
}

/// Experts by the type that the first has, and NVFP4 where the configuration says so and does not exclude
/// them.
class DeepSeekV4 : public Fp8 {
 public:
  DeepSeekV4(const Json& config, NamedFormat first)
      : Fp8(format_of_entry(config), fp8_list(config)),
        is_fp4_(first.kind != NamedFormat::Kind::kFp8Blocks && first.kind != NamedFormat::Kind::kFloat) {
    if (algorithm_of(config) == "MIXED_PRECISION" && text_of(config, "moe_quant_algo") == "NVFP4" &&
        !member(config, "group_size").is_null())
      excluded_.emplace(strings_of(member(config, "ignore")));
  }
  LookupResult find(const EngineLayer& layer) const override {
    if (layer.kind != Kind::kExperts) return Fp8::find(layer);
    if (excluded_ && !excluded_->has(layer)) return {{NamedFormat::Kind::kNvfp4}};
    return is_fp4_ ? LookupResult{{NamedFormat::Kind::kMxfp4}} : Fp8::find(layer);
  }

 private:
  std::optional<Exclusions> excluded_;
  bool is_fp4_;
};

}  // namespace
}  // namespace sglang

std::unique_ptr<LoaderLookup> read_sglang(const LoadedConfig& config,
                                          const std::vector<LoadedModule>& modules) {
  const Json& entry = inline_first(config);
  const std::string method = text_of(entry, "quant_method");
  if (method == "fp8" && config.deepseek_v4)
    return std::make_unique<sglang::DeepSeekV4>(entry, first_expert(modules));
  if (method == "fp8") return std::make_unique<sglang::Fp8>(format_of_entry(entry), sglang::fp8_list(entry));
  const NamedFormat mxfp8{NamedFormat::Kind::kMxfp8};
  if (method == "mxfp8") return std::make_unique<sglang::Fp8>(mxfp8, sglang::fp8_list(entry));
  if (method == "compressed-tensors") {
    auto groups = std::make_unique<sglang::Groups>(entry);
    return groups->all_known() ? std::move(groups) : nullptr;
  }
  if (!is_modelopt(entry)) return nullptr;
  const ModelOptWords words(entry, {"ignore", "modules_to_not_convert", "exclude_modules"});
  if (words.algorithm == "MXFP8") return std::make_unique<sglang::Fp8>(mxfp8, words.excluded);
  if (words.algorithm == "MIXED_PRECISION")
    return std::make_unique<sglang::Mixed>(words.excluded, words.layers());
  return std::make_unique<sglang::Single>(words.excluded, words.algorithm);
}

}  // namespace twofour::lookups
