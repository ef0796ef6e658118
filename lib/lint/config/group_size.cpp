#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "formats/atom.h"
#include "formats/json/access.h"
#include "lib/base/findings/and_more.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/coded_modules.h"
#include "lib/source/config/configured_quantization.h"

namespace twofour {
namespace {

/// The group size that a config states for NVFP4 weights.
struct Stated {
  std::string key;  ///< path of the key in the file
  Json size;
};

void collect(const Json& at, const std::string& key, std::vector<Stated>& stated) {
  const Json& size = member(at, "group_size");
  if (size.is_number()) stated.push_back({key + ".group_size", size});
}

/// Collects group sizes from config_groups, which both producers write. A group may be MXFP4, which differs
/// from NVFP4 only in group size. So if one group's size fits the weights, no other group is reported.
void collect_groups(const Json& entry, const std::string& key, std::vector<Stated>& stated) {
  std::vector<Stated> fp4;
  for (const auto& [name, group] : members_of(entry, "config_groups")) {
    const Json& weights = member(group, "weights");
    const bool is_fp4 = member(weights, "num_bits") == 4 && member(weights, "type") == "float";
    if (is_fp4) collect(weights, fmt::format("{}.config_groups.{}.weights", key, name), fp4);
  }
  const bool fits = std::any_of(fp4.begin(), fp4.end(), [](const Stated& s) { return s.size == kGroup; });
  if (!fits) stated.insert(stated.end(), fp4.begin(), fp4.end());
}

/// Collects ModelOpt's own group size, which is beside an algorithm.
void collect_algo(const Json& at, const std::string& key, std::vector<Stated>& stated) {
  if (text_of(at, "quant_algo").find("NVFP4") != std::string::npos) collect(at, key, stated);
}

void check_entry(const char* file, const Json& entry, const std::string& key, size_t modules,
                 LintReporter& reporter) {
  std::vector<Stated> stated;
  collect_groups(entry, key, stated);
  collect_algo(entry, key, stated);
  for (const auto& [name, layer] : members_of(entry, "quantized_layers"))
    collect_algo(layer, fmt::format("{}.quantized_layers.{}", key, name), stated);
  for (const Stated& s : stated) {
    if (s.size == kGroup) continue;
    reporter.add("config-group-size", {file, s.key},
                 "expected {} (as in the block scales of {} NVFP4 modules), found {}", kGroup, modules,
                 json_line(s.size));
  }
}

/// Compares the size that a config states for each module with block scales with that of the module. It is
/// done where some modules have scales for 32 weights, because the sizes may differ then.
void check_modules(const LintInput& s, const std::vector<CodedModule>& coded, LintReporter& reporter) {
  ConfiguredQuantization configured(s.quantization, s.quantization_key);
  struct Wrong {
    const CodedModule* first;
    size_t count = 0;
  };
  std::map<std::pair<int64_t, int64_t>, Wrong> wrong;  // by the sizes that are stated and stored
  for (const CodedModule& m : coded) {
    if (!m.format->global_scale) continue;
    const auto size = configured.group_size_of(m.name);
    if (!size || *size == m.format->group) continue;
    Wrong& at = wrong.try_emplace({*size, m.format->group}, Wrong{&m}).first->second;
    ++at.count;
  }
  for (const auto& [sizes, modules] : wrong) {
    reporter.add("config-group-size", s.at(*modules.first->scale, modules.first->name),
                 "expected block scales for {} weights (the config), found {}, for {} weights{}", sizes.first,
                 describe(s.tensors[*modules.first->scale]), sizes.second,
                 and_more(modules.count, ", and in {} more modules"));
  }
}

}  // namespace

void lint_group_size(const LintInput& s, const std::vector<CodedModule>& coded, LintReporter& reporter) {
  const auto is_of_32 = [](const CodedModule& m) { return m.format->variant_of != nullptr; };
  if (std::ranges::any_of(coded, is_of_32)) return check_modules(s, coded, reporter);
  // Without modules there is nothing to compare. Block scales of another group size make no module, and their
  // shapes are reported.
  if (s.modules.empty()) return;
  const Json& other = s.hf_quant_config;
  if (s.quantization != other) {
    check_entry(s.quantization_file.c_str(), s.quantization, s.quantization_key, s.modules.size(), reporter);
  }
  check_entry("hf_quant_config.json", member(other, "quantization"), "quantization", s.modules.size(),
              reporter);
}

}  // namespace twofour
