#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <set>
#include <unordered_set>

#include "formats/naming.h"
#include "formats/weight_dialect.h"
#include "lib/checkpoint/model_config.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/dialects/lookup_parts.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/promises.h"
#include "lib/names/config_pattern.h"

namespace twofour {
namespace {

enum class StoredAs { kUnquantized, kNvfp4, kFp8, kMxfp4, kInt4 };

const char* stored_name(StoredAs s) {
  return s == StoredAs::kUnquantized ? "unquantized"
         : s == StoredAs::kNvfp4     ? "NVFP4"
         : s == StoredAs::kFp8       ? "FP8"
         : s == StoredAs::kMxfp4     ? "MXFP4"
                                     : "INT4";
}

struct StoredModule {
  std::string name;
  size_t tensor;
  StoredAs stored;
};

/// Modules of MXFP4 and INT4, whose codes have scales beside them.
void add_coded_modules(const LintInput& s, std::vector<StoredModule>& modules) {
  for (const WeightDialect& d : weight_dialects()) {
    const bool coded = d.format == WeightFormat::kMxfp4 || d.format == WeightFormat::kInt4;
    if (!coded || *d.weight != '.') continue;
    for (size_t i = 0; i < s.tensors.size(); ++i) {
      const TensorInfo& t = s.tensors[i];
      if (!d.weight_types.has(t.dtype) || t.shape.size() != 2 || !t.name.ends_with(d.weight)) continue;
      std::string name = t.name.substr(0, t.name.size() - std::string_view(d.weight).size());
      const auto scale = s.find(name + d.scale);
      if (!scale || !d.scale_types.has(s.tensors[*scale].dtype)) continue;
      modules.push_back(
          {std::move(name), i, d.format == WeightFormat::kInt4 ? StoredAs::kInt4 : StoredAs::kMxfp4});
    }
  }
}

/// Matrices by module name, and how they are stored.
std::vector<StoredModule> stored_modules(const LintInput& s) {
  std::vector<StoredModule> modules;
  for (const Nvfp4Linear& m : s.modules) modules.push_back({m.name, m.codes, StoredAs::kNvfp4});
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const TensorInfo& t = s.tensors[i];
    constexpr std::string_view kWeight = ".weight";
    if (t.dtype == DType::kU8 || !t.name.ends_with(kWeight) || t.shape.size() != 2) continue;
    const std::string name = t.name.substr(0, t.name.size() - kWeight.size());
    const bool plain = t.dtype == DType::kBF16 || t.dtype == DType::kF16 || t.dtype == DType::kF32;
    if (plain) modules.push_back({name, i, StoredAs::kUnquantized});
    if (t.dtype == DType::kF8E4M3) modules.push_back({name, i, StoredAs::kFp8});
  }
  add_coded_modules(s, modules);
  return modules;
}

std::string_view leaf_of(std::string_view name) { return name.substr(name.rfind('.') + 1); }

bool is_head(std::string_view name) {
  return leaf_of(name) == "lm_head" || name == "head" || name == "output";
}

bool is_router(std::string_view name) {
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  return ends(".router") || ends(".mlp.gate") || ends(".ffn.gate") || ends(".block_sparse_moe.gate") ||
         ends(".mixer.gate") || ends(".feed_forward.gate") || ends(".shared_expert_gate");
}

/// What a quantization config promises, of either producer; see reference texts of both for the keys.
struct Claims {
  bool modelopt = false, compressed_tensors = false;
  std::string algo;                            ///< of ModelOpt: "NVFP4", "MIXED_PRECISION", ...
  std::map<std::string, std::string> ignored;  ///< pattern to the key that has it
  std::map<std::string, std::string> layers;   ///< quantized_layers: module to algorithm
  bool all_linears = false;                    ///< whatever is not ignored is quantized
  bool only_nvfp4 = false;                     ///< and in no other format
};

std::string text_at(const Json& json, const char* key) {
  return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}

void read_compressed_tensors(const Json& entry, Claims& c) {
  c.compressed_tensors = true;
  const Json groups = entry.contains("config_groups") && entry["config_groups"].is_object()
                          ? entry["config_groups"]
                          : Json::object();
  c.all_linears = c.only_nvfp4 = !groups.empty();
  for (const Json& g : groups) {
    const auto targets = string_list(g, "targets");
    c.all_linears = c.all_linears && targets == std::vector<std::string>{"Linear"};
    const Json none = Json::object();
    const Json& weights =
        g.is_object() && g.contains("weights") && g["weights"].is_object() ? g["weights"] : none;
    c.only_nvfp4 = c.only_nvfp4 && weights.contains("num_bits") && weights["num_bits"] == 4 &&
                   text_at(weights, "type") == "float" && weights.contains("group_size") &&
                   weights["group_size"] == 16;
  }
}

Claims read_claims(const LintInput& s) {
  Claims c;
  const Json& entry = s.quantization;
  if (!entry.is_object()) return c;
  const Json* q = &entry;  // hf_quant_config.json has it one level down
  std::string place = s.quantization_key.empty() ? "" : s.quantization_key + ".";
  if (entry.contains("quantization") && entry["quantization"].is_object()) {
    q = &entry["quantization"];
    place += "quantization.";
  }
  for (const char* key : {"ignore", "exclude_modules"}) {
    for (std::string& text : string_list(*q, key)) c.ignored.try_emplace(std::move(text), place + key);
  }
  if (text_at(entry, "quant_method") == "compressed-tensors") {
    read_compressed_tensors(entry, c);
    return c;
  }
  c.algo = text_at(*q, "quant_algo");
  c.modelopt = text_at(entry, "quant_method") == "modelopt" || q != &entry;
  if (q->contains("quantized_layers") && (*q)["quantized_layers"].is_object()) {
    for (const auto& [name, layer] : (*q)["quantized_layers"].items())
      c.layers[name] = text_at(layer, "quant_algo");
  }
  c.only_nvfp4 = c.algo.find("NVFP4") != c.algo.npos;
  c.all_linears = c.modelopt && c.only_nvfp4 && c.layers.empty();
  return c;
}

/// Whether a list of layers names `module` or something above it.
const std::string* find_listed(const std::map<std::string, std::string>& layers, const std::string& module) {
  for (std::string_view name = module;;) {
    const auto it = layers.find(std::string(name));
    if (it != layers.end()) return &it->second;
    const size_t dot = name.rfind('.');
    if (dot == name.npos) return nullptr;
    name = name.substr(0, dot);
  }
}

/// Names of modules: of tensors without their last part.
class ModuleNames {
 public:
  explicit ModuleNames(const LintInput& s) : tensors_(s.tensors) {
    for (const TensorInfo& t : s.tensors) {
      const std::string_view name = std::string_view(t.name).substr(0, t.name.rfind('.'));
      if (names_.empty() || names_.back() != name) names_.push_back(name);
    }
    for (const std::string_view name : names_) {
      if (auto other = other_name(s.config, name, name_in_transformers); !other.empty())
        others_.insert(std::move(other));
    }
  }
  /// Whether `path` is a tensor, a module, by either name that loaders know, or something above one.
  bool has(const std::string& path) const {
    if (find_tensor(tensors_, path) || others_.count(path) > 0) return true;
    const std::string below = path + ".";
    const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), below,
                                     [](const TensorInfo& t, const std::string& b) { return t.name < b; });
    return at != tensors_.end() && at->name.starts_with(below);
  }
  bool has_part(const std::string& text) const {
    return std::any_of(names_.begin(), names_.end(),
                       [&](std::string_view n) { return n.find(text) != n.npos; });
  }
  /// Whether it matches a module or anything above one.
  bool any_matches(const ConfigPattern& pattern) {
    if (folded_.empty()) {
      for (std::string_view name : names_) {
        while (folded_.insert(without_digits(name)).second) {
          if (name.find('.') == name.npos) break;
          name = name.substr(0, name.rfind('.'));
        }
      }
    }
    if (!pattern.tells_digits()) {
      return std::any_of(folded_.begin(), folded_.end(), [&](auto& p) { return pattern.matches(p); });
    }
    for (std::string_view name : names_) {
      for (;; name = name.substr(0, name.rfind('.'))) {
        if (pattern.matches(name)) return true;
        if (name.find('.') == name.npos) break;
      }
    }
    return false;
  }

 private:
  std::span<const TensorInfo> tensors_;
  std::vector<std::string_view> names_;
  std::unordered_set<std::string> others_;  ///< what transformers calls modules that have another name there
  std::unordered_set<std::string> folded_;
};

