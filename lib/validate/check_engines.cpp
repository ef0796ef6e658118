#include <fmt/format.h>

#include "lib/artifact/layout_names.h"
#include "lib/checkpoint/linears.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/dialects/loader_lookup.h"
#include "lib/validate/checks.h"

namespace twofour {
namespace check_engines_of {
namespace {

/// Where engines read other formats than the tensors have, but for limits of engines.
std::vector<LookupFinding> find_conflicts(const Checkpoint& c) {
  std::vector<LookupFinding> conflicts;
  if (holds_layout(c)) return conflicts;
  Problems problems;
  std::vector<LoadedModule> modules;
  for (const Linear& m : find_weight_modules(c, problems)) modules.push_back({m.name, format_of(c, m)});
  if (!problems.empty()) return conflicts;
  const auto entry = quantization_entry(c.config());
  const LoadedConfig config = loaded_config(c.config(), {entry ? entry->value : Json(), c.hf_quant_config()});
  for (LookupFinding& f : check_lookups(config, modules)) {
    if (!f.is_limit && !f.is_split) conflicts.push_back(std::move(f));
  }
  return conflicts;
}

}  // namespace
}  // namespace check_engines_of

void check_engines(const Checkpoint& artifact, const Checkpoint* source, ValidateReport& report) {
  const std::vector<LookupFinding> conflicts = check_engines_of::find_conflicts(artifact);
  if (conflicts.empty()) return;
  // What its source says wrongly a conversion keeps.
  const bool is_ours = source != nullptr && check_engines_of::find_conflicts(*source).empty();
  for (const LookupFinding& f : conflicts) {
    const std::string where = f.module.empty() ? "config.json" : f.module;
    if (is_ours) {
      differ(report, "engine-lookup", where, f.message);
    } else {
      report.notes.push_back({Severity::kWarning, "engine-lookup", where, f.message});
    }
  }
}

}  // namespace twofour
