#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "formats/json/access.h"
#include "formats/weight_dialect.h"
#include "lib/lint/config/promises.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

/// The modules for whose inputs one key is responsible.
struct SameKey {
  std::string key, says;
  std::vector<size_t> with, without;  ///< modules with an input scale, and modules without one
};

/// True if a module has the format that the config promises. Otherwise the inputs are not the fault.
bool is_kept(const Promise& p, const CodedModule& m, QuantMethod method) {
  if (const Algorithm* algorithm = find_algorithm(p.algorithm)) return is_in(m, *algorithm);
  if (method != QuantMethod::kGroups) return true;
  const Json& bits = member(member(*p.entry, "weights"), "num_bits");
  return bits == (m.format->global_scale ? 4 : 8);
}

/// The block of a routed expert's matrix and the name of the matrix: "model.layers.0.mlp.experts" and
/// "up_proj". Empty for other modules.
std::pair<std::string, std::string> routed_name_of(const CodedModule& m) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = m.is_stack ? m.name.npos : m.name.find(kExperts);
  if (at == m.name.npos) return {};
  return {m.name.substr(0, at + kExperts.size() - 1), m.name.substr(m.name.rfind('.') + 1)};
}

/// Reports the matrices that lack input scales in more than half of the experts of a layer. Fewer are
/// reported when experts are compared with each other.
void report_layers_of_experts(const LintInput& s, const std::vector<CodedModule>& modules,
                              const SameKey& same, LintReporter& reporter) {
  std::map<std::pair<std::string, std::string>, std::vector<size_t>> lacking;  // by block and matrix
  for (const size_t i : same.without) {
    if (auto name = routed_name_of(modules[i]); !name.first.empty()) lacking[std::move(name)].push_back(i);
  }
  std::map<std::pair<std::string, std::string>, size_t> having;
  for (const size_t i : same.with) ++having[routed_name_of(modules[i])];
  struct Layer {
    size_t first = 0, without = 0, all = 0;
  };
  std::map<std::string, Layer> layers;
  for (const auto& [name, without] : lacking) {
    const auto with = having.find(name);
    const size_t all = without.size() + (with == having.end() ? 0 : with->second);
    if (2 * without.size() <= all) continue;
    Layer& layer = layers.try_emplace(name.first, Layer{without[0]}).first->second;
    layer.without += without.size();
    layer.all += all;
  }
  for (const auto& [block, layer] : layers) {
    reporter.add("missing-input-scale", s.at(modules[layer.first].tensor, block),
                 "expected an input scale for each of {} matrices (declared by {}), found {} without, the "
                 "first {}",
                 layer.all, same.says, layer.without, modules[layer.first].name);
  }
}

}  // namespace