bool has_tied_head(const LintInput& s) {
  const auto tied = model_settings(s.config, "tie_word_embeddings");
  return std::any_of(tied.begin(), tied.end(), [](const Json* said) { return *said == true; });
}

/// Whether a name is of a layer that the model is to have and that is missing altogether, which is reported.
bool is_of_missing_layer(const ModuleNames& names, const std::string& text, int64_t layers) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = text.find(kLayers);
  if (at == text.npos) return false;
  const size_t number = at + kLayers.size();
  const size_t end = std::min(text.find('.', number), text.size());
  int64_t layer = 0;
  const auto [last, error] = std::from_chars(text.data() + number, text.data() + end, layer);
  if (error != std::errc() || last != text.data() + end || layer >= layers) return false;
  return !names.has(text.substr(0, end)) && names.has(text.substr(0, number - 1));
}

/// Entries of quantized_layers, and groups, that no module belongs to.
void check_unused_entries(const LintInput& s, const Claims& claims, ModuleNames& names, bool tied,
                          LintReporter& reporter) {
  size_t count = 0;
  std::string first;
  for (const auto& [name, algorithm] : claims.layers) {
    if (names.has(name) || (tied && is_head(name)) ||
        is_of_missing_layer(names, name, model_layers(s.config)))
      continue;
    if (count++ == 0) first = name;
  }
  if (count > 0) {
    reporter.add("unused-pattern", s.quantization_file, first,
                 fmt::format("expected a module of that name, as quantized_layers has it, found none{}",
                             count > 1 ? fmt::format(", nor for {} more", count - 1) : ""));
  }
  const Json& groups = lookups::member(s.quantization, "config_groups");
  if (!claims.compressed_tensors || !groups.is_object()) return;
  for (const auto& [name, group] : groups.items()) {
    const std::vector<std::string> targets = string_list(group, "targets");
    const bool used = std::any_of(targets.begin(), targets.end(), [&](const std::string& text) {
      if (text.find_first_of(".*\\") == text.npos) return true;  // a class
      if (!is_wild(text)) return names.has(text);
      const ConfigPattern pattern(text);
      return !pattern.known() || names.any_matches(pattern);
    });
    if (used || targets.empty()) continue;
    reporter.add("unused-pattern", s.quantization_file, targets[0],
                 fmt::format("expected to match a module, as config_groups.{} targets it, found none", name));
  }
}

