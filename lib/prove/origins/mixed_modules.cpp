#include "lib/prove/origins/mixed_modules.h"

#include <algorithm>
#include <map>

#include "lib/base/findings/problems.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

std::map<std::string, std::string> formats_of(const Checkpoint& c) {
  std::map<std::string, std::string> formats;
  Problems ignored;
  for (const Linear& m : find_weight_modules(c, ignored)) formats[m.name] = m.format->name;
  return formats;
}

bool is_for_activations(const std::string& name) {
  const size_t dot = name.rfind('.') + 1;
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{"bias", "input_scale", "input_global_scale", "act_scale",
                                              "k_scale", "v_scale", "q_scale", "prob_scale"},
      [&](std::string_view end) { return name.ends_with(end) && name.size() >= dot + end.size(); });
}

}  // namespace

Findings find_mixed_modules(const Checkpoint& artifact, const EditOrigins& origins, const Checkpoint& base,
                            const Checkpoint& donor) {
  Findings found;
  const auto differ = [&](const std::string& where, const char* message) {
    found.push_back({Severity::kError, "mixed-module", where, message});
  };
  const std::map<std::string, std::string> before = formats_of(base), given = formats_of(donor);
  const auto has_one_format = [&](const std::string& module) {
    return before.contains(module) && given.contains(module) && before.at(module) == given.at(module);
  };
  Problems ignored;
  for (const Linear& m : find_weight_modules(artifact, ignored)) {
    if (!m.format->coded) continue;
    const auto codes = origins.of(artifact.tensors()[m.weight].name);
    for (const size_t i : m.tensors()) {
      const TensorInfo& t = artifact.tensors()[i];
      const auto origin = origins.of(t.name);
      if (!codes || !origin || origin->from == codes->from) continue;
      const auto ours = base.find(t.name);
      const bool is_alike =
          ours && base.tensors()[*ours].dtype == t.dtype && base.tensors()[*ours].shape == t.shape;
      if (origin->from != &donor || !is_for_activations(t.name) || !is_alike || !has_one_format(m.name))
        differ(t.name, "expected it from the source of its module's codes, found the other's");
    }
  }
  // The donor says what parts a module has: in the artifact, a module that lost a part is no longer
  // recognized.
  for (const Linear& m : find_weight_modules(donor, ignored)) {
    if (!m.format->coded) continue;
    const bool comes = origins.stays(donor, m.weight);
    for (const size_t i : m.tensors()) {
      const std::string& name = donor.tensors()[i].name;
      if (comes && !origins.stays(donor, i)) differ(name, "expected it with its codes, found those alone");
      if (comes || !origins.stays(donor, i) || (is_for_activations(name) && has_one_format(m.name))) continue;
      differ(name, "expected it to stay with its codes, found it alone");
    }
  }
  return found;
}

}  // namespace twofour
