#include <fmt/format.h>

#include <algorithm>

#include "lib/base/findings/and_more.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/base/names/quantization_methods.h"
#include "lib/lint/config/promises.h"
#include "lib/source/config/model_config.h"
#include "lib/source/dialects/loader_lookup.h"

namespace twofour {
namespace {

/// Returns the method whose reader looks for tensors with the names of this module.
const char* method_for(const CodedModule& m) {
  if (m.format->global_scale) return m.divides ? "compressed-tensors" : "modelopt";
  if (m.suffix == ".weight_packed") return "compressed-tensors";
  if (m.suffix == "_blocks") return "mxfp4";
  if (m.suffix == ".qweight") return m.along_n ? "awq" : "gptq";
  if (m.is_mxfp8()) return m.scale_suffix == ".weight_scale_inv" ? "mxfp8" : "modelopt";
  if (m.is_fp8()) return m.scale_suffix.ends_with("weight_scale") ? "modelopt" : "fp8";
  return "modelopt";
}

/// True if the method has a reader for tensors with the names of this module.
bool reads(QuantMethod method, const CodedModule& m) {
  const bool plain = m.suffix == ".weight" || m.suffix.empty();
  switch (method) {
    case QuantMethod::kModelOpt:
      return plain;
    case QuantMethod::kGroups:
      return m.suffix == ".weight_packed" ||
             (plain && m.scale_suffix == ".weight_scale" && (!m.is_mxfp4() || m.divides));
    case QuantMethod::kFp8:
      return plain && m.is_fp8();
    case QuantMethod::kMxfp8:
      return plain && m.is_mxfp8();
    case QuantMethod::kMxfp4:
      return m.is_mxfp4();
    case QuantMethod::kGptq:
      return m.suffix == ".qweight" && !m.along_n;
    case QuantMethod::kAwq:
      return m.suffix == ".qweight" && (m.along_n || m.scales_k == m.scales_n);
    case QuantMethod::kNone:
    case QuantMethod::kOther:
      break;
  }
  return false;
}

class MethodLint : public PromiseCheck {
 public:
  using PromiseCheck::PromiseCheck;

  bool run() {
    if (modules_.empty()) return check_codes();
    if (check_method()) return false;
    check_experts();
    if (p_.method == QuantMethod::kModelOpt) check_algorithms();
    if (p_.method == QuantMethod::kFp8 || p_.method == QuantMethod::kMxfp8) check_fp8();
    if (p_.method == QuantMethod::kGptq || p_.method == QuantMethod::kAwq)
      lint_integers(s_, p_, modules_, reported_, reporter_);
    report_votes();
    return true;
  }

 private:
  /// Reports a method that always means codes if there are no codes.
  bool check_codes() {
    const bool is_coded =
        p_.method == QuantMethod::kMxfp4 || p_.method == QuantMethod::kGptq || p_.method == QuantMethod::kAwq;
    if (!is_coded || s_.tensors.empty()) return true;
    add(key("quant_method"), "expected none, because no tensor holds codes, found {}",
        json_quote_short(p_.method_text));
    return false;
  }

  /// True if the method is wrong. The config's other keys then need no check.
  bool check_method() {
    std::map<std::string_view, size_t> wanted;
    for (const CodedModule& m : modules_) ++wanted[method_for(m)];
    const auto most =
        std::max_element(wanted.begin(), wanted.end(), [](auto& a, auto& b) { return a.second < b.second; });
    const auto first = std::find_if(modules_.begin(), modules_.end(),
                                    [&](const CodedModule& m) { return method_for(m) == most->first; });
    const bool own_file = s_.quantization_file != "config.json";
    const bool is_missing = p_.method_text.empty() && !own_file;
    // No rule here reads the keys of other methods.
    const bool is_known = p_.method != QuantMethod::kOther || is_known_method(p_.method_text);
    // Among ModelOpt's checkpoints, only mixed ones have scales with the names of other producers.
    const bool is_bare = p_.method == QuantMethod::kModelOpt && lookups::algorithm_of(*p_.settings).empty() &&
                         !p_.layers().is_object() && most->first != "modelopt";
    const auto readable = std::count_if(modules_.begin(), modules_.end(),
                                        [&](const CodedModule& m) { return reads(p_.method, m); });
    const bool is_read = p_.method == QuantMethod::kOther ||
                         (has_other_experts() ? readable > 0 : 2 * readable >= std::ssize(modules_));
    if (!is_missing && is_known && is_read && !is_bare) return false;
    if (p_.method == QuantMethod::kNone && own_file) return false;
    add(s_.quantization_key.empty() ? "quant_method" : s_.quantization_key + ".quant_method",
        "expected {} (as in {}{} ({}{}{})), found {}", most->first, first->name, first->suffix, first->text(),
        first->scale_suffix.empty() ? "" : " with ", first->scale_suffix,
        p_.method_text.empty() ? "none" : json_quote_short(p_.method_text));
    for (const CodedModule& m : modules_) reported_.insert(m.name);
    return true;
  }

