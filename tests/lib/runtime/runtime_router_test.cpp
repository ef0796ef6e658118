#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "formats/half.h"
#include "lib/runtime/artifact.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/runtime_layer.h"

namespace runtime_router_test {

using namespace twofour;

namespace {

constexpr int64_t kExperts = 5, kHidden = 32;

/// What a router must choose, by sorting all of its scores; hidden [M, H].
Routing expected(const ConvertedLayer& made, const std::vector<float>& hidden, size_t topk,
                 bool renormalize) {
  const auto gate = read_tensors(made.source()).at("model.layers.3.mlp.gate.weight").as<uint16_t>();
  Routing routing;
  for (size_t m = 0; m < hidden.size() / kHidden; ++m) {
    std::vector<std::pair<double, int32_t>> scores;
    double all = 0, chosen = 0;
    for (int32_t e = 0; e < kExperts; ++e) {
      double logit = 0;
      for (size_t k = 0; k < kHidden; ++k) {
        logit += static_cast<double>(bf16_to_float(gate[static_cast<size_t>(e) * kHidden + k])) *
                 static_cast<double>(hidden[m * kHidden + k]);
      }
      scores.push_back({-std::exp(logit), e});
      all += std::exp(logit);
    }
    std::sort(scores.begin(), scores.end());
    for (size_t t = 0; t < topk; ++t) chosen -= scores[t].first;
    for (size_t t = 0; t < topk; ++t) {
      routing.ids.push_back(scores[t].second);
      routing.weights.push_back(static_cast<float>(-scores[t].first / (renormalize ? chosen : all)));
    }
  }
  return routing;
}

std::vector<float> random_hidden(int64_t m, int64_t h) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  std::vector<float> hidden(static_cast<size_t>(m * h));
  for (float& x : hidden) x = normal(random);
  return hidden;
}

std::string refusal_under(const std::string& config) {
  const ConvertedLayer made("v7", kExperts, 16, kHidden, true, config);
  const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
  return message_of([&] { artifact.route(0, random_hidden(1, kHidden), 1, 2); });
}

}  // namespace

TEST_CASE("the router takes the softmax, then the largest, renormalized as config.json says") {
  for (
      const auto& [config, renormalize] :
      {std::pair{R"({"num_experts_per_tok": 3, "model_type": "olmoe", "norm_topk_prob": true})", true},
       {R"({"num_experts_per_tok": 3, "norm_topk_prob": false, "scoring_func": "softmax"})", false},
       {R"({"num_experts_per_tok": 3, "norm_topk_prob": true, "scoring_func": "softmax", "model_type": "deepseek_v3"})",
        true},
       {R"({"model_type": "mixtral", "text_config": {"num_experts_per_tok": 3, "norm_topk_prob": false}})",
        false},
       {R"({"num_experts_per_tok": 3, "model_type": "mixtral", "n_group": 1, "routed_scaling_factor": 1})",
        true},
       {R"({"num_experts_per_tok": 3, "model_type": "qwen2_moe"})", false},
       {R"({"num_experts_per_tok": 3, "model_type": "qwen2_moe", "norm_topk_prob": true})", true},
       {R"({"num_experts_per_tok": 3, "model_type": "qwen3_moe"})", false},
       {R"({"num_experts_per_tok": 3, "model_type": "qwen3_moe", "norm_topk_prob": null})", false},
       {R"({"num_experts_per_tok": 3, "model_type": "deepseek_v2"})", false},
       {R"({"num_experts_per_tok": 3, "model_type": "olmoe"})", false},
       {R"({"num_experts_per_tok": 3, "model_type": "qwen3_next"})", true},
       {R"({"num_experts_per_tok": 3, "model_type": "mixtral"})", true},
       {R"({"model_type": "x", "text_config": {"num_experts_per_tok": 3, "model_type": "qwen3_moe"}})",
        false},
       {R"({"model_type": "x", "llm_config": {"num_experts_per_tok": 3, "model_type": "qwen3_moe"}})",
        false}}) {
    CAPTURE(config);
    const ConvertedLayer made("v7", kExperts, 16, kHidden, true, config);
    const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
    CHECK(artifact.experts_per_token(0) == 3);
    const auto hidden = random_hidden(7, kHidden);
    const Routing got = artifact.route(0, hidden, 7, 3), want = expected(made, hidden, 3, renormalize);
    CHECK(got.topk == 3);
    CHECK(got.ids == want.ids);
    REQUIRE(got.weights.size() == want.weights.size());
    for (size_t i = 0; i < got.weights.size(); ++i)
      CHECK(got.weights[i] == doctest::Approx(want.weights[i]).epsilon(1e-6));
  }
}

TEST_CASE("of experts with equal scores the router takes the lower ones") {
  const ConvertedLayer made("g8", kExperts, 16, kHidden);
  const Routing got = RuntimeArtifact::open(made.path()).route(0, std::vector<float>(2 * kHidden), 2, 2);
  CHECK(got.ids == std::vector<int32_t>{0, 1, 0, 1});
  CHECK(got.weights == std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f});
}

TEST_CASE("a router over more experts than config.json says is refused") {
  CHECK(refusal_under(R"({"model_type": "mixtral", "num_local_experts": 5})").empty());
  CHECK(refusal_under(R"({"model_type": "mixtral", "num_local_experts": 4})") ==
        "model.layers.3.mlp.experts: expected 4 experts as config.json says, found 5; give topk_ids and "
        "topk_weights");
}

