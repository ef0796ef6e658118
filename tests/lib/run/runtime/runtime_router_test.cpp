#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/half.h"
#include "lib/run/runtime/artifact.h"
#include "tests/support/message.h"
#include "tests/support/models/runtime_layer.h"

namespace runtime_router_test {

using namespace twofour;

namespace {

constexpr int64_t kExperts = 5, kHidden = 32;

/// The expected choice of a router, by sorting all of its scores; hidden [M, H].
ExpertChoice expected(const ConvertedLayer& made, const std::vector<float>& hidden, size_t topk,
                      bool renormalize) {
  const auto gate = read_tensors(made.source()).at("model.layers.3.mlp.gate.weight").as<uint16_t>();
  ExpertChoice routing;
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
       {R"({"num_experts_per_tok": 3, "norm_topk_prob": true, "scoring_func": "softmax", "model_type": "x"})",
        true},
       {R"({"model_type": "olmoe", "text_config": {"num_experts_per_tok": 3, "norm_topk_prob": true}})",
        true},
       {R"({"num_experts_per_tok": 3, "model_type": "mixtral", "n_group": 1, "routed_scaling_factor": 1})",
        true},
       {R"({"num_experts_per_tok": 3, "model_type": "qwen2_moe"})", false},
       {R"({"num_experts_per_tok": 3, "model_type": "qwen2_moe", "norm_topk_prob": true})", true},
       {R"({"num_experts_per_tok": 3, "model_type": "qwen3_moe"})", false},
       {R"({"num_experts_per_tok": 3, "model_type": "qwen3_moe", "norm_topk_prob": null})", false},
       {R"({"num_experts_per_tok": 3, "model_type": "deepseek_v2", "norm_topk_prob": true})", false},
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
    const ExpertChoice got = artifact.route(0, hidden, 7, 3), want = expected(made, hidden, 3, renormalize);
    CHECK(got.ids == want.ids);
    REQUIRE(got.weights.size() == want.weights.size());
    for (size_t i = 0; i < got.weights.size(); ++i)
      CHECK(got.weights[i] == doctest::Approx(want.weights[i]).epsilon(1e-6));
  }
}

TEST_CASE("of experts with equal scores the router takes the lower ones") {
  const ConvertedLayer made("g8", kExperts, 16, kHidden);
  const ExpertChoice got = RuntimeArtifact::open(made.path()).route(0, std::vector<float>(2 * kHidden), 2, 2);
  CHECK(got.ids == std::vector<int32_t>{0, 1, 0, 1});
  CHECK(got.weights == std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f});
}

TEST_CASE("a router over more experts than config.json says is refused") {
  CHECK(refusal_under(R"({"model_type": "mixtral", "num_local_experts": 5})").empty());
  CHECK_THROWS_WITH(refusal_under(R"({"model_type": "mixtral", "num_local_experts": 4})"),
                    "model.layers.3.mlp.experts: expected 4 experts (config.json), found 5");
}

TEST_CASE("settings that describe another router than the model's are refused") {
  for (const auto& [config, message] :
       {std::pair{R"({"model_type": "mixtral", "scoring_func": "sigmoid"})",
                  "scoring_func: expected softmax, found \"sigmoid\""},
        {R"({"model_type": "mixtral", "n_group": 8})", "n_group: expected 1, no groups of experts, found 8"},
        {R"({"model_type": "mixtral", "topk_method": "noaux_tc"})", "topk_method: expected greedy, found"},
        {R"({"model_type": "mixtral", "routed_scaling_factor": 2.5})",
         "routed_scaling_factor: expected 1, no factor, found 2.5"},
        {R"({"model_type": "mixtral", "text_config": {"scoring_func": "sigmoid"}})",
         "scoring_func: expected softmax"},
        {R"({"model_type": "mixtral", "n_group": 1, "language_config": {"n_group": 8}})",
         "n_group: expected one value, found 1 and, nested, 8"},
        {R"({"model_type": "mixtral", "moe_router_activation_func": "sigmoid"})",
         "moe_router_activation_func: expected softmax, found \"sigmoid\""},
        {R"({"model_type": "mixtral", "moe_router_use_sigmoid": true})",
         "moe_router_use_sigmoid: expected false for softmax, found true"},
        {R"({"model_type": "mixtral", "norm_topk_prob": false})",
         "norm_topk_prob: expected true, found false"},
        {R"({"model_type": "deepseek_v3", "scoring_func": "softmax"})", "scoring_func: expected sigmoid"},
        {R"({"model_type": "deepseek_v3", "topk_method": "greedy"})", "topk_method: expected noaux_tc"},
        {R"({"model_type": "deepseek_v3"})", "n_group: expected groups of 2 or more of the 5 experts"},
        {R"({"model_type": "deepseek_v3", "n_group": 1, "topk_group": 2})",
         "topk_group: expected at most the 1 group, found 2"},
        {R"({"model_type": "deepseek_v2", "topk_method": "group_limited_greedy", "n_group": 5,
             "topk_group": 1})",
         "topk_group: expected enough groups of 1 experts for the 2 of a token, found 1"}}) {
    CAPTURE(config);
    const std::string refusal = refusal_under(config);
    CHECK_MESSAGE(refusal.find(message) != std::string::npos, refusal);
    CHECK(refusal.find("config.json: ") != std::string::npos);
    CHECK(refusal.ends_with("; give topk_ids and topk_weights"));
  }
  CHECK(refusal_under(R"({"model_type": "mixtral", "router_aux_loss_coef": 0.001})").empty());
  CHECK(refusal_under(R"({"moe_router_score_function": "softmax", "norm_topk_prob": true})").empty());
}

