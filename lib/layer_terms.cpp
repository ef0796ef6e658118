#include "lib/layer_terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "formats/naming.h"
#include "lib/checkpoint/model_config.h"

namespace twofour {
namespace {

/// "P.0.gate_proj" of "P.0.gate_proj.bias", "P.down_proj" of "P.down_proj_bias"; empty where a tensor is no
/// such term.
std::string_view linear_of_term(std::string_view tensor) {
  const auto stem = [&](std::string_view term) -> std::string_view {
    if (!tensor.ends_with(term)) return {};
    tensor.remove_suffix(term.size());
    if (!tensor.ends_with('.') && !tensor.ends_with('_')) return {};
    return tensor.substr(0, tensor.size() - 1);
  };
  if (tensor.ends_with("bias")) return stem("bias");
  const auto at = std::find_if(std::begin(kWeightTerms), std::end(kWeightTerms),
                               [&](std::string_view term) { return tensor.ends_with(term); });
  return at == std::end(kWeightTerms) ? std::string_view() : stem(*at);
}

std::optional<std::string> find_term(const Checkpoint& c, const std::string& block) {
  const auto tensors = c.tensors();
  const auto exists = [&](const std::string& name) { return c.find(name).has_value(); };
  const std::string prefix = block + ".";
  auto at = std::lower_bound(tensors.begin(), tensors.end(), prefix,
                             [](const TensorInfo& t, const std::string& p) { return t.name < p; });
  for (; at != tensors.end() && at->name.starts_with(prefix); ++at) {
    const std::string_view linear = linear_of_term(at->name);
    if (linear.empty()) continue;
    const auto name = parse_module_name(linear, exists);
    if (!name || name->block != block) continue;
    return fmt::format("{}: expected linears of weights alone, found this beside {}",
                       c.where(static_cast<size_t>(at - tensors.begin())), linear);
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
  // Its config.json says silu.
  for (const Json* type : model_settings(configs, "model_type")) {
    if (*type != "gpt_oss") continue;
    return fmt::format(
        "{}: model_type: expected a model with silu(gate) * up, found \"gpt_oss\", which has "
        "gate * sigmoid(1.702 gate) * (up + 1)",
        where);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_not_run(const Checkpoint& checkpoint, const std::string& block, bool gated) {
  if (auto term = find_term(checkpoint, block)) return term;
  return find_activation(checkpoint, gated);
}

}  // namespace twofour
