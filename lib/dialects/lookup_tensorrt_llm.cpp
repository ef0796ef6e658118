#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "formats/error.h"
#include "formats/module_names.h"
#include "lib/dialects/loader_rows.h"
#include "lib/names/pattern.h"

// Source: TensorRT-LLM of late 2026, _torch/model_config.py, _torch/models/modeling_utils.py,
// models/{quant_config_utils,modeling_utils}.py, quantization/{mode,modelopt_config}.py.

namespace twofour::lookups {
namespace tensorrt_llm {
namespace {

using Kind = EngineLayer::Kind;

/// Names of algorithms that it knows; it stops at any other.
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

constexpr const char* kHeads = "has no loader for heads in all of its versions";

bool is_known(std::string_view algorithm) {
  return std::find(std::begin(kAlgorithms), std::end(kAlgorithms), algorithm) != std::end(kAlgorithms);
}

/// What it calls a layer: what it fuses of latent attention by one of its parts.
std::string name_of(const EngineLayer& layer) {
  constexpr std::string_view kFused = ".fused_qkv_a_proj";
  if (!layer.name.ends_with(kFused)) return layer.name;
  return layer.name.substr(0, layer.name.size() - kFused.size()) + ".kv_a_proj_with_mqa";
}

/// Patterns that a name or anything above it matches, from end to end. What is fused is excluded with any of
/// its linears.
class Exclusions {
 public:
  explicit Exclusions(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      if (text.starts_with("re:")) {
        ConfigPattern whole("re:(?:" + text.substr(3) + ")$");
        all_known_ = all_known_ && whole.known();
        expressions_.push_back(std::move(whole));
        continue;
      }
      globs_.emplace_back(text);
      if (text.ends_with(".*")) globs_.emplace_back(text.substr(0, text.size() - 2));
    }
  }
  bool all_known() const { return all_known_; }
  bool has(const EngineLayer& layer) const {
    const std::string name = name_of(layer);
    if (has_name(name)) return true;
    return layer.kind == Kind::kFused && name == layer.name &&
           std::any_of(layer.parts.begin(), layer.parts.end(),
                       [&](const std::string& part) { return has_name(part); });
  }
  bool has_name(std::string_view name) const {
    return any_above(name, [&](std::string_view own) {
      return any_matches(globs_, own) || std::any_of(expressions_.begin(), expressions_.end(),
                                                     [&](const ConfigPattern& p) { return p.matches(own); });
    });
  }

 private:
  std::vector<NamePattern> globs_;
  std::vector<ConfigPattern> expressions_;
  bool all_known_ = true;
};

/// Stops at the whole configuration.
class Stops : public LoaderLookup {
 public:
  explicit Stops(std::string why) : why_(std::move(why)) {}
  LookupResult find(const EngineLayer&) const override { return {{}, why_}; }

 private:
  std::string why_;
};

/// One format for all that is not excluded.
class Single : public LoaderLookup {
 public:
  Single(NamedFormat format, std::string algorithm, const std::vector<std::string>& excluded)
      : format_(format), algorithm_(std::move(algorithm)), excluded_(excluded) {}
  LookupResult find(const EngineLayer& layer) const override {
    if (layer.kind == Kind::kHead) return {{}, kHeads};
    if (excluded_.has(layer)) return {};
    return load({kAlgorithms, kExperts}, layer, format_, algorithm_);
  }

 private:
  NamedFormat format_;
  std::string algorithm_;
  Exclusions excluded_;
};

/// A layer's entry: of experts the first name that has the block's in it, of fused linears likewise that of
/// their first, of others the same name.
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

/// Whether it has no class whose fused linears are called so, as w1 and w3 of LFM2 outside experts.
bool is_foreign(const EngineLayer& layer) {
  return layer.kind == Kind::kFused && layer.name.ends_with(".gate_up_proj") && !layer.parts.empty() &&
         layer.parts[0].ends_with(".w1");
}

constexpr const char* kForeign = "has no class with linears of these names";

/// ModelOpt with an algorithm a module.
class Mixed : public LoaderLookup {
 public:
  Mixed(const Json& layers, const std::vector<std::string>& excluded)
      : layers_(layers), excluded_(excluded) {}
  LookupResult find(const EngineLayer& layer) const override {
    if (layer.kind == Kind::kHead) return {{}, kHeads};
    if (is_foreign(layer)) return {{}, kForeign};
    const Json* entry = find_layer(layers_, layer);
    if (entry == nullptr || excluded_.has(layer)) return {};
    return load({kAlgorithms, kExperts}, layer, format_of_entry(*entry), algorithm_of(*entry));
  }

