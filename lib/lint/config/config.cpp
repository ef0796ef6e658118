#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <map>
#include <set>

#include "formats/families/family.h"
#include "formats/json/access.h"
#include "formats/module_names.h"
#include "formats/naming.h"
#include "formats/weight_dialect.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/findings/finding.h"
#include "lib/base/names/config_pattern.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/promises.h"
#include "lib/lint/settings/checks.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

/// Returns a format's name for messages: "unquantized", "NVFP4".
const char* stored_name(WeightFormat format) { return format->coded ? format->name : "unquantized"; }

struct StoredModule {
  std::string name;
  size_t tensor;
  WeightFormat stored;
};

/// Returns the matrices by module name, with the formats in which they are stored.
std::vector<StoredModule> stored_modules(const LintInput& s, const std::vector<CodedModule>& coded) {
  std::vector<StoredModule> modules;
  for (const Nvfp4Linear& m : s.modules) modules.push_back({m.name, m.codes, WeightFormat::kNvfp4});
  constexpr std::string_view kWeight = ".weight";
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const TensorInfo& t = s.tensors[i];
    if (t.dtype == DType::kU8 || !t.name.ends_with(kWeight) || t.shape.size() != 2) continue;
    const std::string name = t.name.substr(0, t.name.size() - kWeight.size());
    if (is_float(t.dtype)) modules.push_back({name, i, WeightFormat::kFloat});
    if (t.dtype == DType::kF8E4M3) modules.push_back({name, i, WeightFormat::kFp8});
  }
  for (const CodedModule& m : coded) {
    const bool in_words = m.format->integers && m.suffix != kWeight;
    const bool in_groups = m.format->in_groups() && m.format != WeightFormat::kNvfp4;
    if ((in_groups || in_words) && !m.is_stack) modules.push_back({m.name, m.tensor, m.format});
  }
  return modules;
}

void check_router(const LintInput& s, const StoredModule& m, LintReporter& reporter) {
  if (!m.stored->coded || !(is_router(m.name) || is_shared_expert_gate(m.name))) return;
  reporter.add("quantized-router", s.at(m.tensor, m.name), "expected an unquantized router, found {}",
               stored_name(m.stored));
}

/// True if a group's format is NVFP4.
bool is_nvfp4_group(const Json& group) {
  const Json& weights = member(group, "weights");
  return member(weights, "num_bits") == 4 && text_of(weights, "type") == "float" &&
         member(weights, "group_size") == 16;
}

/// The statements of a config of either producer about all modules.
struct Claims {
  explicit Claims(const ConfiguredQuantization& configured)
      : modelopt(configured.method_text == "modelopt" ||
                 (configured.is_nested && configured.method != QuantMethod::kGroups)),
        groups(configured.method == QuantMethod::kGroups),
        algorithm(groups ? "" : text_of(*configured.settings, "quant_algo")) {
    const Json& all = configured.groups();
    const bool some = groups && all.is_object() && !all.empty();
    has_layers = !groups && configured.layers().is_object() && !configured.layers().empty();
    only_nvfp4 = groups ? some && std::all_of(all.begin(), all.end(), is_nvfp4_group)
                        : algorithm.find("NVFP4") != algorithm.npos;
    all_linears = groups ? some && configured.targets_all_linears() : modelopt && only_nvfp4 && !has_layers;
  }
  bool modelopt, groups;
  std::string algorithm;     ///< ModelOpt's algorithm: "NVFP4", "MIXED_PRECISION", ...
  bool has_layers = false;   ///< true if each module has its own algorithm
  bool only_nvfp4 = false;   ///< true if NVFP4 is the only format
  bool all_linears = false;  ///< true if all linears are quantized, except ignored ones
};