  /// True if keys beside the method state another format for experts.
  bool has_other_experts() const {
    return !text_of(*p_.settings, "moe_quant_algo").empty() ||
           !text_of(*p_.settings, "routed_experts_quant_method").empty() ||
           !text_of(*p_.settings, "expert_dtype").empty() ||
           loaded_config(s_.config, {s_.quantization, nullptr}).deepseek_v4;
  }

  /// Checks DeepSeek-V4's key for the codes of routed experts. Its default is FP4.
  void check_experts() {
    if (p_.method != QuantMethod::kFp8 || !loaded_config(s_.config, {s_.quantization, nullptr}).deepseek_v4)
      return;
    std::string configured = text_of(s_.config, "expert_dtype");
    if (configured.empty()) configured = text_of(*p_.settings, "expert_dtype");
    const bool is_fp8 = configured == "fp8";
    for (const CodedModule& m : modules_) {
      if (m.name.find(".experts.") == m.name.npos || is_in_mtp(m.name)) continue;
      const bool stored_fp8 = m.is_fp8();
      if (stored_fp8 == is_fp8) return;
      reporter_.add("config-format", {"config.json", "expert_dtype"}, "expected {} (as in {}), found {}",
                    stored_fp8 ? "fp8" : "fp4", m.name,
                    configured.empty() ? "none" : json_quote_short(configured));
      return;
    }
  }

  void check_algorithms() {
    if (p_.method_text == "modelopt_fp8") {
      const auto fp4 = std::find_if(modules_.begin(), modules_.end(),
                                    [](const CodedModule& m) { return m.format->global_scale; });
      if (fp4 != modules_.end())
        add(key("quant_method"), "expected modelopt, because {} is in NVFP4, found modelopt_fp8", fp4->name);
    }
    const std::string single = lookups::algorithm_of(*p_.settings);
    const Json& layers = p_.layers();
    if (single.empty() && layers.is_object() && !layers.empty()) {
      add(key("quant_algo"), "expected MIXED_PRECISION, with which loaders read quantized_layers, found {}",
          shown_setting(member(*p_.settings, "quant_algo")));
    } else if (single.empty() && !layers.is_object()) {
      add(key("quant_algo"), "expected an algorithm, because {} is in {}, found {}", modules_[0].name,
          modules_[0].text(), shown_setting(member(*p_.settings, "quant_algo")));
    } else if (!single.empty() && find_algorithm(single) == nullptr) {
      add(key("quant_algo"), "expected an algorithm that loaders support, found {}",
          json_quote_short(single));
      for (const CodedModule& m : modules_) reported_.insert(m.name);
      return;
    }
    // For each unknown algorithm, its first module and their number.
    std::map<std::string, std::pair<std::string, size_t>> unknown;
    for (const auto& [name, entry] : members_of(layers)) {
      const std::string algorithm = lookups::algorithm_of(entry);
      if (find_algorithm(algorithm) == nullptr)
        ++unknown.try_emplace(algorithm, name, 0).first->second.second;
    }
    for (const auto& [algorithm, where] : unknown) {
      add(key("quantized_layers.") + where.first, "expected an algorithm that loaders support, found {}{}",
          algorithm.empty() ? "none" : json_quote_short(algorithm),
          and_more(where.second, ", and in {} more"));
    }
    for (size_t i = 0; i < modules_.size(); ++i) {
      const Promise& promise = p_.of[i];
      if (promise.entry != p_.settings) continue;
      const Algorithm& algorithm = *find_algorithm(promise.algorithm);
      if (!algorithm.scheme.format->is_known()) continue;
      votes_.add(promise.place, i, is_in(modules_[i], algorithm) ? "" : modules_[i].text(),
                 json_quote_short(promise.algorithm));
    }
    check_scale_names();
    check_scaled_inputs();
    check_groups();
    check_group_size();
  }