void lint_inputs(const LintInput& s, const Promises& promises, const std::vector<CodedModule>& modules,
                 LintReporter& reporter) {
  const Json& scheme = member(*promises.settings, "activation_scheme");
  if (promises.method == QuantMethod::kFp8 && !modules.empty() && scheme != "dynamic" && scheme != "static") {
    reporter.add("config-inputs", s.setting(promises.place + "activation_scheme"),
                 "expected dynamic or static, found {}", shown_setting(scheme));
    return;
  }
  // No loader has static scales for inputs of blocks. Source: vLLM, quantization/fp8.py.
  const auto in_blocks = std::ranges::find_if(
      modules, [](const CodedModule& m) { return m.is_fp8() && m.scales_k > 1 && !m.input_scale; });
  if (promises.method == QuantMethod::kFp8 && scheme == "static" && in_blocks != modules.end() &&
      std::ranges::all_of(
          modules, [](const CodedModule& m) { return m.is_fp8() && m.scales_k > 1 && !m.input_scale; })) {
    reporter.add("config-inputs", s.setting(promises.place + "activation_scheme"),
                 "expected dynamic, because {} and all others have no input scale, found \"static\"",
                 in_blocks->name);
    return;
  }
  // Keys whose modules store input scales in vain; keys whose modules should store them.
  std::map<std::string, SameKey> kept, read;
  for (size_t i = 0; i < modules.size(); ++i) {
    const CodedModule& m = modules[i];
    const Promise& p = promises.of[i];
    if (p.inputs == InputPromise::kUnknown || is_table_name(m.name)) continue;
    // Whatever the config states, only NVFP4, and FP8 with one scale along K, may have input scales.
    const bool may_have = m.format->global_scale || (m.is_fp8() && m.scales_k == 1);
    if (!may_have || p.entry == nullptr || !is_kept(p, m, promises.method)) continue;
    std::string key = p.place, says = p.algorithm, by = p.place;
    if (promises.method == QuantMethod::kGroups) {
      key += ".input_activations";
      const Json& inputs = member(*p.entry, "input_activations");
      says = inputs.is_null()                     ? "none"
             : p.inputs == InputPromise::kDynamic ? "dynamic ones"
                                                  : "stored scales";
    } else if (!p.algorithm.empty()) {
      by = p.algorithm;
    } else {
      key += "activation_scheme";
      says = shown_setting(member(*promises.settings, "activation_scheme"));
    }
    SameKey& same = (p.inputs == InputPromise::kStatic ? read : kept)[by];
    if (same.key.empty()) same = {key, says, {}, {}};
    (m.input_scale ? same.with : same.without).push_back(i);
  }
  for (const auto& [by, same] : kept) {
    if (same.with.empty()) continue;
    const CodedModule& first = modules[same.with[0]];
    reporter.add("config-inputs", s.setting(same.key),
                 "expected inputs with stored scales (as in {} of {} modules), the first {}, found {}",
                 same.with.size(), same.with.size() + same.without.size(), s.tensors[*first.input_scale].name,
                 same.says);
  }
  for (const auto& [by, same] : read) {
    if (same.without.empty()) continue;
    if (same.with.empty()) {
      reporter.add("missing-input-scale", s.setting(same.key),
                   "expected an input scale (input_scale or input_global_scale) for each of {} modules (the "
                   "first {}), because {} declares them, found none",
                   same.without.size(), modules[same.without[0]].name, same.says);
      continue;
    }
    report_layers_of_experts(s, modules, same, reporter);
    for (const size_t i : same.without) {
      const std::string& name = modules[i].name;
      // Jamba's dt_proj is never called as a linear, so calibration cannot see its inputs.
      if (!routed_name_of(modules[i]).first.empty() || name.ends_with(".dt_proj")) continue;
      reporter.add("missing-input-scale", s.at(modules[i].tensor, name),
                   "expected an input scale (declared by {}), found none", same.says);
    }
  }
}

namespace {

/// Suffixes of scales of keys and values. Sources: ModelOpt, export/quant_utils.py; vLLM,
/// model_loader/weight_utils.py (maybe_remap_kv_scale_name).
constexpr std::string_view kCacheScales[] = {".k_scale", ".v_scale", ".kv_scale", ".k_proj.output_scale",
                                             ".v_proj.output_scale"};

/// The statements of a config about the KV cache.
struct CachePromise {
  bool is_configured = false;  ///< true if the key exists, even with null
  bool is_quantized = false, is_static = false;
  std::string key, text;  ///< key and value of the setting, for messages
  std::string algorithm;  ///< "FP8", "NVFP4", or any other algorithm as stated
};

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

/// Returns what the keys of one config state about the KV cache.
CachePromise cache_promise(const Json& settings, const std::string& place, bool groups) {
  CachePromise p;
  for (const char* name : {"kv_cache_quant_algo", "kv_cache_scheme"}) {
    if (!settings.contains(name)) continue;
    const Json& value = settings[name];
    p.is_configured = true;
    if (value.is_null() || (value.is_string() && value == "")) continue;
    p.key = place + name;
    p.text = shown_setting(value);
    p.is_quantized = true;
    if (value.is_string()) p.algorithm = upper(value.get<std::string>());
    if (value.is_object()) {
      const Json &bits = member(value, "num_bits"), &type = member(value, "type");
      p.algorithm = bits == 8 && type == "float" ? "FP8" : bits == 4 && type == "float" ? "NVFP4" : "another";
      p.is_static = groups && member(value, "dynamic") != true;
    }
    return p;
  }
  // Attention may have a group of its own.
  if (!groups) return p;
  for (const auto& [name, group] : members_of(settings, "config_groups")) {
    for (const std::string& target : strings_of(group, "targets")) {
      if (target.find("Attention") == target.npos && target.find("attn$") == target.npos) continue;
      return {true, true, false, place + "config_groups." + name, "scales", "FP8"};
    }
  }
  return p;
}

bool is_known_cache(const std::string& algorithm) {
  return algorithm == "FP8" || algorithm == "INT8" || algorithm.starts_with("NVFP4") || algorithm == "NONE" ||
         algorithm == "AUTO" || algorithm == "MXFP8";
}

/// Checks values of a scheme that every reader requires. Sources: vLLM, compressed_tensors.py
/// (CompressedTensorsKVCacheMethod) and modelopt.py.
void check_scheme(const LintInput& s, const Json& settings, const CachePromise& p, bool groups,
                  LintReporter& reporter) {
  const Json& scheme = member(settings, "kv_cache_scheme");
  const auto add = [&](const char* key, const char* expected, const Json& found) {
    reporter.add("config-cache", s.setting(fmt::format("{}.{}", p.key, key)), "expected {}, found {}",
                 expected, shown_setting(found));
  };
  if (scheme.is_object() && p.key.ends_with("kv_cache_scheme")) {
    const Json &bits = member(scheme, "num_bits"), &type = member(scheme, "type");
    if (type != "float") add("type", "float, which engines have caches of", type);
    const bool fits = bits == 8 || (!groups && bits == 4);
    if (!fits) add("num_bits", groups ? "8" : "8 or 4", bits);
    const Json &strategy = member(scheme, "strategy"), &symmetric = member(scheme, "symmetric");
    if (strategy.is_string() && strategy != "tensor" && strategy != "attn_head")
      add("strategy", "tensor or attn_head", strategy);
    if (symmetric == false) add("symmetric", "true", symmetric);
    return;
  }
  if (!is_known_cache(p.algorithm)) {
    reporter.add("config-cache", s.setting(p.key), "expected FP8, NVFP4 or INT8, found {}", p.text);
  }
}

}  // namespace