/// Compares stored formats with the config. Adds modules that need no other finding to `reported`.
void check_formats(const LintInput& s, const std::vector<CodedModule>& coded,
                   const ConfiguredQuantization& configured, std::set<std::string>& reported,
                   LintReporter& reporter) {
  const Claims claims(configured);
  PatternList ignored(configured.ignored());
  const std::set<std::string> explained = reported;
  const bool tied = has_tied_head(s.config);  // loaders skip a tied head even if it is stored
  for (const StoredModule& m : stored_modules(s, coded)) {
    const auto report = [&]<class... Args>(const char* rule, fmt::format_string<Args...> text,
                                           Args&&... args) {
      reported.insert(m.name);
      reporter.add(rule, s.at(m.tensor, m.name), text, std::forward<Args>(args)...);
    };
    const bool quantized = m.stored->coded;
    if (is_model_head(m.name) && (tied || quantized)) reported.insert(m.name);
    check_router(s, m, reporter);
    if (quantized && is_model_head(m.name)) {
      reporter.add("quantized-head", s.at(m.tensor, m.name), "expected an unquantized head, found {}",
                   stored_name(m.stored));
    }
    if ((!claims.modelopt && !claims.groups) || explained.contains(m.name)) continue;
    const std::string renamed = other_name(s.config, m.name, name_in_transformers);
    const bool is_ignored = ignored.matches(m.name) || (!renamed.empty() && ignored.matches(renamed));
    if (quantized && is_ignored) {
      report("config-dtype", "expected it unquantized (the config's ignore list), found {}",
             stored_name(m.stored));
    } else if (quantized && !m.stored->global_scale && claims.only_nvfp4 && !claims.has_layers) {
      report("config-dtype", "expected NVFP4 (the config), found {}", stored_name(m.stored));
    } else if (m.stored->global_scale && claims.algorithm.starts_with("FP8")) {
      report("config-dtype", "expected {} (the config), found NVFP4", claims.algorithm);
    } else if (claims.has_layers) {
      const auto layer = configured.find_layer(m.name);
      const std::string algorithm = layer ? text_of(*layer->second, "quant_algo") : "unquantized";
      const bool wants_nvfp4 = algorithm.find("NVFP4") != algorithm.npos;
      if (m.stored->global_scale != wants_nvfp4 && (layer || quantized)) {
        report("config-dtype", "expected {} (quantized_layers), found {}", algorithm, stored_name(m.stored));
      }
    } else if (!quantized && !is_ignored && claims.all_linears && ignored.all_known() &&
               !is_no_linear(m.name) && !is_own_router(s, m.name) && !(tied && is_model_head(m.name))) {
      report("unquantized-not-ignored",
             "expected it quantized or in the config's ignore list, found neither");
    }
  }
}

/// True for a linear in a block of a tower that reads images.
bool is_tower_linear(const std::string& name) {
  if (name.find("visual.") == name.npos && name.find("vision") == name.npos) return false;
  const std::string_view leaf = leaf_of(name);
  return std::ranges::any_of(
             std::initializer_list<std::string_view>{"qkv", "proj", "q_proj", "k_proj", "v_proj", "o_proj",
                                                     "out_proj", "fc1", "fc2", "gate_proj", "up_proj",
                                                     "down_proj", "linear_fc1", "linear_fc2"},
             [&](std::string_view known) { return leaf == known; }) &&
         any_part(name, [](std::string_view part) { return is_number_part(part); });
}

/// Reports a tower of floats that nothing in the config's list names. Its linears are then quantized, as all
/// others are.
void check_tower(const LintInput& s, const std::vector<CodedModule>& coded,
                 const ConfiguredQuantization& configured, LintReporter& reporter) {
  const Claims claims(configured);
  if (!claims.groups || !claims.all_linears || s.is_part || !s.layout.empty()) return;
  PatternList ignored(configured.ignored());
  if (!ignored.all_known()) return;
  size_t count = 0;
  const StoredModule* first = nullptr;
  const std::vector<StoredModule> modules = stored_modules(s, coded);
  for (const StoredModule& m : modules) {
    if (!is_tower_linear(m.name)) continue;
    const std::string renamed = other_name(s.config, m.name, name_in_transformers);
    if (m.stored->coded || ignored.matches(m.name) || (!renamed.empty() && ignored.matches(renamed))) return;
    if (count++ == 0) first = &m;
  }
  if (first == nullptr) return;
  reporter.add(
      "unquantized-not-ignored", s.at(first->tensor, first->name),
      "expected it, and {} more linears of the tower, in the config's ignore list, found none of them",
      count - 1);
}

/// Reports scales of rows without the second dimension. compressed-tensors stores them as [N, 1], and loaders
/// compare shapes.
void check_row_scales(const LintInput& s, const ConfiguredQuantization& configured, LintReporter& reporter) {
  if (configured.method != QuantMethod::kGroups || !s.layout.empty()) return;
  for (const auto& [name, group] : members_of(configured.groups())) {
    if (text_of(member(group, "weights"), "strategy") != "channel") return;
  }
  size_t count = 0, first = 0;
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const TensorInfo& t = s.tensors[i];
    if (!t.name.ends_with(".weight_scale") || t.shape.size() != 1 || t.shape[0] < 2) continue;
    if (count++ == 0) first = i;
  }
  if (count == 0) return;
  const int64_t n = s.tensors[first].shape[0];
  reporter.add("module-shape", s.at(first), "expected [{}, 1] (strategy channel), found [{}]{}", n, n,
               and_more(count, ", and so {} more"));
}