TEST_CASE("routers of another kind are refused by what marks them") {
  for (const auto& [config, message] :
       {std::pair{R"({"scoring_func": "sigmoid"})", "found scoring_func \"sigmoid\""},
        {R"({"n_group": 8})", "found n_group 8"},
        {R"({"topk_method": "noaux_tc"})", "found topk_method \"noaux_tc\""},
        {R"({"routed_scaling_factor": 2.5})", "found routed_scaling_factor 2.5"},
        {R"({"text_config": {"scoring_func": "sigmoid"}})", "found scoring_func"},
        {R"({"n_group": 1, "language_config": {"n_group": 8}})", "found n_group"},
        {R"({"model_type": "phimoe"})", "sparse mixer"},
        {R"({"model_type": "llama4_text"})", "the sigmoid of llama4"},
        {R"({"model_type": "x", "text_config": {"model_type": "llama4_text"}})", "the sigmoid of llama4"},
        {R"({"moe_router_activation_func": "sigmoid"})", "found moe_router_activation_func \"sigmoid\""},
        {R"({"moe_router_score_function": "sigmoid"})", "found moe_router_score_function \"sigmoid\""},
        {R"({"moe_router_use_sigmoid": true})", "found moe_router_use_sigmoid true"}}) {
    const std::string refusal = refusal_under(config);
    CHECK_MESSAGE(refusal.find(message) != std::string::npos, refusal);
    CHECK(refusal.find("give topk_ids") != std::string::npos);
  }
  CHECK(refusal_under(R"({"model_type": "mixtral", "router_aux_loss_coef": 0.001})").empty());
  CHECK(refusal_under(R"({"moe_router_score_function": "softmax", "norm_topk_prob": true})").empty());
}

TEST_CASE("a router of which neither model_type nor config says what it is, is refused, not guessed") {
  for (const auto& [config, found] :
       {std::pair{R"({})", "found no model_type and no scoring_func"},
        {R"({"norm_topk_prob": true})", "found no model_type and no scoring_func"},
        {R"({"model_type": 5})", "found model_type 5 and no scoring_func"},
        {R"({"model_type": "deepseek_v3"})", "found model_type \"deepseek_v3\" and no scoring_func"},
        {R"({"model_type": "glm4_moe", "norm_topk_prob": true, "n_group": 1, "routed_scaling_factor": 1})",
         "found model_type \"glm4_moe\" and no scoring_func"},
        {R"({"model_type": "mixtral", "text_config": {"model_type": "deepseek_v3"}})",
         "found model_type \"deepseek_v3\" and no scoring_func"},
        {R"({"model_type": "deepseek_v3", "scoring_func": "softmax"})",
         "expected norm_topk_prob in config.json, found none and model_type \"deepseek_v3\""},
        {R"({"scoring_func": "softmax"})",
         "expected norm_topk_prob in config.json, found none and no model_type"}}) {
    CAPTURE(config);
    const std::string refusal = refusal_under(config);
    CHECK_MESSAGE(refusal.find(found) != std::string::npos, refusal);
    CHECK(refusal.starts_with("model.layers.3.mlp: "));
    CHECK(refusal.ends_with("; give topk_ids and topk_weights"));
  }
}

TEST_CASE("terms of a router that are not applied are refused wherever families keep them") {
  for (const char* term : {"gate.bias", "gate.e_score_correction_bias", "e_score_correction_bias",
                           "moe_statics.e_score_correction_bias", "gate.expert_bias", "expert_bias"}) {
    CAPTURE(term);
    const ConvertedLayer made("v7", kExperts, 16, kHidden);
    const std::string name = std::string("model.layers.3.mlp.") + term;
    Tensors tensors{{name, DType::kF32, {kExperts}, std::vector<uint8_t>(4 * kExperts)}};
    for (const auto& [of, t] : read_tensors(made.source()))
      tensors.push_back({of, t.dtype, t.shape, t.bytes});
    write_checkpoint(made.scratch / "with-term", {tensors}, R"({"num_experts_per_tok": 2})");
    OneRule recipe;
    recipe.to = "v7";
    convert(made.scratch / "with-term", made.scratch / "converted", recipe);
    const RuntimeArtifact artifact = RuntimeArtifact::open(made.scratch / "converted");
    const std::string refusal = message_of([&] { artifact.route(0, random_hidden(1, kHidden), 1, 2); });
    CHECK_MESSAGE(refusal.find("found " + name + "; give topk_ids") != std::string::npos, refusal);
  }
}

TEST_CASE("tokens and numbers of experts that do not fit are refused") {
  const ConvertedLayer made("v7", kExperts, 16, kHidden);
  const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
  const auto refusal = [&](const std::vector<float>& hidden, int64_t m, int64_t topk) {
    return message_of([&] { artifact.route(0, hidden, m, topk); });
  };
  CHECK(refusal(random_hidden(1, kHidden), 2, 2).find("expected hidden [2, 32]") != std::string::npos);
  CHECK(refusal(random_hidden(1, kHidden), 1, 6).find("expected 1 to 5 experts a token, found 6") !=
        std::string::npos);
  CHECK(refusal(random_hidden(1, kHidden), 1, 0).find("expected 1 to 5 experts") != std::string::npos);
  auto hidden = random_hidden(1, kHidden);
  hidden[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(refusal(hidden, 1, 2).find("token 0: expected finite router logits") != std::string::npos);
}

}  // namespace runtime_router_test
