#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string_view>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/naming.h"
#include "kernels/numbers/casts.h"
#include "lib/checkpoint/model_config.h"
#include "lib/runtime/state.h"

namespace twofour {
namespace {

std::string config_path(const Checkpoint& artifact) { return (artifact.path() / "config.json").string(); }

/// As model_setting().
const Json& setting_of(const Checkpoint& artifact, std::string_view key) {
  return model_setting(artifact.config(), key, config_path(artifact));
}

/// What config.json calls the model that routes: the language model, where it says that.
Json routing_type(const Json& config) {
  const auto types = model_settings(config, "model_type");
  return types.empty() ? Json() : *types.back();
}

RouterScores scores_of_type(const Json& type) {
  const ModelFamily* family =
      type.is_string() ? find_model_family(type.get_ref<const std::string&>()) : nullptr;
  return family == nullptr ? RouterScores::kUnknown : family->router;
}

/// How the model's class makes scores, where config.json need not say it.
RouterScores scores_of(const Json& config) { return scores_of_type(routing_type(config)); }

/// Whether a tensor, named as below its block, is a term of a router besides gate.weight. Families call it
/// gate.e_score_correction_bias, e_score_correction_bias, moe_statics.e_score_correction_bias, expert_bias.
bool is_router_term(std::string_view name) {
  if (name.starts_with("gate.")) return name != "gate.weight";
  constexpr std::string_view kWords[] = {"correction_bias", "moe_statics", "expert_bias", "routing_bias",
                                         "router."};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return name.find(word) != name.npos; });
}

/// Whether a key of config.json says how logits become scores: scoring_func, moe_router_activation_func,
/// moe_router_score_function and others of the kind.
bool is_scoring_key(std::string_view key) {
  const auto has = [&](std::string_view word) { return key.find(word) != key.npos; };
  return (has("scor") || has("router") || has("routing") || has("gating")) &&
         (has("func") || has("_fn") || has("activation"));
}

/// Whether a config says outright that logits become scores by a softmax.
bool says_softmax(const Json& config) {
  for (const Json* of : model_configs(config)) {
    for (const auto& [key, value] : of->items()) {
      if (is_scoring_key(key) && value == "softmax") return true;
    }
  }
  return false;
}

/// For people: scoring_func "sigmoid".
std::string setting_text(const std::string& key, const Json& value) {
  return fmt::format("{} {}", key, quoted_setting(value));
}

/// Refuses routers that are not a softmax over gate.weight, by what identifies them, and those that neither
/// model_type nor config describes.
void refuse_other_routers(const Checkpoint& artifact, const std::string& block) {
  const auto refuse = [&](const std::string& found) {
    throw Error(
        fmt::format("{}: expected a router that takes the softmax of gate.weight, found {}; give topk_ids "
                    "and topk_weights",
                    block, found));
  };
  for (const TensorInfo& t : artifact.tensors()) {
    const std::string_view name = t.name;
    if (name.starts_with(block) && name.substr(block.size()).starts_with('.') &&
        is_router_term(name.substr(block.size() + 1)))
      refuse(t.name);
  }
  const auto refuse_setting = [&](const std::string& key, const Json& value) {
    refuse(setting_text(key, value));
  };
  const auto is_other = [&](const char* key, const Json& usual) {
    for (const Json* value : model_settings(artifact.config(), key)) {
      if (*value != usual) refuse_setting(key, *value);
    }
  };
  is_other("scoring_func", "softmax");
  is_other("topk_method", "greedy");
  is_other("n_group", 1);
  is_other("routed_scaling_factor", 1.0);
  for (const Json* config : model_configs(artifact.config())) {
    for (const auto& [key, value] : config->items()) {
      if (is_scoring_key(key) && value.is_string() && value != "softmax") refuse_setting(key, value);
      if (key.find("sigmoid") != key.npos && value == true) refuse_setting(key, value);
    }
    const Json type = config->contains("model_type") ? (*config)["model_type"] : Json();
    const RouterScores scores = scores_of_type(type);
    if (scores == RouterScores::kSparseMixer) refuse("the sparse mixer of " + type.get<std::string>());
    if (scores == RouterScores::kSigmoid) refuse("the sigmoid of " + type.get<std::string>());
  }
  if (const Json& norm = setting_of(artifact, "norm_topk_prob"); !norm.is_null() && !norm.is_boolean())
    refuse(fmt::format("norm_topk_prob {}", quoted_setting(norm)));
  // Many families take the sigmoid by code alone.
  if (scores_of(artifact.config()) != RouterScores::kUnknown) return;
  const Json type = routing_type(artifact.config());
  const std::string shown = type.is_null() ? "no model_type" : setting_text("model_type", type);
  if (!says_softmax(artifact.config())) refuse(fmt::format("{} and no scoring_func that says so", shown));
  if (setting_of(artifact, "norm_topk_prob").is_null())
    throw Error(
        fmt::format("{}: expected norm_topk_prob in config.json, found none and {}, which does not determine "
                    "it; give topk_ids and topk_weights",
                    block, shown));
}