 private:
  LayerMap layers_;
  Exclusions excluded_;
};

/// What it calls a group of compressed-tensors; empty: it stops at it.
std::string algorithm_of_group(const Json& group) {
  using enum NamedFormat::Kind;
  const NamedFormat format = format_of_entry(group);
  const std::string inputs = text_of(member(group, "input_activations"), "strategy");
  const Json& input_group = member(member(group, "input_activations"), "group_size");
  if (format.kind == kMxfp4) return "W4A16_MXFP4";
  if (format.kind == kNvfp4 && inputs == "tensor_group") return "NVFP4";
  if (format.kind == kFp8Row && inputs == "token") return "FP8_PER_CHANNEL_PER_TOKEN";
  if (format.kind == kFp8Blocks && inputs == "group" && input_group == 128) return "FP8_BLOCK_SCALES";
  return "";
}

/// Several groups of compressed-tensors: exact targets before expressions, each in the order of their text.
/// From these it makes a map of modules, which layers are looked up in as in ModelOpt's.
class Groups : public LoaderLookup {
 public:
  Groups(const TargetGroups& groups, const std::vector<LoadedModule>& modules) {
    std::vector<size_t> order(groups.groups.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto& texts = groups.targets.texts();
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::pair(texts[a].find("re:") != std::string::npos, texts[a]) <
             std::pair(texts[b].find("re:") != std::string::npos, texts[b]);
    });
    TargetList sorted;
    for (const size_t i : order) sorted.add(texts[i]);
    for (const LoadedModule& m : modules) {
      const auto at = sorted.find(m.name);
      if (!at || groups.ignored.matches(m.name)) continue;
      const Json& group = *groups.groups[order[*at]];
      map_[m.name] = {{"quant_algo", algorithm_of_group(group)}};
      if (const NamedFormat format = format_of_entry(group); format.rows > 0)
        map_[m.name]["group_size"] = format.rows;
    }
    names_.emplace(map_);
  }
  LookupResult find(const EngineLayer& layer) const override {
    if (layer.kind == Kind::kHead) return {{}, kHeads};
    if (is_foreign(layer)) return {{}, kForeign};
    const Json* entry = find_layer(*names_, layer);
    if (entry == nullptr) return {};
    return load({kAlgorithms, kExperts}, layer, format_of_entry(*entry), algorithm_of(*entry));
  }

 private:
  Json map_ = Json::object();
  std::optional<LayerMap> names_;
};

/// Why it stops at these groups; empty: it does not.
std::string stop_of(const TargetGroups& groups) {
  for (const Json* group : groups.all) {
    if (algorithm_of_group(*group).empty())
      return fmt::format("stops at a group of {}", describe(NamedFormat{format_of_entry(*group).kind}));
  }
  for (const std::string& text : groups.targets.texts()) {
    // A name without dots is a class's.
    const bool is_class = !text.starts_with("re:") && text.find('.') == text.npos && text != "lm_head";
    if (groups.all.size() > 1 && is_class)
      return fmt::format("stops at the target {} of several groups, since it knows no classes", text);
  }
  return "";
}

std::unique_ptr<LoaderLookup> read_groups(const Json& config, const std::vector<LoadedModule>& modules) {
  const TargetGroups groups(config);
  if (!groups.all_known() || groups.all.empty()) return nullptr;
  if (std::string why = stop_of(groups); !why.empty()) return std::make_unique<Stops>(std::move(why));
  if (groups.all.size() > 1) return std::make_unique<Groups>(groups, modules);
  std::vector<std::string> excluded = strings_of(member(config, "modules_to_not_convert"));
  for (const std::string& text : groups.ignored.texts()) excluded.push_back(text);
  if (!Exclusions(excluded).all_known()) return nullptr;
  return std::make_unique<Single>(format_of_entry(*groups.all[0]), algorithm_of_group(*groups.all[0]),
                                  excluded);
}

/// "fp8" in blocks of 128 x 128: all that is not listed, and never what it takes apart itself.
class Fp8 : public LoaderLookup {
 public:
  explicit Fp8(const Json& config) : format_(format_of_entry(config)), listed_(lists_of(config)) {
    stops_ = format_.kind == NamedFormat::Kind::kFp8Blocks && !(format_.rows == 128 && format_.cols == 128);
  }
  LookupResult find(const EngineLayer& layer) const override {
    if (stops_) return {{}, "stops at FP8 blocks of another size than 128 x 128"};
    if (layer.kind == Kind::kHead) return {{}, kHeads};
    if (taken_apart_.has_name(layer.name)) return {{}, "widens this itself"};
    return listed_.has(layer) ? LookupResult{} : LookupResult{format_};
  }

