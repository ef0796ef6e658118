#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "formats/error.h"
#include "formats/half.h"
#include "kernels/device/device_memory.h"
#include "kernels/moe/device_router.h"
#include "tests/support/device/device.h"
#include "tests/support/device/drawn_floats.h"

namespace twofour {
namespace {

using cuda::DeviceMemory;

/// Logits whose scores differ in float32 wherever they differ, with many equal ones.
std::vector<float> draw_logits(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> logits(static_cast<size_t>(count));
  for (float& x : logits) x = static_cast<float>(static_cast<int>(random() % 512) - 256) / 64.0f;
  return logits;
}

struct Case {
  int64_t experts, top_k, groups, kept_groups;
  bool sums_two;
  RouterScores scores;
  bool is_renormalized, is_corrected;
};
constexpr auto kSoftmax = RouterScores::kSoftmax, kSigmoid = RouterScores::kSigmoid,
               kSqrtSoftplus = RouterScores::kSqrtSoftplus;
constexpr Case kCases[] = {
    {1, 1, 1, 1, false, kSoftmax, false, false},      {3, 2, 1, 1, false, kSoftmax, true, false},
    {33, 33, 1, 1, false, kSoftmax, false, false},    {128, 8, 1, 1, false, kSoftmax, true, false},
    {160, 6, 8, 3, false, kSoftmax, false, false},    {256, 8, 8, 4, true, kSigmoid, true, true},
    {1000, 10, 1, 1, false, kSigmoid, false, false},  {1024, 64, 64, 9, true, kSigmoid, true, true},
    {384, 6, 1, 1, false, kSqrtSoftplus, true, true}, {7, 3, 1, 1, false, kSqrtSoftplus, false, false}};

cuda::RouterRule device_rule(const Case& c, const float* correction) {
  RouterRule rule;
  rule.scores = c.scores;
  rule.renormalized = c.is_renormalized, rule.scaling = 2.5;
  rule.groups = c.groups, rule.kept_groups = c.kept_groups, rule.sums_two = c.sums_two;
  return {rule, c.experts, c.top_k, correction};
}

/// Holds a choice against one in double, written here: the order of scores, groups and ties as the families
/// say.
void check_choice(const Case& c, const float* logits, const std::vector<float>& correction,
                  const int32_t* ids, const float* weights) {
  const auto experts = static_cast<size_t>(c.experts), size = experts / static_cast<size_t>(c.groups);
  std::vector<double> scores(experts);
  double total = 0;
  for (size_t e = 0; e < experts; ++e) {
    const auto logit = static_cast<double>(logits[e]);
    total += scores[e] = c.scores == kSigmoid        ? 1 / (1 + std::exp(-logit))
                         : c.scores == kSqrtSoftplus ? std::sqrt(std::log1p(std::exp(logit)))
                                                     : std::exp(logit);
  }
  std::vector<double> choice = scores;
  for (size_t e = 0; e < experts; ++e) {
    if (c.scores == kSoftmax) choice[e] = scores[e] /= total;
    if (c.is_corrected) choice[e] += static_cast<double>(correction[e]);
  }
  std::vector<std::pair<double, size_t>> groups;
  for (size_t g = 0; g < static_cast<size_t>(c.groups); ++g) {
    std::vector<double> own(choice.begin() + static_cast<int64_t>(g * size),
                            choice.begin() + static_cast<int64_t>((g + 1) * size));
    std::sort(own.begin(), own.end(), std::greater<>());
    groups.emplace_back(-(c.sums_two ? own[0] + own[1] : own[0]), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, size_t>> order;
  for (size_t g = 0; g < static_cast<size_t>(c.kept_groups); ++g) {
    for (size_t e = groups[g].second * size; e < (groups[g].second + 1) * size; ++e)
      order.emplace_back(-choice[e], e);
  }
  std::sort(order.begin(), order.end());
  double sum = 0;
  for (size_t t = 0; t < static_cast<size_t>(c.top_k); ++t) sum += scores[order[t].second];
  for (size_t t = 0; t < static_cast<size_t>(c.top_k); ++t) {
    CAPTURE(t);
    CHECK(ids[t] == static_cast<int32_t>(order[t].second));
    const double expected = scores[order[t].second] * 2.5 / (c.is_renormalized ? sum : 1);
    CHECK(std::abs(static_cast<double>(weights[t]) - expected) <= 1e-5 * expected);
  }
}

TEST_CASE("experts chosen on the device are the best ones, the first of equal ones") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  unsigned seed = 1;
  for (const Case& c : kCases) {
    CAPTURE(c.experts);
    constexpr int64_t kTokens = 37;
    const std::vector<float> logits = draw_logits(kTokens * c.experts, ++seed);
    std::vector<float> correction = draw(c.experts, ++seed);
    const DeviceMemory x(logits), added(correction), error(std::vector<int32_t>{0});
    DeviceMemory ids(static_cast<size_t>(kTokens * c.top_k) * 4),
        weights(static_cast<size_t>(kTokens * c.top_k) * 4);
    cuda::choose_experts(device_rule(c, c.is_corrected ? added.as<float>() : nullptr), x.as<float>(), kTokens,
                         ids.as<int32_t>(), weights.as<float>(), error.as<int32_t>(), stream.get());
    stream.synchronize();
    CHECK(error.download<int32_t>()[0] == 0);
    const auto found = ids.download<int32_t>();
    const auto found_weights = weights.download<float>();
    for (int64_t i = 0; i < kTokens; ++i)
      check_choice(c, logits.data() + i * c.experts, correction, found.data() + i * c.top_k,
                   found_weights.data() + i * c.top_k);
  }
}

TEST_CASE("a table of tokens chooses experts, and the router weighs them") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  constexpr int64_t kTokens = 29, kVocabulary = 50, kExperts = 70, kTopK = 6;
  std::mt19937 random(3);
  std::vector<int32_t> table, tokens;
  for (int64_t i = 0; i < kVocabulary * kTopK; ++i)
    table.push_back(static_cast<int32_t>(random() % kExperts));
  for (int64_t i = 0; i < kTokens; ++i) tokens.push_back(static_cast<int32_t>(random() % kVocabulary));
  const std::vector<float> logits = draw_logits(kTokens * kExperts, 4);
  RouterRule rule;
  rule.scores = kSqrtSoftplus, rule.renormalized = true, rule.scaling = 1.5;
  std::vector<int32_t> ids;
  for (const int32_t token : tokens)
    ids.insert(ids.end(), table.begin() + token * kTopK, table.begin() + (token + 1) * kTopK);
  const ExpertChoice expected = cpu::weigh_experts(rule, logits, kExperts, kTopK, ids);
  const DeviceMemory x(logits), device_table(table), device_tokens(tokens), error(std::vector<int32_t>{0});
  DeviceMemory found(static_cast<size_t>(kTokens * kTopK) * 4),
      weights(static_cast<size_t>(kTokens * kTopK) * 4);
  cuda::choose_experts(
      {rule, kExperts, kTopK, nullptr, device_table.as<int32_t>(), device_tokens.as<int32_t>()},
      x.as<float>(), kTokens, found.as<int32_t>(), weights.as<float>(), error.as<int32_t>(), stream.get());
  stream.synchronize();
  CHECK(found.download<int32_t>() == expected.ids);
  CHECK(error_of(weights.download<float>(), expected.weights) <= 1e-5);
}

TEST_CASE("a logit that is no number is reported") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> logits = draw_logits(128, 5);
    logits[127] = bad;
    const DeviceMemory x(logits), error(std::vector<int32_t>{0});
    DeviceMemory ids(8 * 4), weights(8 * 4);
    cuda::choose_experts(device_rule(kCases[3], nullptr), x.as<float>(), 1, ids.as<int32_t>(),
                         weights.as<float>(), error.as<int32_t>(), stream.get());
    stream.synchronize();
    CHECK(error.download<int32_t>()[0] == 1);
  }
}

