#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include "formats/error.h"
#include "formats/families/family.h"
#include "formats/json.h"
#include "formats/module_names.h"
#include "kernels/numbers/casts.h"
#include "lib/run/runtime/state.h"
#include "lib/source/config/model_config.h"
#include "lib/source/model/router_rule.h"
#include "lib/source/model/settings.h"

namespace twofour {
namespace {

std::string config_path(const Checkpoint& artifact) { return (artifact.path() / "config.json").string(); }

/// Works like model_setting().
const Json& setting_of(const Checkpoint& artifact, std::string_view key) {
  return model_setting(artifact.config(), key, config_path(artifact));
}

/// True if a tensor is a term of a router other than gate.weight. `name` is its name below the block.
/// Families call the term gate.e_score_correction_bias, e_score_correction_bias,
/// moe_statics.e_score_correction_bias or expert_bias.
bool is_router_term(std::string_view name) {
  if (name.starts_with("gate.")) return name != "gate.weight";
  constexpr std::string_view kWords[] = {"correction_bias", "moe_statics", "expert_bias", "routing_bias",
                                         "router."};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return name.find(word) != name.npos; });
}

/// The settings of the language model's router, from all of the model's configs.
Json router_settings(const Json& config, const std::string& where) {
  constexpr std::string_view kKeys[] = {"norm_topk_prob", "routed_scaling_factor", "topk_method", "n_group",
                                        "topk_group"};
  Json configured = Json::object();
  for (const Json* of : model_configs(config)) {
    for (const auto& [key, value] : of->items()) {
      const bool is_known = std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
      if (!value.is_null() && (is_known || is_scoring_key(key)))
        configured[key] = model_setting(config, key, where);
    }
  }
  return configured;
}

/// The row for the router of a language model. `configured` are the router's settings in the configs.
const FamilyRouter& family_router(const Json& config, const Json& configured, const std::string& where) {
  // The outer model_type belongs to the whole model, which may also read images.
  const auto types = model_settings(config, "model_type");
  const FamilyRouter* family = nullptr;
  if (!types.empty() && types.back()->is_string())
    family = find_family_router(types.back()->get_ref<const std::string&>());
  if (family == nullptr) family = find_described_router(configured);
  if (family != nullptr) return *family;
  throw Error(
      fmt::format("{}: model_type: expected one whose router is known, or scoring_func softmax and a "
                  "norm_topk_prob, found {}",
                  where, types.empty() ? "none" : quoted_setting(*types.back())));
}

/// Throws Error if a router has terms that its row does not have.
void check_terms(const Checkpoint& artifact, const std::string& block, const char* correction) {
  for (const TensorInfo& t : artifact.tensors()) {
    const std::string_view name = t.name;
    if (!name.starts_with(block) || !name.substr(block.size()).starts_with('.')) continue;
    const std::string_view below = name.substr(block.size() + 1);
    if (!is_router_term(below) || (correction != nullptr && below == correction)) continue;
    throw Error(fmt::format(
        "{}: expected a router of {}, found {}", block,
        correction == nullptr ? "gate.weight" : fmt::format("gate.weight and {}", correction), t.name));
  }
}

/// The rule by which a layer chooses experts.
struct LayerRouter {
  RouterRule rule;
  const char* correction;  ///< name of the correction below the block; null if there is none
};

LayerRouter router_of(const Checkpoint& artifact, const LayerInfo& info, const std::string& block,
                      int64_t topk) {
  // If config.json has fewer experts than the layer, the router would choose among experts that the model
  // does not have.
  if (const int64_t promised = promised_experts(artifact.config()); promised > 0 && promised < info.e)
    throw Error(fmt::format("{}: expected {} experts (config.json), found {}", info.name, promised, info.e));
  const std::string where = config_path(artifact);
  const Json configured = router_settings(artifact.config(), where);
  const FamilyRouter& family = family_router(artifact.config(), configured, where);
  check_terms(artifact, block, family.correction);
  constexpr FamilyShapes kNoShapes{.model_types = {}, .parameters = {}, .defaults = ""};
  const Settings settings(kNoShapes, configured, where + ": ");
  return {read_router_rule(family, settings, info.e, topk), family.correction};
}