 private:
  static std::vector<std::string> lists_of(const Json& config) {
    std::vector<std::string> all;
    for (const char* key : {"modules_to_not_convert", "ignored_layers", "ignore"}) {
      for (std::string& text : strings_of(member(config, key))) all.push_back(std::move(text));
    }
    return all;
  }
  NamedFormat format_;
  Exclusions listed_;
  const Exclusions taken_apart_{{"*kv_b_proj*", "*k_b_proj*", "*eh_proj"}};
  bool stops_ = false;
};

/// Routed experts by the type of the first expert's weights; drafts only where they are served.
class DeepSeekV4 : public LoaderLookup {
 public:
  DeepSeekV4(std::unique_ptr<LoaderLookup> rest, NamedFormat first) : rest_(std::move(rest)), first_(first) {}
  LookupResult find(const EngineLayer& layer) const override {
    using enum NamedFormat::Kind;
    if (layer.kind == Kind::kExperts && (first_.kind == kMxfp4 || first_.kind == kNvfp4)) {
      if (!is_in_mtp(layer.name)) return {first_};
      return {first_, fmt::format("reads the experts of drafts as {}, like the first", describe(first_))};
    }
    LookupResult found = rest_ ? rest_->find(layer) : LookupResult{};
    if (found.limit.empty()) found.limit = "knows DeepSeek-V4's linears by an FP8 configuration alone";
    return found;
  }

 private:
  std::unique_ptr<LoaderLookup> rest_;
  NamedFormat first_;
};

std::unique_ptr<LoaderLookup> read_modelopt(const Json& config) {
  const ModelOptWords words(config, {"ignore"});
  // The one name in small letters that it knows.
  const std::string algorithm = text_of(words.words, "quant_algo") == "fp8_pb_wo"
                                    ? "FP8_BLOCK_SCALES"
                                    : text_of(words.words, "quant_algo");
  if (algorithm == "MIXED_PRECISION") {
    const LayerMap layers(words.layers());
    for (const auto& [name, entry] : layers.entries()) {
      const std::string one = text_of(*entry, "quant_algo");
      if (!is_known(one)) return std::make_unique<Stops>(fmt::format("stops at quant_algo {}", one));
    }
    return std::make_unique<Mixed>(words.layers(), words.excluded);
  }
  if (!is_known(algorithm)) return std::make_unique<Stops>(fmt::format("stops at quant_algo {}", algorithm));
  return std::make_unique<Single>(format_of_entry({{"quant_algo", algorithm}}), algorithm, words.excluded);
}

std::unique_ptr<LoaderLookup> read_entry(const Json& entry, const std::vector<LoadedModule>& modules) {
  if (is_modelopt(entry)) return read_modelopt(entry);
  const std::string method = text_of(entry, "quant_method");
  if (method == "compressed-tensors") return read_groups(entry, modules);
  if (method == "fp8") return std::make_unique<Fp8>(entry);
  if (method != "mxfp8") return nullptr;
  std::vector<std::string> excluded = strings_of(member(entry, "modules_to_not_convert"));
  for (std::string& text : strings_of(member(entry, "ignored_layers"))) excluded.push_back(std::move(text));
  return std::make_unique<Single>(NamedFormat{NamedFormat::Kind::kMxfp8}, "MXFP8", excluded);
}

}  // namespace
}  // namespace tensorrt_llm

// hf_quant_config.json counts where it names an algorithm, config.json else.
std::unique_ptr<LoaderLookup> read_tensorrt_llm(const LoadedConfig& config,
                                                const std::vector<LoadedModule>& modules) {
  if (config.lists_ends) return nullptr;  // it has no class for Ling 3
  const bool by_file = config.hf_quant_config.is_object() &&
                       !ModelOptWords(config.hf_quant_config, {"ignore"}).algorithm.empty();
  const Json& entry = by_file ? config.hf_quant_config : config.quantization_config;
  auto rest = tensorrt_llm::read_entry(entry, modules);
  if (!config.deepseek_v4) return rest;
  return std::make_unique<tensorrt_llm::DeepSeekV4>(std::move(rest), first_expert(modules));
}

}  // namespace twofour::lookups