/// Reports formats that no group of the config describes.
void check_lost_groups(const LintInput& s, const std::vector<CodedModule>& coded,
                       const ConfiguredQuantization& configured, LintReporter& reporter) {
  if (configured.method != QuantMethod::kGroups || !s.layout.empty() ||
      members_of(configured.groups()).empty())
    return;
  std::set<std::pair<std::string, int64_t>> groups;  // types and bits
  for (const auto& [name, group] : members_of(configured.groups())) {
    const Json& weights = member(group, "weights");
    groups.emplace(text_of(weights, "type"), integer_of(weights, "num_bits").value_or(0));
  }
  std::map<std::string, std::pair<size_t, std::string>> lost;  // count and first module of each format
  for (const CodedModule& m : coded) {
    if (m.scale_suffix.empty() || m.format->integers) continue;
    if (groups.contains({"float", m.format->sixes ? 6 : m.format->pairs ? 4 : 8})) continue;
    auto& [count, first] = lost.try_emplace(m.is_fp8() ? "FP8" : m.text(), 0, m.name).first->second;
    ++count;
  }
  for (const auto& [format, modules] : lost) {
    reporter.add("no-quantization-config", s.setting("config_groups"),
                 "expected a group for {} (the first {}), found none",
                 counted(modules.first, std::string(format) + " module"), modules.second);
  }
}

/// Reports stacks in MXFP4 that a list of modules in floats names.
void check_listed_stacks(const LintInput& s, const std::vector<CodedModule>& coded,
                         const ConfiguredQuantization& configured, LintReporter& reporter) {
  constexpr const char* kList = "modules_to_not_convert";
  if (configured.method_text != "mxfp4") return;
  const std::vector<std::string> listed = strings_of(s.quantization, kList);
  for (const CodedModule& m : coded) {
    if (!m.is_mxfp4() || !m.is_stack) continue;
    const auto entry = std::find_if(listed.begin(), listed.end(), [&](const std::string& text) {
      const bool wild = is_wild(text);
      const ConfigPattern glob(wild ? text : "");
      return any_above(m.name,
                       [&](std::string_view name) { return wild ? glob.matches(name) : name == text; });
    });
    if (entry == listed.end()) continue;
    reporter.add("config-dtype", s.at(m.tensor, m.name), "expected floats ({}: {}), found {}", kList, *entry,
                 m.text());
  }
}

/// Returns the algorithm of each module that a configuration lists, in lower case. All names of FP8 in blocks
/// become one.
std::map<std::string, std::string> listed_layers(const Json& entry) {
  std::map<std::string, std::string> layers;
  const ConfiguredQuantization configured(entry);
  for (const auto& [name, layer] : members_of(configured.layers())) {
    std::string algo = text_of(layer, "quant_algo");
    std::transform(algo.begin(), algo.end(), algo.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const bool blocks = algo.starts_with("fp8_pb") || algo == "fp8_block_scales";
    layers[name] = blocks ? "fp8 in blocks" : algo;
  }
  return layers;
}

/// Compares the lists of mixed formats in the two files. An engine reads only one of them.
void check_listed_layers(const LintInput& s, LintReporter& reporter) {
  const auto ours = listed_layers(s.quantization), theirs = listed_layers(s.hf_quant_config["quantization"]);
  if (ours.empty() || theirs.empty() || ours == theirs) return;
  std::map<std::string, std::string> all = ours;
  all.insert(theirs.begin(), theirs.end());
  size_t count = 0;
  std::string first;
  bool contradicts = false;  // true if the first module is in both lists, which is worse than a missing one
  for (const auto& [name, algo] : all) {
    const auto a = ours.find(name), b = theirs.find(name);
    const bool both = a != ours.end() && b != theirs.end();
    if (both && a->second == b->second) continue;
    if (count++ > 0 && (contradicts || !both)) continue;
    contradicts = both;
    first = fmt::format("{} of {} (config.json), found {}", a == ours.end() ? "nothing" : a->second, name,
                        b == theirs.end() ? "nothing" : b->second);
  }
  reporter.add("config-disagrees", {"hf_quant_config.json", "quantized_layers"}, "expected {} ({})", first,
               count == 1 ? "1 module differs" : fmt::format("{} modules differ", count));
}

}  // namespace

bool is_no_linear(std::string_view name) {
  for (const char* part : {"embed", "norm", "wte", "wpe", "conv", "lookup", "rotary", "vision", "visual",
                           "audio", "patch", "pos_emb", "lora", "position", "projector", "res_proj",
                           "routed_expert_down_proj", "routed_expert_up_proj"}) {
    if (name.find(part) != name.npos) return true;
  }
  return false;
}

