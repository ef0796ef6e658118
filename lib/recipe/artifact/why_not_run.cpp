#include "lib/recipe/artifact/why_not_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "formats/families/family.h"
#include "formats/module_parts.h"
#include "formats/naming.h"
#include "lib/source/config/config_terms.h"
#include "lib/source/config/model_config.h"
#include "lib/source/linears/weight_terms.h"

namespace twofour {
namespace {

/// The linear of a block that a tensor with an unknown suffix belongs to: "P.0.gate_proj" for
/// "P.0.gate_proj.smooth_scale". Empty if the tensor belongs to no linear.
std::string_view linear_of_block(std::string_view tensor, std::string_view block) {
  for (size_t dot = tensor.find('.', block.size() + 1); dot != tensor.npos; dot = tensor.find('.', dot + 1)) {
    const auto name = parse_module_name(tensor.substr(0, dot));
    if (name && name->block == block) return tensor.substr(0, dot);
  }
  return {};
}

std::optional<std::string> find_term(const Checkpoint& c, const std::string& block) {
  const TensorAccess access = access_to(c);
  const auto tensors = c.tensors();
  const std::string prefix = block + ".";
  auto at = std::lower_bound(tensors.begin(), tensors.end(), prefix,
                             [](const TensorInfo& t, const std::string& p) { return t.name < p; });
  for (; at != tensors.end() && at->name.starts_with(prefix); ++at) {
    const auto tensor = static_cast<size_t>(at - tensors.begin());
    // An artifact has the terms beside its source's linears, but not their weights.
    const auto part = parse_part_name(at->name);
    std::string linear(part ? part->module : linear_of_block(at->name, block));
    const auto name = parse_module_name(linear);
    if (!name || name->block != block) {
      // The term may belong to the block itself instead of a linear.
      const bool is_lost = part && part->part->kind == PartKind::kTerm &&
                           part->part->harmless == Harmless::kNever && !part->part->decoder;
      if (!is_lost) continue;
      return fmt::format("{}: expected linears with weights only, found this tensor in their block",
                         c.where(tensor));
    }
    const ModulePart& found =
        part ? *part->part : find_module_part(std::string_view(at->name).substr(linear.size() + 1));
    const bool is_term = found.kind == PartKind::kTerm &&
                         !(found.decoder && (*found.decoder)->global_scale) &&
                         !changes_nothing(access, tensor, found.harmless);
    if (!is_term && found.kind != PartKind::kUnknown && found.name != "bias") continue;
    return fmt::format("{}: expected linears with weights only, found this tensor beside {}", c.where(tensor),
                       linear);
  }
  return std::nullopt;
}

std::optional<std::string> find_activation(const Checkpoint& c, bool gated) {
  const std::string where = (c.path() / "config.json").string();
  const auto configs = model_configs(c.config());
  for (const char* key : {"hidden_act", "hidden_activation", "mlp_hidden_act"}) {
    for (const Json* value : model_settings(configs, key)) {
      const bool usual = gated ? *value == "silu" || *value == "swish" : *value == "relu2";
      if (usual) continue;
      return fmt::format("{}: {}: expected {}, found {}", where, key, gated ? "silu" : "relu2",
                         quoted_setting(*value));
    }
  }
  for (const Json* alpha : model_settings(configs, "swiglu_alpha")) {
    if (*alpha != 1)
      return fmt::format("{}: swiglu_alpha: expected 1, found {}", where, quoted_setting(*alpha));
  }
  // The config.json of these models has silu.
  for (const Json* type : model_settings(configs, "model_type")) {
    if (!type->is_string() || !clamps_gates(type->get_ref<const std::string&>())) continue;
    return fmt::format(
        "{}: model_type: expected a model with silu(gate) * up, found {}, which has "
        "gate * sigmoid(1.702 gate) * (up + 1)",
        where, quoted_setting(*type));
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_not_run(const Checkpoint& checkpoint, const std::string& block, bool gated) {
  if (auto term = find_term(checkpoint, block)) return term;
  const auto terms = find_config_terms(checkpoint, {});
  if (!terms.empty()) return text_of(checkpoint, terms[0]);
  return find_activation(checkpoint, gated);
}

}  // namespace twofour