  /// Checks that scales have the names that ModelOpt's readers look up. It is done only if all modules have
  /// one algorithm: mixed exports may have the names of their source. FP8 blocks have two names that are in
  /// use.
  void check_scale_names() {
    std::optional<size_t> first;
    size_t count = 0;
    for (size_t i = 0; i < modules_.size(); ++i) {
      const CodedModule& m = modules_[i];
      if (p_.of[i].entry != p_.settings || !m.format->tiles) continue;
      const bool blocks = m.is_fp8() && m.scales_k > 1;
      if (m.scale_suffix.empty() || m.scale_suffix.ends_with("weight_scale") ||
          (blocks && m.scale_suffix.ends_with("weight_scale_inv")))
        continue;
      if (count++ == 0) first = i;
    }
    if (!first || p_.of[*first].algorithm == "MIXED_PRECISION") return;
    const CodedModule& m = modules_[*first];
    reporter_.add("incomplete-module", s_.at(m.tensor, m.name),
                  "expected weight_scale, the name of scales in loaders of {}, found {}{}",
                  p_.of[*first].algorithm, m.scale_suffix, and_more(count, ", and in {} more modules"));
  }

  /// Compares ModelOpt's groups with its algorithms, which must state the same formats. Other algorithms are
  /// not checked.
  void check_groups() {
    for (const auto& [name, group] : members_of(p_.groups())) {
      std::string algorithm = lookups::algorithm_of(*p_.settings);
      const std::vector<std::string> targets = strings_of(group, "targets");
      if (algorithm == "MIXED_PRECISION" && !targets.empty())
        algorithm = lookups::algorithm_of(member(p_.layers(), targets[0]));
      const bool fp4 = algorithm == "NVFP4" || algorithm == "W4A16_NVFP4";
      const Json& weights = member(group, "weights");
      if ((!fp4 && algorithm != "FP8") || !weights.is_object()) continue;
      const std::string at = key("config_groups.") + name;
      const auto hold = [&](const char* of, const char* part, const Json& expected) {
        const Json& numbers = member(group, of);
        if (!numbers.is_object() || member(numbers, part) == expected) return;
        reporter_.add(std::string_view(of) == "weights" ? "config-format" : "config-inputs",
                      s_.setting(fmt::format("{}.{}.{}", at, of, part)), "expected {} (as {}), found {}",
                      quoted_setting(expected), algorithm, shown_setting(member(numbers, part)));
      };
      for (const char* of : {"weights", "input_activations"}) {
        hold(of, "num_bits", fp4 ? 4 : 8);
        hold(of, "type", "float");
      }
      if (member(weights, "dynamic") == true) hold("weights", "dynamic", false);
      if (fp4 && member(weights, "group_size").is_null()) hold("weights", "group_size", 16);
    }
  }

  /// Reports a missing group size, which SGLang requires if all modules are NVFP4. Another check compares the
  /// size.
  void check_group_size() {
    const Json& words = member(s_.hf_quant_config, "quantization");
    const std::string algorithm = lookups::algorithm_of(words);
    if ((algorithm != "NVFP4" && algorithm != "W4A16_NVFP4") || !member(words, "group_size").is_null())
      return;
    reporter_.add("config-group-size", {"hf_quant_config.json", "quantization.group_size"},
                  "expected 16, because {} is {}, found none", modules_[0].name, modules_[0].text());
  }