TEST_CASE("a token goes from its row to its experts in one launch, again and again") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  unsigned seed = 100;
  // A row in one piece, in several, in one number after the other, and one that is long
  for (const int64_t h : {64, 2048, 2056, 7168, 4100, 12000}) {
    for (const size_t which : {size_t{3}, size_t{5}, size_t{7}, size_t{8}}) {
      const Case& c = kCases[which];
      CAPTURE(h);
      CAPTURE(c.experts);
      std::vector<uint16_t> router(static_cast<size_t>(c.experts * h));
      const std::vector<float> drawn = draw(c.experts * h, ++seed, 2 / std::sqrt(static_cast<float>(h)));
      for (size_t i = 0; i < router.size(); ++i) router[i] = bf16_from_float(drawn[i]);
      const std::vector<float> correction = draw(c.experts, ++seed), norm = draw(h, ++seed);
      const DeviceMemory w(router), added(correction), weight(norm), error(std::vector<int32_t>{0}),
          sent(std::vector<uint64_t>(static_cast<size_t>(c.experts), 0));
      DeviceMemory ids(static_cast<size_t>(c.top_k) * 4), weights(static_cast<size_t>(c.top_k) * 4),
          normed(static_cast<size_t>(h) * 4);
      for (int round = 0; round < 3; ++round) {
        const std::vector<float> x = draw(h, ++seed);
        const DeviceMemory row(x);
        cuda::RoutedToken token;
        token.rule = device_rule(c, c.is_corrected ? added.as<float>() : nullptr);
        token.router.weights = w.as(), token.router.n = c.experts, token.router.k = h;
        token.in.x = row.as<float>(), token.in.norm = weight.as<float>(), token.in.epsilon = 1e-6;
        token.normed = normed.as<float>(), token.sent = sent.as<uint64_t>();
        token.ids = ids.as<int32_t>(), token.weights = weights.as<float>(), token.error = error.as<int32_t>();
        cuda::route_token(token, stream.get());
        stream.synchronize();
        double squares = 0;
        for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
        const double factor = 1 / std::sqrt(squares / static_cast<double>(h) + 1e-6);
        std::vector<float> expected(x.size()), logits(static_cast<size_t>(c.experts));
        for (size_t i = 0; i < x.size(); ++i)
          expected[i] = static_cast<float>(static_cast<double>(x[i]) * factor * static_cast<double>(norm[i]));
        for (size_t e = 0; e < logits.size(); ++e) {
          double sum = 0;
          for (size_t i = 0; i < x.size(); ++i)
            sum += static_cast<double>(expected[i]) *
                   static_cast<double>(bf16_to_float(router[e * static_cast<size_t>(h) + i]));
          logits[e] = static_cast<float>(sum);
        }
        CHECK(error_of(normed.download<float>(), expected) <= 1e-6);
        check_choice(c, logits.data(), correction, ids.download<int32_t>().data(),
                     weights.download<float>().data());
        CHECK(sent.download<uint64_t>() == std::vector<uint64_t>(static_cast<size_t>(c.experts), 0));
      }
    }
  }
  cuda::RoutedToken token;
  token.rule = device_rule(kCases[3], nullptr);
  token.router.n = 128, token.router.k = 1 << 20;
  CHECK_THROWS_WITH_AS(cuda::route_token(token, stream.get()),
                       doctest::Contains("a row that fits shared memory"), Error);
}

}  // namespace
}  // namespace twofour