void check_unused(const LintInput& s, const Claims& claims, LintReporter& reporter) {
  const bool has_entries = s.layout.empty() && (!claims.layers.empty() || claims.compressed_tensors);
  if (s.is_part || (claims.ignored.empty() && !has_entries)) return;
  ModuleNames names(s);
  if (has_entries) check_unused_entries(s, claims, names, has_tied_head(s), reporter);
  const bool tied = has_tied_head(s);
  for (const auto& [text, key] : claims.ignored) {
    if (is_wild(text) && !ConfigPattern(text).known()) {
      reporter.add(may_be_pythons(text) ? "python-only-pattern" : "unreadable-pattern", s.quantization_file,
                   text,
                   fmt::format("expected a regular expression in {}, found none that can be followed", key));
      continue;
    }
    // A tied head has no tensor, and producers exclude it all the same.
    if (is_head(text) || (tied && text.find("lm_head") != text.npos)) continue;
    // compressed-tensors takes a glob for a name.
    const bool is_glob = claims.compressed_tensors && !text.starts_with("re:");
    if (is_glob && is_wild(text)) {
      reporter.add(
          "unused-pattern", s.quantization_file, text,
          "expected a name or, after re:, a regular expression, found a glob, which matches nothing");
      continue;
    }
    if (names.has(text) || is_of_missing_layer(names, text, model_layers(s.config))) continue;
    // transformers renames phimoe's router, and producers list it by that name.
    constexpr std::string_view kRenamed = ".block_sparse_moe.router";
    if (text.ends_with(kRenamed) &&
        is_own_router(s, text.substr(0, text.size() - kRenamed.size()) + ".block_sparse_moe.gate"))
      continue;
    // ModelOpt's older lists rely on substrings.
    if (!is_wild(text) && claims.modelopt && names.has_part(text)) continue;
    if (is_wild(text) && names.any_matches(ConfigPattern(text))) continue;
    reporter.add("unused-pattern", s.quantization_file, text,
                 "expected to match a module, found none that it matches");
  }
}