  /// Reports algorithms that scale the inputs of a linear if no tensor holds the scales.
  void check_scaled_inputs() {
    std::optional<size_t> first;
    bool found = false;
    for (size_t i = 0; i < modules_.size(); ++i) {
      const Algorithm* algorithm = find_algorithm(p_.of[i].algorithm);
      const bool is_configured =
          p_.of[i].entry != nullptr && member(*p_.of[i].entry, "pre_quant_scale") == true;
      if (!is_configured && (algorithm == nullptr || !algorithm->scales_inputs_first)) continue;
      if (!first) first = i;
      found = found || s_.find(modules_[i].name + ".pre_quant_scale") ||
              s_.find(modules_[i].name + "_pre_quant_scale");
    }
    if (!first || found) return;
    add(p_.of[*first].place,
        "expected an algorithm that scales no inputs, because {} and all others have no pre_quant_scale, "
        "found {}",
        modules_[*first].name, json_quote_short(p_.of[*first].algorithm));
  }

  void check_fp8() {
    size_t unnamed = 0;
    for (size_t i = 0; i < modules_.size(); ++i) {
      const CodedModule& m = modules_[i];
      if (!m.format->tiles || m.is_stack) continue;
      check_blocks(i, m);
      const bool other_name = m.is_fp8() && m.scales_k > 1 && m.scale_suffix == ".weight_scale";
      if (other_name && unnamed++ == 0) {
        reporter_.add(
            "incomplete-module", s_.at(m.tensor, m.name),
            "expected weight_scale_inv, the name of block scales in loaders of fp8, found weight_scale");
      }
      const bool wide = s_.tensors[m.tensor].dtype == DType::kF8E5M2;
      const Json& format = member(*p_.settings, "fmt");
      const std::string text = text_of(*p_.settings, "fmt");
      const bool says_wide = text.find("e5m2") != text.npos;
      const bool fits = format.is_null() || (says_wide == wide && text.find("fnuz") == text.npos &&
                                             (wide || text.find("e4m3") != text.npos));
      votes_.add(key("fmt"), i, fits ? "" : wide ? "e5m2" : "e4m3", shown_setting(format));
      if (!m.scale) continue;
      const DType scale = s_.tensors[*m.scale].dtype;
      const bool powers = scale == DType::kF8E8M0 || scale == DType::kU8;
      const Json& scales = member(*p_.settings, "scale_fmt");
      // Configs of mxfp8 need not state it. Source: vLLM, quantization/mxfp8.py.
      const bool is_implied = p_.method == QuantMethod::kMxfp8 && scales.is_null();
      votes_.add(key("scale_fmt"), i, powers && scales != "ue8m0" && !is_implied ? "ue8m0" : "",
                 shown_setting(scales));
    }
  }

  void check_blocks(size_t i, const CodedModule& m) {
    if (!m.scale || m.n <= 0 || m.k <= 0 || m.scales_n <= 0 || m.scales_k <= 0) return;
    const Json& block = member(*p_.settings, "weight_block_size");
    const auto sizes = pair_of(block);
    const bool fits =
        sizes ? divides_into(m.n, sizes->first, m.scales_n) && divides_into(m.k, sizes->second, m.scales_k)
              : block.is_null() && m.scales_k == 1;
    votes_.add(key("weight_block_size"), i, fits ? "" : block_text(m), shown_setting(block));
  }
  static std::string block_text(const CodedModule& m) {
    for (const int64_t n : {128, 64, 32, 256, 1}) {
      for (const int64_t k : {128, 64, 32, 256}) {
        if (divides_into(m.n, n, m.scales_n) && divides_into(m.k, k, m.scales_k) && (n == k || n == 1))
          return fmt::format("[{}, {}]", n, k);
      }
    }
    return m.scales_n == 1 && m.scales_k == 1 ? "none" : "blocks";
  }
};

}  // namespace

bool lint_methods(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                  std::set<std::string>& reported, LintReporter& reporter) {
  return MethodLint(input, promises, modules, reported, reporter).run();
}

}  // namespace twofour
