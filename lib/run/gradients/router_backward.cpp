#include <algorithm>
#include <cmath>

#include "lib/run/gradients/blocks.h"

namespace twofour {
namespace {

/// The scores of all experts of a token, and for scores of each logit alone their derivatives.
void score_experts(RouterScores rule, std::span<const float> logits, std::vector<double>& scores,
                   std::vector<double>& slopes) {
  const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    const auto x = static_cast<double>(logits[e]);
    const double sigmoid = 1 / (1 + std::exp(-x));
    switch (rule) {
      case RouterScores::kSoftmax:
        sum += scores[e] = std::exp(x - largest);
        break;
      case RouterScores::kSigmoid:
        scores[e] = sigmoid;
        slopes[e] = sigmoid * (1 - sigmoid);
        break;
      case RouterScores::kSqrtSoftplus:
        scores[e] = std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))));
        slopes[e] = sigmoid / (2 * scores[e]);
        break;
    }
  }
  if (rule != RouterScores::kSoftmax) return;
  for (double& s : scores) s /= sum;
}

}  // namespace

std::vector<float> router_gradient(const RouterRule& rule, std::span<const float> logits, int64_t experts,
                                   const ExpertChoice& chosen, std::span<const float> dweights) {
  const auto each = static_cast<size_t>(experts), tokens = logits.size() / each;
  const size_t top_k = chosen.ids.size() / std::max<size_t>(1, tokens);
  const bool is_softmax = rule.scores == RouterScores::kSoftmax;
  std::vector<float> out(logits.size());
  std::vector<double> scores(each), slopes(each), d(each);
  for (size_t i = 0; i < tokens; ++i) {
    const auto ids = std::span(chosen.ids).subspan(i * top_k, top_k);
    const auto dw = dweights.subspan(i * top_k, top_k);
    score_experts(rule.scores, logits.subspan(i * each, each), scores, slopes);
    double sum = is_softmax ? 0 : 1e-20, along = 0;
    for (size_t j = 0; j < top_k; ++j) {
      const double score = scores[static_cast<size_t>(ids[j])];
      sum += score;
      along += score * static_cast<double>(dw[j]);
    }
    // A weight is score * scaling, or score * scaling / sum.
    std::fill(d.begin(), d.end(), 0.0);
    for (size_t j = 0; j < top_k; ++j) {
      const auto own = static_cast<double>(dw[j]);
      d[static_cast<size_t>(ids[j])] += rule.scaling * (rule.renormalized ? (own - along / sum) / sum : own);
    }
    double mean = 0;
    for (size_t e = 0; e < each && is_softmax; ++e) mean += scores[e] * d[e];
    for (size_t e = 0; e < each; ++e)
      out[i * each + e] = static_cast<float>(is_softmax ? scores[e] * (d[e] - mean) : d[e] * slopes[e]);
  }
  return out;
}

}  // namespace twofour