TEST_CASE("a router of which neither model_type nor config says what it is, is refused, not guessed") {
  for (const auto& [config, found] :
       {std::pair{R"({})", "found none"},
        {R"({"norm_topk_prob": true})", "found none"},
        {R"({"scoring_func": "softmax"})", "found none"},
        {R"({"model_type": 5})", "found 5"},
        {R"({"model_type": "phimoe"})", "found \"phimoe\""},
        {R"({"model_type": "x", "text_config": {"model_type": "llama4_text"}})", "found \"llama4_text\""},
        {R"({"model_type": "mixtral", "text_config": {"model_type": "zaya"}})", "found \"zaya\""}}) {
    CAPTURE(config);
    const std::string refusal = refusal_under(config);
    CHECK_MESSAGE(refusal.ends_with(fmt::format("config.json: model_type: expected one whose router is "
                                                "known, or scoring_func softmax and a norm_topk_prob, {}; "
                                                "give topk_ids and topk_weights",
                                                found)),
                  refusal);
  }
}

TEST_CASE("terms of a router that its model does not have are refused wherever families keep them") {
  const std::vector<float> values(kExperts);
  const auto refusal = [&](const std::string& term, const std::string& config) {
    const ConvertedLayer made("v7", kExperts, 16, kHidden);
    const RuntimeArtifact artifact = with_terms(made, {{term, values}}, config);
    return message_of([&] { artifact.route(0, random_hidden(1, kHidden), 1, 2); });
  };
  const std::string glm = R"({"model_type": "glm4_moe", "num_experts_per_tok": 2})";
  for (const char* term : {"gate.bias", "gate.e_score_correction_bias", "e_score_correction_bias",
                           "moe_statics.e_score_correction_bias", "gate.expert_bias", "expert_bias"}) {
    CAPTURE(term);
    CHECK(refusal(term, R"({"model_type": "mixtral", "num_experts_per_tok": 2})") ==
          fmt::format("model.layers.3.mlp: expected a router of gate.weight, found model.layers.3.mlp.{}; "
                      "give topk_ids and topk_weights",
                      term));
    if (std::string_view(term) == "gate.e_score_correction_bias") {
      CHECK(refusal(term, glm).empty());
    } else {
      CHECK(refusal(term, glm).find("expected a router of gate.weight and gate.e_score_correction_bias, "
                                    "found model.layers.3.mlp.") != std::string::npos);
    }
  }
  CHECK(refusal_under(glm) ==
        "model.layers.3.mlp.gate.e_score_correction_bias: expected a tensor of its router, found none; give "
        "topk_ids and topk_weights");
}

TEST_CASE("corrections that are no vector of finite numbers, one an expert, are refused") {
  const std::string glm = R"({"model_type": "glm4_moe", "num_experts_per_tok": 2})";
  const auto refusal = [&](const std::vector<float>& values) {
    const ConvertedLayer made("v7", kExperts, 16, kHidden);
    const RuntimeArtifact artifact = with_terms(made, {{"gate.e_score_correction_bias", values}}, glm);
    return message_of([&] { artifact.route(0, random_hidden(1, kHidden), 1, 2); });
  };
  CHECK(refusal({0, 1, 2, 3}).find("expected F32, BF16 or F16 [5], found F32 [4]") != std::string::npos);
  CHECK(refusal({0, 1, std::numeric_limits<float>::infinity(), 3, 4}) ==
        "model.layers.3.mlp.gate.e_score_correction_bias: expected finite numbers, found others");
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
