#include <doctest/doctest.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xrepeat.hpp>
#include <xtensor/xsort.hpp>
#include <xtensor/xvectorize.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/half.h"
#include "lib/run/decoder/decoder.h"
#include "lib/run/runtime/artifact.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/models/runtime_layer.h"
#include "tests/support/one_rule.h"

namespace runtime_family_routers_test {

using namespace twofour;

namespace {

constexpr int64_t kHidden = 32;

/// Scores and a choice as papers have them, in steps: what each case below says of its model.
struct Described {
  const char* config;
  const char* correction;         ///< its name
  double (*score)(double logit);  ///< of each; nullptr: softmax
  size_t groups, kept;
  size_t best;  ///< experts that make a group's value
  bool to_one;  ///< weights are brought to a sum of 1
  double factor;
};

constexpr size_t kMany = 12, kChosen = 3;

using Doubles = xt::xtensor<double, 1>;

/// How many of x [n] are larger than each.
xt::xtensor<size_t, 1> count_above(const Doubles& x) {
  return xt::sum(xt::cast<size_t>(x > xt::view(x, xt::all(), xt::newaxis())), {1});
}

/// Experts and weights of one token by its logits [kMany]: every expert is ranked, groups first.
std::vector<std::pair<int32_t, double>> described_choice(const Described& d, const Doubles& logits,
                                                         const std::vector<float>& correction) {
  Doubles score = xt::exp(logits) / xt::sum(xt::exp(logits))();
  if (d.score != nullptr) score = xt::vectorize(d.score)(logits);
  Doubles value = score;
  if (!correction.empty()) value += xt::adapt(correction.data(), {kMany});
  const size_t size = kMany / d.groups;
  const xt::xtensor<double, 2> sorted = xt::sort(xt::reshape_view(value, {d.groups, size}), 1);
  const Doubles worth = xt::sum(xt::view(sorted, xt::all(), xt::range(size - d.best, size)), {1});
  const xt::xtensor<size_t, 1> better_groups = xt::repeat(count_above(worth), size, 0);
  const Doubles kept = xt::where(better_groups < d.kept, value, -std::numeric_limits<double>::infinity());
  const auto better = count_above(kept);
  std::vector<std::pair<int32_t, double>> chosen;
  double sum = 0;
  for (size_t e = 0; e < kMany; ++e) {
    if (better_groups(e) >= d.kept || better(e) >= kChosen) continue;
    chosen.emplace_back(static_cast<int32_t>(e), score(e));
    sum += score(e);
  }
  for (auto& [e, weight] : chosen) weight *= d.factor / (d.to_one ? sum : 1.0);
  return chosen;
}

/// Keeps what the experts of a layer see.
struct ExpertInputs : LayerWatcher {
  explicit ExpertInputs(size_t group) : of(group) {}
  void see_input(size_t group, std::span<const float> values, std::span<const int64_t>) override {
    if (group == of) x.assign(values.begin(), values.end());
  }
  void see_expert(int64_t, double) override {}
  size_t of;
  std::vector<float> x;
};

}  // namespace

TEST_CASE("routers with groups, corrections and factors choose as their models are described") {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto sqrt_softplus = [](double x) { return std::sqrt(std::log(1 + std::exp(x))); };
  const char *const gate = "gate.e_score_correction_bias", *const block = "e_score_correction_bias";
  for (const Described& d : {
           Described{R"({"model_type": "deepseek_v3", "n_group": 4, "topk_group": 2})", gate, sigmoid, 4, 2,
                     2, true, 2.5},
           {R"({"model_type": "deepseek_v3", "n_group": 6, "topk_group": 3, "norm_topk_prob": false,
                "routed_scaling_factor": 0.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc"})",
            gate, sigmoid, 6, 3, 2, false, 0.5},
           {R"({"model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827})",
            gate, sigmoid, 1, 1, 2, true, 2.827},
           {R"({"model_type": "kimi_k25", "text_config": {"model_type": "kimi_k2", "n_group": 1,
                "topk_group": 1}})",
            gate, sigmoid, 1, 1, 2, true, 2.5},
           {R"({"model_type": "glm4_moe"})", gate, sigmoid, 1, 1, 2, true, 1},
           {R"({"model_type": "glm4_moe_lite"})", gate, sigmoid, 1, 1, 2, true, 1.8},
           {R"({"model_type": "glm_moe_dsa"})", gate, sigmoid, 1, 1, 2, true, 2.5},
           {R"({"model_type": "dots1"})", gate, sigmoid, 1, 1, 2, false, 1},
           {R"({"model_type": "nemotron_h", "n_group": 2, "topk_group": 1})", gate, sigmoid, 2, 1, 2, true,
            1},
           {R"({"model_type": "minimax_m2", "scoring_func": "sigmoid"})", block, sigmoid, 1, 1, 2, true, 1},
           {R"({"model_type": "deepseek_v4", "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc"})",
            "gate.bias", sqrt_softplus, 1, 1, 2, true, 1.5},
           {R"({"model_type": "deepseek_v2", "topk_method": "group_limited_greedy", "n_group": 4,
                "topk_group": 2, "routed_scaling_factor": 16})",
            nullptr, nullptr, 4, 2, 1, false, 16},
           {R"({"model_type": "deepseek_v2", "topk_method": "greedy", "n_group": 4, "topk_group": 2})",
            nullptr, nullptr, 1, 1, 1, false, 1},
       }) {
    CAPTURE(d.config);
    const ConvertedLayer made("v7", kMany, 16, kHidden);
    std::vector<float> correction;
    for (size_t e = 0; d.correction != nullptr && e < kMany; ++e)
      correction.push_back(static_cast<float>(e * 7 % 12) / 16.0f - 0.3f);
    std::vector<std::pair<std::string, std::vector<float>>> terms;
    if (d.correction != nullptr) terms.emplace_back(d.correction, correction);
    const RuntimeArtifact artifact = with_terms(made, terms, d.config);
    const auto hidden = random_hidden(40, kHidden);
    const ExpertChoice got = artifact.route(0, hidden, 40, kChosen);
    const auto gate_weight = read_tensors(made.source()).at("model.layers.3.mlp.gate.weight").as<uint16_t>();
    const xt::xtensor<double, 2> w =
        xt::vectorize(bf16_to_float)(xt::adapt(gate_weight.data(), {int64_t{kMany}, kHidden}));
    for (size_t m = 0; m < 40; ++m) {
      CAPTURE(m);
      const Doubles logits = xt::sum(w * xt::view(xt::adapt(hidden.data(), {int64_t{40}, kHidden}), m), {1});
      const auto want = described_choice(d, logits, correction);
      REQUIRE(want.size() == kChosen);
      std::vector<std::pair<int32_t, float>> own;
      for (size_t t = m * kChosen; t < (m + 1) * kChosen; ++t) own.emplace_back(got.ids[t], got.weights[t]);
      std::sort(own.begin(), own.end());
      for (size_t t = 0; t < kChosen; ++t) {
        CHECK(own[t].first == want[t].first);
        CHECK(static_cast<double>(own[t].second) == doctest::Approx(want[t].second).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("a layer's router chooses the experts that the decoder runs") {
  for (const char* name : {"deepseek_v3", "deepseek_v2-groups", "glm4_moe", "mixtral", "qwen3_moe"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = read_decoder_golden(golden_folder(), name);
    write_decoder_checkpoint(golden, scratch / "model");
    OneRule recipe;
    recipe.to = "v7";
    convert(scratch / "model", scratch / "artifact", recipe);
    const RuntimeArtifact artifact = RuntimeArtifact::open(scratch / "artifact");
    const Decoder decoder = Decoder::open(scratch / "artifact");
    const auto tokens = static_cast<int64_t>(golden.tokens.size());
    std::vector<float> hidden(static_cast<size_t>(tokens * decoder.shape().hidden));
    decoder.embed(golden.tokens, hidden);
    size_t compared = 0;
    for (size_t block = 0; block < artifact.layers().size(); ++block) {
      const LayerInfo& info = artifact.layers()[block];
      if (info.e == 1) continue;
      const int64_t layer = std::stoll(info.name.substr(std::string("model.layers.").size()));
      const auto& groups = decoder.input_groups(layer);
      const auto of_all = std::find_if(groups.begin(), groups.end(),
                                       [](const InputGroup& g) { return !g.block.empty() && g.expert < 0; });
      REQUIRE(of_all != groups.end());
      ExpertInputs seen(static_cast<size_t>(of_all - groups.begin()));
      ExpertChoice want;
      std::vector<float> copy = hidden;
      decoder.run_half(layer, LayerHalf::kFeedForward, {}, copy, {.watcher = &seen, .chosen = &want});
      REQUIRE(seen.x.size() == hidden.size());
      const ExpertChoice got = artifact.route(block, seen.x, tokens, decoder.shape().top_k);
      CHECK(got.ids == want.ids);
      REQUIRE(got.weights.size() == want.weights.size());
      for (size_t i = 0; i < got.weights.size(); ++i)
        CHECK(got.weights[i] == doctest::Approx(want.weights[i]).epsilon(1e-5));
      ++compared;
    }
    CHECK(compared > 0);
  }
}

}  // namespace runtime_family_routers_test