bool is_own_router(const LintInput& s, const std::string& name) {
  // vLLM and SGLang build phimoe's router without the config, models/phimoe.py.
  const FamilyShapes* family = find_family_shapes(text_of(s.config, "model_type"));
  if (family != nullptr && family->router_is_float && name.ends_with(".block_sparse_moe.gate")) return true;
  // Hunyuan's router is `wg` below the gate, and Granite's is `layer` below the router.
  return s.find(name + ".e_score_correction_bias") || s.find(name + ".expert_bias") ||
         ends_in(name, "gate.wg") || ends_in(name, "router.layer");
}

namespace {

/// Reports codes if there is no quantization config.
void report_no_quantization(const LintInput& s, const std::vector<CodedModule>& coded,
                            LintReporter& reporter) {
  if (!s.config.is_object() || s.is_part) return;
  // For each format, the number of modules and the first of them.
  std::map<std::string, std::pair<size_t, std::string>> found;
  for (const CodedModule& m : coded) {
    if (m.scale_suffix.empty()) continue;
    // Blocks of FP8 have scales in as many shapes as there are matrices.
    const bool has_blocks = m.is_fp8() && (m.scales_k > 1 || (m.scales_n > 1 && m.scales_n != m.n));
    auto& [count, first] =
        found.try_emplace(has_blocks ? "FP8 in blocks" : m.text(), 0, m.name).first->second;
    ++count;
  }
  if (found.empty()) return;
  try {
    if (!read_side_configs(s.path).empty()) return;
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return;  // another rule reports this
  }
  for (const auto& [format, modules] : found) {
    reporter.add("no-quantization-config", {"config.json", "quantization_config"},
                 "expected it for {} (the first {}), found none",
                 counted(modules.first, std::string(format) + " module"), modules.second);
  }
}

}  // namespace

void lint_config(const LintInput& s, const std::vector<CodedModule>& coded, LintReporter& reporter) {
  std::error_code error;
  if (!std::filesystem::exists(s.path / "config.json", error)) {
    reporter.add("no-config", {"config.json", ""}, "expected it beside the weight files, found none");
  }
  lint_settings(s, reporter);
  if (s.quantization.is_null()) {
    report_no_quantization(s, coded, reporter);
    for (const StoredModule& m : stored_modules(s, coded)) check_router(s, m, reporter);
    return;
  }
  const ConfiguredQuantization configured(s.quantization, s.quantization_key);
  const Claims claims(configured);
  lint_unused_patterns(s, configured, reporter);
  std::set<std::string> reported;
  lint_cache(s, configured, reporter);
  check_listed_stacks(s, coded, configured, reporter);
  if (!lint_promises(s, configured, coded, reported, reporter))
    return;  // the config's other keys mean nothing
  check_formats(s, coded, configured, reported, reporter);
  check_lost_groups(s, coded, configured, reporter);
  check_tower(s, coded, configured, reporter);
  check_row_scales(s, configured, reporter);
  bool disagree = false;
  const auto report_other = [&]<class... Args>(const char* key, fmt::format_string<Args...> text,
                                               Args&&... args) {
    disagree = true;
    reporter.add("config-disagrees", {"hf_quant_config.json", key}, text, std::forward<Args>(args)...);
  };
  const Json& words = member(s.hf_quant_config, "quantization");
  if (s.layout.empty() && s.hf_quant_config.contains("quantization")) {
    const std::string other = text_of(words, "quant_algo");
    if (claims.modelopt && !claims.algorithm.empty() && claims.algorithm != other) {
      report_other("quant_algo", "expected {} (config.json), found {}", claims.algorithm,
                   other.empty() ? "none" : other);
    }
    check_listed_layers(s, reporter);
    const auto excluded = strings_of(words, "exclude_modules");
    const std::set<std::string> b(excluded.begin(), excluded.end());
    const auto& a = configured.ignored();
    const auto alike = [](const auto& x, const std::string& y) { return x.first == y; };
    if (claims.modelopt && !a.empty() && !std::equal(a.begin(), a.end(), b.begin(), b.end(), alike)) {
      report_other("exclude_modules",
                   "expected the {} patterns of config.json's ignore, found {} and not the same", a.size(),
                   b.size());
    }
  }
  // Lookups are possible only if all patterns of the lists can be evaluated. If the two files disagree,
  // lookups use one of them.
  if (PatternList(configured.ignored()).all_known()) lint_lookups(s, coded, reported, disagree, reporter);
}

}  // namespace twofour
