#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/base/names/config_pattern.h"
#include "lib/base/names/pattern.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/loader_lookup.h"
#include "lib/source/dialects/output_dialect.h"

namespace twofour {
namespace {

/// Returns the modules that could be quantized and are not, by the names of their weights.
std::vector<std::string> unquantized_names(const Checkpoint& c) {
  std::vector<std::string> names;
  for (const TensorInfo& t : c.tensors()) {
    if (!is_float(t.dtype) || t.shape.size() < 2 || !t.name.ends_with(".weight")) continue;
    names.push_back(t.name.substr(0, t.name.size() - std::string_view(".weight").size()));
  }
  return names;
}

/// Replaces globs by those `names` that they match. vLLM matches globs with the fused layer's name, and
/// "*.q_proj" does not match "qkv_proj".
std::vector<std::string> name_what_is_fused(const std::vector<std::string>& globs,
                                            const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& glob : globs) {
    const NamePattern pattern(glob);
    std::vector<std::string> matched;
    bool is_part = false;
    for (const std::string& name : is_wild(glob) ? names : std::vector<std::string>()) {
      if (!pattern.matches(name)) continue;
      matched.push_back(name);
      const auto fused = fused_group(name);
      is_part = is_part || (fused && !pattern.matches(fused->first + ".qkv_proj") &&
                            !pattern.matches(fused->first + ".gate_up_proj"));
    }
    if (!is_part) matched = {glob};
    std::move(matched.begin(), matched.end(), std::back_inserter(all));
  }
  return all;
}

/// Removes duplicates from a list, since several patterns may match one name.
std::vector<std::string> each_once(std::vector<std::string> all) {
  std::set<std::string> seen;
  std::erase_if(all, [&](const std::string& one) { return !seen.insert(one).second; });
  return all;
}

/// Throws Error if activations are FP8 and weights NVFP4, which the other dialect cannot express.
void refuse_fp8_activations(const Json& entry, const Json& hf_quant) {
  for (const Json* settings : {&entry, ConfiguredQuantization(hf_quant).settings}) {
    if (text_of(*settings, "quant_algo") == "W4A8_NVFP4_FP8")
      throw Error(
          "quant_algo: expected NVFP4 or W4A16_NVFP4, which both dialects have, found W4A8_NVFP4_FP8");
  }
}

}  // namespace

QuantizedConfig translate_config(const Checkpoint& source, const OutputDialect& to) {
  const Json entry = source_quantization(source);
  const Json& hf_quant = source.hf_quant_config();
  refuse_fp8_activations(entry, hf_quant);
  QuantizedConfig config;
  config.fp8_kv_cache = has_fp8_kv_cache(source);
  for (const Nvfp4Linear& m : source.nvfp4_modules()) {
    if (is_head(m.name)) config.heads.push_back(m.name);
  }
  std::vector<std::string> ignored = strings_of(entry, "ignore");
  std::string where = quantization_place(source, "ignore");
  const Json& quantization = member(hf_quant, "quantization");
  if (ignored.empty() && quantization.is_object()) {
    ignored = strings_of(quantization, "exclude_modules");
    where = (source.path() / "hf_quant_config.json").string() + ": quantization.exclude_modules";
  }
  // A list that names a quantized module is wrong: engines would look for its BF16 weights.
  for (const Nvfp4Linear& m : source.nvfp4_modules()) std::erase(ignored, m.name);
  // If the source lists quantized modules, or no modules, the unquantized ones are listed here.
  const bool all_linears = ConfiguredQuantization(entry).targets_all_linears();
  const bool names_layers =
      !member(entry, "quantized_layers").is_null() || !member(quantization, "quantized_layers").is_null();
  const std::vector<std::string> names = unquantized_names(source);
  try {
    config.unquantized =
        each_once(to.excludes_by_glob ? name_what_is_fused(regexes_to_globs(ignored, names), names)
                                      : globs_to_regexes(ignored));
    if (all_linears && !ignored.empty() && !names_layers) return config;
    const std::vector<NamePattern> known = parse_patterns(config.unquantized);
    for (const std::string& name : names) {
      if (!any_matches(known, name)) config.unquantized.push_back(name);
    }
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", where, e.what()));
  }
  return config;
}

}  // namespace twofour
