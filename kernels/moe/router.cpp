#include "kernels/moe/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace twofour::cpu {
namespace {

/// Turns logits into scores.
void score(RouterScores scores, std::vector<double>& x) {
  switch (scores) {
    case RouterScores::kSoftmax: {
      const double largest = *std::max_element(x.begin(), x.end());
      double sum = 0;
      for (double& v : x) sum += v = std::exp(v - largest);
      for (double& v : x) v /= sum;
      return;
    }
    case RouterScores::kSigmoid:
      for (double& v : x) v = 1 / (1 + std::exp(-v));
      return;
    case RouterScores::kSqrtSoftplus:
      for (double& v : x) v = std::sqrt(std::max(v, 0.0) + std::log1p(std::exp(-std::abs(v))));
      return;
  }
}

/// The indices of the `count` largest scores. If scores are equal, the lowest index comes first.
std::vector<int32_t> largest_of(const std::vector<double>& scores, int64_t count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    const double x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + count, order.end(), before);
  order.resize(static_cast<size_t>(count));
  return order;
}

/// Excludes experts whose group is not among the best groups.
void keep_groups(const RouterRule& rule, std::vector<double>& choice) {
  const size_t size = choice.size() / static_cast<size_t>(rule.groups);
  std::vector<double> groups;
  for (size_t g = 0; g < choice.size(); g += size) {
    std::vector<double> some(choice.begin() + static_cast<int64_t>(g),
                             choice.begin() + static_cast<int64_t>(g + size));
    std::sort(some.rbegin(), some.rend());
    groups.push_back(rule.sums_two ? some[0] + some[1] : some[0]);
  }
  std::vector<bool> kept(groups.size());
  for (const int32_t g : largest_of(groups, rule.kept_groups)) kept[static_cast<size_t>(g)] = true;
  for (size_t e = 0; e < choice.size(); ++e) {
    if (!kept[e / size]) choice[e] = -std::numeric_limits<double>::infinity();
  }
}

/// Writes the weights of a token's experts.
void weigh(const RouterRule& rule, const std::vector<double>& scores, std::span<const int32_t> ids,
           float* to) {
  double sum = rule.scores == RouterScores::kSoftmax ? 0 : 1e-20;
  for (const int32_t e : ids) sum += scores[static_cast<size_t>(e)];
  const double factor = rule.scaling / (rule.renormalized ? sum : 1);
  for (const int32_t e : ids) *to++ = static_cast<float>(scores[static_cast<size_t>(e)] * factor);
}

}  // namespace

ExpertChoice choose_experts(const RouterRule& rule, std::span<const float> logits, int64_t experts,
                            int64_t top_k, std::span<const float> correction) {
  const auto each = static_cast<size_t>(experts), count = static_cast<size_t>(top_k);
  const size_t tokens = logits.size() / each;
  ExpertChoice chosen{std::vector<int32_t>(tokens * count), std::vector<float>(tokens * count)};
  for (size_t i = 0; i < tokens; ++i) {
    const auto row = logits.subspan(i * each, each);
    std::vector<double> scores(row.begin(), row.end());
    score(rule.scores, scores);
    std::vector<double> choice = scores;
    for (size_t e = 0; e < correction.size(); ++e) choice[e] += static_cast<double>(correction[e]);
    if (rule.groups > 1) keep_groups(rule, choice);
    const std::vector<int32_t> ids = largest_of(choice, top_k);
    std::copy(ids.begin(), ids.end(), chosen.ids.begin() + static_cast<int64_t>(i * count));
    weigh(rule, scores, ids, chosen.weights.data() + i * count);
  }
  return chosen;
}

ExpertChoice weigh_experts(const RouterRule& rule, std::span<const float> logits, int64_t experts,
                           int64_t top_k, std::vector<int32_t> ids) {
  const auto each = static_cast<size_t>(experts), count = static_cast<size_t>(top_k);
  ExpertChoice chosen{std::move(ids), {}};
  chosen.weights.resize(chosen.ids.size());
  for (size_t i = 0; i < chosen.ids.size() / count; ++i) {
    const auto row = logits.subspan(i * each, each);
    std::vector<double> scores(row.begin(), row.end());
    score(rule.scores, scores);
    weigh(rule, scores, std::span(chosen.ids).subspan(i * count, count), chosen.weights.data() + i * count);
  }
  return chosen;
}

}  // namespace twofour::cpu