/// Adds the modules that nothing else needs to be said of to `reported`.
void check_formats(const LintInput& s, Claims& claims, std::set<std::string>& reported,
                   LintReporter& reporter) {
  PatternList ignored(claims.ignored);
  const std::set<std::string> explained = reported;
  const bool tied = has_tied_head(s);  // loaders skip one that is stored all the same
  for (const StoredModule& m : stored_modules(s)) {
    const auto report = [&](const char* rule, std::string message) {
      reported.insert(m.name);
      reporter.add(rule, s.file_of(m.tensor), m.name, std::move(message));
    };
    const bool quantized = m.stored != StoredAs::kUnquantized;
    if (is_head(m.name) && (tied || quantized)) reported.insert(m.name);
    if (quantized && is_router(m.name)) {
      reporter.add("quantized-router", s.file_of(m.tensor), m.name,
                   fmt::format("expected an unquantized router, found {}", stored_name(m.stored)));
    }
    if (quantized && is_head(m.name)) {
      reporter.add("quantized-head", s.file_of(m.tensor), m.name,
                   fmt::format("expected an unquantized head, found {}", stored_name(m.stored)));
    }
    if ((!claims.modelopt && !claims.compressed_tensors) || explained.contains(m.name)) continue;
    const std::string renamed = other_name(s.config, m.name, name_in_transformers);
    const bool is_ignored = ignored.matches(m.name) || (!renamed.empty() && ignored.matches(renamed));
    if (quantized && is_ignored) {
      report("config-dtype", fmt::format("expected unquantized as the config's ignore list says, found {}",
                                         stored_name(m.stored)));
    } else if (quantized && m.stored != StoredAs::kNvfp4 && claims.only_nvfp4 && claims.layers.empty()) {
      report("config-dtype",
             fmt::format("expected NVFP4 as the config says, found {}", stored_name(m.stored)));
    } else if (m.stored == StoredAs::kNvfp4 && claims.algo.starts_with("FP8")) {
      report("config-dtype", fmt::format("expected {} as the config says, found NVFP4", claims.algo));
    } else if (!claims.layers.empty()) {
      const std::string* algo = find_listed(claims.layers, m.name);
      const bool wants_nvfp4 = algo != nullptr && algo->find("NVFP4") != algo->npos;
      if ((m.stored == StoredAs::kNvfp4) != wants_nvfp4 && (algo != nullptr || quantized)) {
        report("config-dtype", fmt::format("expected {} as quantized_layers says, found {}",
                                           algo == nullptr ? "unquantized" : *algo, stored_name(m.stored)));
      }
    } else if (!quantized && !is_ignored && claims.all_linears && ignored.all_known() &&
               !is_no_linear(m.name) && !is_own_router(s, m.name) && !(tied && is_head(m.name))) {
      report("unquantized-not-ignored", "expected in the config's ignore list or quantized, found neither");
    }
  }
}

