#include "lib/prove/origins/lost_terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace twofour {
namespace {

/// Parts of names of tensors and settings that change what codes mean. Source: ModelOpt, compressed-tensors,
/// Quark, AutoAWQ, Nunchaku, ComfyUI and PEFT.
constexpr std::array kWords{"pre_quant", "prequant",    "prescale",       "smooth",     "channel_scale",
                            "rotation",  "hadamard",    "_perm",          "lora_A",     "lora_B",
                            "lora_a",    "lora_b",      "lora_magnitude", "zero_point", "qzeros",
                            "g_idx",     "comfy_quant", "quant_metadata", "scaled_fp8", "input_scale_2"};
/// Settings that change what codes mean.
constexpr std::array kSettings{"pre_quant", "transform", "rotat",  "hadamard", "smooth", "svd",
                               "lora",      "swizzl",    "marlin", "_layout",  "nibble"};

size_t find_word(std::string_view name) {
  for (const std::string_view word : kWords) {
    if (const size_t at = name.rfind(word); at != name.npos) return at;
  }
  return name.npos;
}

/// True for what may be beside codes in one checkpoint alone: it does not change their weights.
bool is_apart(std::string_view name) {
  return std::ranges::any_of(
      std::array{"bias", "amax", "double_scale", "k_scale", "v_scale", "kv_scale", "q_scale", "output_scale",
                 "prob_scale", ".input_scale", ".input_global_scale"},
      [&](std::string_view end) { return name.ends_with(end); });
}

bool is_code(const TensorInfo& t) {
  const bool is_float = t.dtype == DType::kBF16 || t.dtype == DType::kF16 || t.dtype == DType::kF32 ||
                        t.dtype == DType::kF64 || t.dtype == DType::kBool;
  return !is_float && t.shape.size() >= 2 && t.name.find("scale") == t.name.npos &&
         t.name.find("zero") == t.name.npos;
}

/// The module of a tensor with codes: X of "X.weight", "X.weight_packed" and "X.qweight", and of a stack's
/// "X" and "X_blocks".
std::string module_of_codes(const std::string& name) {
  for (const std::string_view end : {".weight", ".weight_packed", ".qweight", "_blocks"}) {
    if (name.ends_with(end)) return name.substr(0, name.size() - end.size());
  }
  return name;
}

class Search {
 public:
  Search(const Checkpoint& donor, const std::function<bool(const Checkpoint&, size_t)>& stays)
      : stays_(stays) {
    for (size_t i = 0; i < donor.tensors().size(); ++i) {
      const TensorInfo& t = donor.tensors()[i];
      if (is_code(t) && stays(donor, i)) modules_.insert(module_of_codes(t.name));
    }
  }
  bool has_codes() const { return !modules_.empty(); }

  /// Adds the tensors of a source that concern the modules and are in the result if `is_there` is true for
  /// them.
  void add(const Checkpoint& source, bool is_there, const char* problem, std::vector<LostTerm>& found) const {
    for (size_t i = 0; i < source.tensors().size(); ++i) {
      if (stays_(source, i) == is_there && concerns(source.tensors()[i].name))
        found.push_back({source.where(i), problem});
    }
  }

 private:
  bool concerns(const std::string& name) const {
    const size_t word = find_word(name);
    if (word != name.npos) {
      const size_t dot = name.rfind('.', word);
      const std::string above = dot == name.npos ? "" : name.substr(0, dot + 1);
      const auto at = modules_.lower_bound(above);
      if (at != modules_.end() && at->starts_with(above)) return true;
    }
    if (is_apart(name)) return false;
    for (size_t end = name.find_first_of("._"); end != name.npos; end = name.find_first_of("._", end + 1)) {
      if (modules_.contains(name.substr(0, end))) return true;
    }
    return false;
  }

  const std::function<bool(const Checkpoint&, size_t)>& stays_;
  std::set<std::string> modules_;
};

bool is_empty(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("") || value == Json("linear") ||
         ((value.is_object() || value.is_array()) && value.size() == 0);
}

/// Adds the settings below `value` that change what codes mean, "KEY: VALUE".
void add_settings(const Json& value, std::set<std::string>& found) {
  if (value.is_array()) {
    for (const Json& entry : value) add_settings(entry, found);
  }
  if (!value.is_object()) return;
  for (const auto& [key, entry] : value.items()) {
    const std::string algorithm = key == "quant_algo" && entry.is_string() ? entry.get<std::string>() : "";
    const auto has = [](const auto& parts, std::string_view text) {
      return std::ranges::any_of(parts, [&](const char* p) { return text.find(p) != text.npos; });
    };
    const bool changes = has(std::array{"NVFP4_AWQ", "NVFP4_SVD", "NVFP4_ARC"}, algorithm);
    // Keys with dots are names of modules.
    const bool is_setting = has(kSettings, key) && key.find('.') == key.npos && !is_empty(entry);
    if (changes || is_setting)
      found.insert(fmt::format("{}: {}", key, format_json(entry)));
    else
      add_settings(entry, found);
  }
}

/// The settings in all quantization configs of a checkpoint.
std::set<std::string> settings_of(const Checkpoint& c) {
  std::set<std::string> found;
  const auto add = [&](const auto& self, const Json& config) -> void {
    if (!config.is_object()) return;
    for (const auto& [key, value] : config.items()) {
      if (key == "quantization_config" || key == "compression_config" || key == "quantization")
        add_settings(value, found);
      else
        self(self, value);
    }
  };
  add(add, c.config());
  add(add, c.hf_quant_config());
  return found;
}

}  // namespace

std::vector<LostTerm> find_lost_terms(const Checkpoint& artifact, const Checkpoint& base,
                                      const Checkpoint& donor,
                                      const std::function<bool(const Checkpoint&, size_t)>& stays) {
  std::vector<LostTerm> found;
  const Search search(donor, stays);
  if (!search.has_codes()) return found;
  search.add(donor, false,
             "expected in the artifact with the codes that it changes, found it in the donor alone", found);
  search.add(base, true, "expected no such tensor beside codes of the donor, found one of the base", found);
  const std::set<std::string> now = settings_of(artifact), theirs = settings_of(donor);
  for (const std::string& setting : theirs) {
    if (!now.contains(setting))
      found.push_back({"quantization", fmt::format("expected {} as the donor says of its codes", setting)});
  }
  for (const std::string& setting : now) {
    if (!theirs.contains(setting))
      found.push_back(
          {"quantization", fmt::format("found {}, which the donor does not say of its codes", setting)});
  }
  return found;
}

}  // namespace twofour
