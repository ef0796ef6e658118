#include "lib/layer_tokens.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>

#include "lib/checkpoint/model_config.h"

namespace twofour {

MoeInput Tokens::input() const {
  return {.m = m, .h = h, .topk = topk, .hidden = hidden, .topk_ids = ids, .topk_weights = weights};
}

int64_t Tokens::experts_used() const { return static_cast<int64_t>(std::set(ids.begin(), ids.end()).size()); }

int64_t experts_per_token(const Json& config, int64_t experts) {
  for (const Json* topk : model_settings(config, "num_experts_per_tok")) {
    if (topk->is_number_integer()) return std::clamp<int64_t>(topk->get<int64_t>(), 1, experts);
  }
  return std::min<int64_t>(2, experts);
}

Tokens draw_tokens(int64_t m, int64_t h, int64_t experts, int64_t topk, uint64_t seed) {
  std::mt19937_64 random(seed);  // its sequence is fixed by the standard; the distributions' are not
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  Tokens t{{}, {}, {}, m, h, topk};
  for (int64_t i = 0; i < m * h; ++i) {
    double sum = 0;
    for (int j = 0; j < 12; ++j) sum += uniform();
    t.hidden.push_back(static_cast<float>(sum - 6));
  }
  std::vector<int32_t> deck(static_cast<size_t>(experts));
  std::iota(deck.begin(), deck.end(), 0);
  for (int64_t i = 0; i < m; ++i) {
    double total = 0;
    std::vector<double> weights;
    for (int64_t j = 0; j < topk; ++j) {
      const auto pick = static_cast<size_t>(j) + random() % static_cast<uint64_t>(experts - j);
      std::swap(deck[static_cast<size_t>(j)], deck[pick]);
      t.ids.push_back(deck[static_cast<size_t>(j)]);
      weights.push_back(0.1 + uniform());
      total += weights.back();
    }
    for (const double w : weights) t.weights.push_back(static_cast<float>(w / total));
  }
  return t;
}

void compare_outputs(const std::vector<double>& dense, const std::vector<double>& ours, LayerReport& layer) {
  const auto a = xt::adapt(dense), b = xt::adapt(ours);
  const double aa = xt::sum(a * a)(), bb = xt::sum(b * b)(), ab = xt::sum(a * b)();
  const double error = xt::sum((a - b) * (a - b))();
  layer.cosine = aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 1;
  layer.relative_error = aa > 0 ? std::sqrt(error / aa) : 0;
}

}  // namespace twofour