void lint_cache(const LintInput& s, const ConfiguredQuantization& configured, LintReporter& reporter) {
  if (!s.layout.empty() || s.is_part) return;
  const Json& settings = *configured.settings;
  const bool groups = configured.method_text == "compressed-tensors";
  const CachePromise p = cache_promise(settings, configured.place, groups);
  if (p.is_quantized) check_scheme(s, settings, p, groups, reporter);

  // If both files state the cache, both are checked.
  CachePromise other;
  const bool is_both = !configured.is_nested && member(s.hf_quant_config, "quantization").is_object();
  if (is_both) other = cache_promise(member(s.hf_quant_config, "quantization"), "quantization.", false);
  // If config.json lacks a key, readers look for it in the other file.
  const bool differ =
      is_both && (other.is_configured || p.is_quantized) && p.is_configured && !groups &&
      (p.is_quantized != other.is_quantized || (p.is_quantized && p.algorithm != other.algorithm));
  if (other.is_quantized && !p.is_quantized && !is_known_cache(other.algorithm)) {
    reporter.add("config-cache", {"hf_quant_config.json", other.key}, "expected FP8, NVFP4 or INT8, found {}",
                 other.text);
  }
  if (differ) {
    reporter.add("config-cache", {"hf_quant_config.json", "quantization.kv_cache_quant_algo"},
                 "expected the value of {} in config.json, {}, found {}",
                 p.key.empty() ? configured.place + "kv_cache_scheme" : p.key,
                 p.is_quantized ? p.text : "none", other.is_quantized ? other.text : "none");
  }

  std::optional<size_t> first;
  size_t count = 0;
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const std::string& name = s.tensors[i].name;
    const bool is_scale = name.ends_with("_scale") &&
                          std::any_of(std::begin(kCacheScales), std::end(kCacheScales),
                                      [&](std::string_view suffix) { return name.ends_with(suffix); });
    if (!is_scale) continue;
    if (count++ == 0) first = i;
    const TensorInfo& t = s.tensors[i];
    const bool is_one = std::all_of(t.shape.begin(), t.shape.end(), [](int64_t d) { return d == 1; });
    if (is_one || member(member(settings, "kv_cache_scheme"), "strategy") == "attn_head") continue;
    reporter.add("config-cache", s.at(i, name), "expected one number, found {}", describe(t));
  }
  if (first && !p.is_quantized && !other.is_quantized) {
    reporter.add("config-cache", s.at(*first),
                 "expected {} in the config, because {} scales of keys and values are stored, found none",
                 groups ? "kv_cache_scheme" : "kv_cache_quant_algo or kv_cache_scheme", count);
  } else if (first && groups && member(member(settings, "kv_cache_scheme"), "dynamic") == true) {
    reporter.add("config-cache", s.setting(p.key + ".dynamic"),
                 "expected false, because {} is stored, found true", s.tensors[*first].name);
  } else if (!first && p.is_static && !s.tensors.empty()) {
    reporter.add("config-cache", s.setting(p.key),
                 "expected k_scale and v_scale in each layer (dynamic: false in {}), found none", p.text);
  }
}

}  // namespace twofour