/// Reads a tensor of floats that must have the given shape.
std::vector<float> read_floats(const Checkpoint& artifact, const std::string& name,
                               const std::vector<int64_t>& shape) {
  const auto tensor = artifact.find(name);
  if (!tensor) throw Error(fmt::format("{}: expected a tensor of its router, found none", name));
  const TensorInfo& t = artifact.tensors()[*tensor];
  if (!is_float(t.dtype) || t.shape != shape) {
    throw Error(fmt::format("{}: expected F32, BF16 or F16 [{}], found {}", artifact.where(*tensor),
                            fmt::join(shape, ", "), describe(t.dtype, t.shape)));
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(t.bytes()));
  artifact.read(*tensor, 0, bytes);
  std::vector<float> values(bytes.size() / static_cast<size_t>(dtype_bits(t.dtype) / 8));
  widen(t.dtype, bytes.data(), values);
  return values;
}

/// The products of weight [E, H] and hidden [M, H], summed in double.
std::vector<float> router_logits(const std::vector<float>& weight, std::span<const float> hidden,
                                 int64_t experts, int64_t h) {
  const int64_t m = static_cast<int64_t>(hidden.size()) / h;
  std::vector<float> logits(static_cast<size_t>(m * experts));
#pragma omp parallel for schedule(static)
  for (int64_t at = 0; at < m * experts; ++at) {
    const float* row = weight.data() + at % experts * h;
    const float* x = hidden.data() + at / experts * h;
    double sum = 0;
    for (int64_t k = 0; k < h; ++k) sum += static_cast<double>(row[k]) * static_cast<double>(x[k]);
    logits[static_cast<size_t>(at)] = static_cast<float>(sum);
  }
  return logits;
}

}  // namespace

float RuntimeArtifact::swiglu_limit() const {
  const Json& value = setting_of(state_->artifact, "swiglu_limit");
  if (value.is_null()) return 0;
  if (!value.is_number() || !is_limit(value.get<double>())) {
    throw Error(fmt::format("{}: swiglu_limit: expected a finite float32 number not below 0, found {}",
                            config_path(state_->artifact), quoted_setting(value)));
  }
  return value.get<float>();
}

int64_t RuntimeArtifact::experts_per_token(size_t layer) const {
  const LayerInfo& info = state_->layers.at(layer);
  if (info.e == 1) return 1;
  const Json& value = setting_of(state_->artifact, "num_experts_per_tok");
  if (value.is_null()) return 0;
  const int64_t topk = value.is_number_integer() ? value.get<int64_t>() : 0;
  if (topk < 1 || topk > info.e) {
    throw Error(fmt::format("{}: num_experts_per_tok: expected 1 to the {} experts of {}, found {}",
                            config_path(state_->artifact), info.e, info.name, quoted_setting(value)));
  }
  return topk;
}

ExpertChoice RuntimeArtifact::route(size_t layer, std::span<const float> hidden, int64_t m,
                                    int64_t topk) const {
  const LayerInfo& info = state_->layers.at(layer);
  const Checkpoint& artifact = state_->artifact;
  if (m < 0 || hidden.size() != static_cast<size_t>(m) * static_cast<size_t>(info.h))
    throw Error(
        fmt::format("{}: expected hidden [{}, {}], found {} values", info.name, m, info.h, hidden.size()));
  if (topk < 1 || topk > info.e)
    throw Error(fmt::format("{}: expected 1 to {} experts a token, found {}", info.name, info.e, topk));
  const std::string block(module_of(info.name)), name = block + ".gate.weight";
  if (!artifact.find(name) && info.e == 1)
    return {std::vector<int32_t>(static_cast<size_t>(m), 0),
            std::vector<float>(static_cast<size_t>(m), 1.0f)};
  LayerRouter router;
  std::vector<float> weight, correction;
  try {
    router = router_of(artifact, info, block, topk);
    weight = read_floats(artifact, name, {info.e, info.h});
    if (router.correction != nullptr)
      correction = read_floats(artifact, fmt::format("{}.{}", block, router.correction), {info.e});
  } catch (const Error& e) {
    throw Error(fmt::format("{}; give topk_ids and topk_weights", e.what()));
  }
  const auto is_finite = [](float x) { return std::isfinite(x); };
  if (!std::all_of(correction.begin(), correction.end(), is_finite))
    throw Error(fmt::format("{}.{}: expected finite numbers, found others", block, router.correction));
  const std::vector<float> logits = router_logits(weight, hidden, info.e, info.h);
  const auto odd = std::find_if_not(logits.begin(), logits.end(), is_finite);
  if (odd != logits.end()) {
    throw Error(fmt::format("{}: token {}: expected finite router logits, found others", info.name,
                            (odd - logits.begin()) / info.e));
  }
  return cpu::choose_experts(router.rule, logits, info.e, topk, correction);
}

}  // namespace twofour