/// Whether the chosen experts' weights are brought to a sum of 1.
bool renormalizes(const Json& config) {
  if (const Json& norm = model_setting(config, "norm_topk_prob"); norm.is_boolean()) return norm.get<bool>();
  return scores_of(config) == RouterScores::kSoftmaxRenormalized;
}

/// softmax(logits), the `topk` largest, the lower expert on a tie.
void choose(std::vector<double>& scores, int64_t topk, bool renormalize, Routing& to) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (double& s : scores) total += s = std::exp(s - largest);
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&](int32_t e) { return scores[static_cast<size_t>(e)]; };
  std::partial_sort(order.begin(), order.begin() + topk, order.end(),
                    [&](int32_t a, int32_t b) { return score(a) != score(b) ? score(a) > score(b) : a < b; });
  order.resize(static_cast<size_t>(topk));
  if (renormalize)
    total = std::accumulate(order.begin(), order.end(), 0.0,
                            [&](double sum, int32_t e) { return sum + score(e); });
  for (const int32_t e : order) {
    to.ids.push_back(e);
    to.weights.push_back(static_cast<float>(score(e) / total));
  }
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

Routing RuntimeArtifact::route(size_t layer, std::span<const float> hidden, int64_t m, int64_t topk) const {
  const LayerInfo& info = state_->layers.at(layer);
  const Checkpoint& artifact = state_->artifact;
  if (m < 0 || hidden.size() != static_cast<size_t>(m) * static_cast<size_t>(info.h))
    throw Error(
        fmt::format("{}: expected hidden [{}, {}], found {} values", info.name, m, info.h, hidden.size()));
  if (topk < 1 || topk > info.e)
    throw Error(fmt::format("{}: expected 1 to {} experts a token, found {}", info.name, info.e, topk));
  const std::string block = info.name.substr(0, info.name.rfind('.')), name = block + ".gate.weight";
  const auto tensor = artifact.find(name);
  if (!tensor && info.e == 1) {
    return {1, std::vector<int32_t>(static_cast<size_t>(m), 0),
            std::vector<float>(static_cast<size_t>(m), 1.0f)};
  }
  if (!tensor)
    throw Error(
        fmt::format("{}: expected a router {}, found none; give topk_ids and topk_weights", info.name, name));
  refuse_other_routers(artifact, block);
  const TensorInfo& t = artifact.tensors()[*tensor];
  const bool is_float = t.dtype == DType::kF32 || t.dtype == DType::kBF16 || t.dtype == DType::kF16;
  if (!is_float || t.shape != std::vector{info.e, info.h}) {
    throw Error(fmt::format("{}: expected F32, BF16 or F16 [{}, {}], found {}", artifact.where(*tensor),
                            info.e, info.h, describe(t.dtype, t.shape)));
  }
  // It would choose among experts that the model does not have.
  if (const int64_t promised = promised_experts(artifact.config()); promised > 0 && promised < info.e)
    throw Error(
        fmt::format("{}: expected {} experts as config.json says, found {}; give topk_ids and topk_weights",
                    info.name, promised, info.e));
  std::vector<uint8_t> bytes(static_cast<size_t>(t.bytes()));
  artifact.read(*tensor, 0, bytes);
  std::vector<float> weight(static_cast<size_t>(info.e * info.h));
  widen(t.dtype, bytes.data(), weight);

  const bool renormalize = renormalizes(artifact.config());
  Routing routing{topk, {}, {}};
  for (int64_t i = 0; i < m; ++i) {
    std::vector<double> scores(static_cast<size_t>(info.e));
#pragma omp parallel for schedule(static)
    for (int64_t e = 0; e < info.e; ++e) {
      double sum = 0;
      for (int64_t k = 0; k < info.h; ++k) {
        sum += static_cast<double>(weight[static_cast<size_t>(e * info.h + k)]) *
               static_cast<double>(hidden[static_cast<size_t>(i * info.h + k)]);
      }
      scores[static_cast<size_t>(e)] = sum;
    }
    if (!std::all_of(scores.begin(), scores.end(), [](double s) { return std::isfinite(s); }))
      throw Error(fmt::format("{}: token {}: expected finite router logits, found others", info.name, i));
    choose(scores, topk, renormalize, routing);
  }
  return routing;
}

}  // namespace twofour