/// The algorithm of each module that a configuration lists, lower case; names of FP8 in blocks are one.
std::map<std::string, std::string> listed_layers(const Json& entry) {
  std::map<std::string, std::string> layers;
  if (entry.is_object() && entry.contains("quantization")) return listed_layers(entry["quantization"]);
  if (!entry.is_object() || !entry.contains("quantized_layers") || !entry["quantized_layers"].is_object())
    return layers;
  for (const auto& [name, layer] : entry["quantized_layers"].items()) {
    std::string algo = text_at(layer, "quant_algo");
    std::transform(algo.begin(), algo.end(), algo.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const bool blocks = algo.starts_with("fp8_pb") || algo == "fp8_block_scales";
    layers[name] = blocks ? "fp8 in blocks" : algo;
  }
  return layers;
}

/// Lists of mixed formats, which engines read in one file or the other.
void check_listed_layers(const LintInput& s, LintReporter& reporter) {
  const auto ours = listed_layers(s.quantization), theirs = listed_layers(s.hf_quant_config["quantization"]);
  if (ours.empty() || theirs.empty() || ours == theirs) return;
  std::map<std::string, std::string> all = ours;
  all.insert(theirs.begin(), theirs.end());
  size_t count = 0;
  std::string first;
  bool contradicts = false;  // both name the first, which says more than that one does not
  for (const auto& [name, algo] : all) {
    const auto a = ours.find(name), b = theirs.find(name);
    const bool both = a != ours.end() && b != theirs.end();
    if (both && a->second == b->second) continue;
    if (count++ > 0 && (contradicts || !both)) continue;
    contradicts = both;
    first = fmt::format("{} of {} as config.json says, found {}", a == ours.end() ? "nothing" : a->second,
                        name, b == theirs.end() ? "nothing" : b->second);
  }
  reporter.add("config-disagrees", "hf_quant_config.json", "quantized_layers",
               fmt::format("expected {} ({} modules differ)", first, count));
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
  // vLLM and SGLang build phimoe's without the config, models/phimoe.py.
  const bool is_phimoe = s.config.is_object() && s.config.value("model_type", Json()) == "phimoe";
  if (is_phimoe && name.ends_with(".block_sparse_moe.gate")) return true;
  // Hunyuan's is below the gate, Granite's below the router.
  return s.find(name + ".e_score_correction_bias") || s.find(name + ".expert_bias") ||
         name.ends_with(".gate.wg") || name.ends_with(".router.layer");
}

namespace {

/// Codes of which no config says anything.
void report_no_quantization(const LintInput& s, const std::vector<CodedModule>& coded,
                            LintReporter& reporter) {
  if (!s.config.is_object() || s.is_part) return;
  std::map<std::string, std::pair<size_t, std::string>> found;  // format to modules, the first
  for (const CodedModule& m : coded) {
    if (m.scale_suffix.empty()) continue;
    auto& [count, first] = found.try_emplace(m.text(), 0, m.name).first->second;
    ++count;
  }
  if (found.empty()) return;
  try {
    if (read_side_config(s.path)) return;
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return;  // reported by another rule
  }
  for (const auto& [format, modules] : found) {
    reporter.add("no-quantization-config", "config.json", "quantization_config",
                 fmt::format("expected for {} {} modules, the first {}, found none", modules.first, format,
                             modules.second));
  }
}

}  // namespace

void lint_config(const LintInput& s, const std::vector<CodedModule>& coded, LintReporter& reporter) {
  std::error_code error;
  if (!std::filesystem::exists(s.path / "config.json", error)) {
    reporter.add("no-config", "config.json", "", "expected beside the weight files, found none");
  }
  lint_settings(s, reporter);
  if (s.quantization.is_null()) {
    report_no_quantization(s, coded, reporter);
    for (const StoredModule& m : stored_modules(s)) {
      if (m.stored != StoredAs::kUnquantized && is_router(m.name))
        reporter.add("quantized-router", s.file_of(m.tensor), m.name,
                     fmt::format("expected an unquantized router, found {}", stored_name(m.stored)));
    }
    return;
  }
  Claims claims = read_claims(s);
  check_unused(s, claims, reporter);
  std::set<std::string> reported;
  lint_cache(s, reporter);
  if (!lint_promises(s, coded, reported, reporter)) return;  // nothing else means what it says
  check_formats(s, claims, reported, reporter);
  bool disagree = false;
  const auto report_other = [&](const char* key, std::string message) {
    disagree = true;
    reporter.add("config-disagrees", "hf_quant_config.json", key, std::move(message));
  };
  if (s.layout.empty() && s.hf_quant_config.is_object() && s.hf_quant_config.contains("quantization")) {
    const std::string other = text_at(s.hf_quant_config["quantization"], "quant_algo");
    if (claims.modelopt && !claims.algo.empty() && claims.algo != other) {
      report_other("quant_algo", fmt::format("expected {} as config.json says, found {}", claims.algo,
                                             other.empty() ? "none" : other));
    }
    check_listed_layers(s, reporter);
    const auto excluded = string_list(s.hf_quant_config["quantization"], "exclude_modules");
    const std::set<std::string> b(excluded.begin(), excluded.end());
    const auto& a = claims.ignored;
    const auto alike = [](const auto& x, const std::string& y) { return x.first == y; };
    if (claims.modelopt && !a.empty() && !std::equal(a.begin(), a.end(), b.begin(), b.end(), alike)) {
      report_other("exclude_modules",
                   fmt::format("expected the {} patterns of config.json's ignore, found {} and not the same",
                               a.size(), b.size()));
    }
  }
  // What a list says that we cannot follow is not known, and of two files only the one that counts is read.
  if (PatternList(claims.ignored).all_known()) lint_lookups(s, reported, disagree, reporter);
}

}  // namespace twofour
