#include <fmt/format.h>

#include "formats/atom.h"
#include "lib/lint/config/checks.h"

namespace twofour {
namespace {

/// A group size that a config states for NVFP4 weights.
struct Stated {
  std::string key;  ///< its path in the file
  Json size;
};

void collect(const Json& at, const std::string& key, std::vector<Stated>& stated) {
  if (!at.is_object() || !at.contains("group_size") || !at["group_size"].is_number()) return;
  stated.push_back({key + ".group_size", at["group_size"]});
}

/// That of config_groups, which both producers write. A group may be of another format: MXFP4 differs from
/// NVFP4 in nothing else, so where one of them fits the weights nothing is said of the rest.
void collect_groups(const Json& entry, const std::string& key, std::vector<Stated>& stated) {
  if (!entry.contains("config_groups") || !entry["config_groups"].is_object()) return;
  std::vector<Stated> fp4;
  for (const auto& [name, group] : entry["config_groups"].items()) {
    if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) continue;
    const Json& weights = group["weights"];
    const bool is_fp4 = weights.contains("num_bits") && weights["num_bits"] == 4 &&
                        weights.contains("type") && weights["type"] == "float";
    if (is_fp4) collect(weights, fmt::format("{}.config_groups.{}.weights", key, name), fp4);
  }
  for (const Stated& s : fp4) {
    if (s.size == kGroup) return;
  }
  stated.insert(stated.end(), fp4.begin(), fp4.end());
}

/// ModelOpt's own, beside an algorithm.
void collect_algo(const Json& at, const std::string& key, std::vector<Stated>& stated) {
  const bool is_nvfp4 = at.is_object() && at.contains("quant_algo") && at["quant_algo"].is_string() &&
                        at["quant_algo"].get_ref<const std::string&>().find("NVFP4") != std::string::npos;
  if (is_nvfp4) collect(at, key, stated);
}

void check_entry(const char* file, const Json& entry, const std::string& key, size_t modules,
                 LintReporter& reporter) {
  if (!entry.is_object()) return;
  std::vector<Stated> stated;
  collect_groups(entry, key, stated);
  collect_algo(entry, key, stated);
  if (entry.contains("quantized_layers") && entry["quantized_layers"].is_object()) {
    for (const auto& [name, layer] : entry["quantized_layers"].items())
      collect_algo(layer, fmt::format("{}.quantized_layers.{}", key, name), stated);
  }
  for (const Stated& s : stated) {
    if (s.size == kGroup) continue;
    reporter.add("config-group-size", {file, s.key},
                 "expected {} as the block scales of {} NVFP4 modules have, found {}", kGroup, modules,
                 json_line(s.size));
  }
}

}  // namespace

void lint_group_size(const LintInput& s, LintReporter& reporter) {
  // A module with block scales of other groups is reported by its shapes and is not among these.
  if (s.modules.empty()) return;
  const Json& other = s.hf_quant_config;
  if (s.quantization != other) {
    check_entry(s.quantization_file.c_str(), s.quantization, s.quantization_key, s.modules.size(), reporter);
  }
  if (other.is_object() && other.contains("quantization")) {
    check_entry("hf_quant_config.json", other["quantization"], "quantization", s.modules.size(), reporter);
  }
}

}  // namespace twofour
