#include "lib/run/gradients/blocks.h"

#include <doctest/doctest.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace twofour {
namespace {

using Numbers = std::vector<double>;

Numbers random_numbers(size_t count, uint64_t seed, double size = 1) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> unit(-1, 1);
  Numbers out(count);
  for (double& v : out) v = size * static_cast<double>(unit(random));
  return out;
}

std::vector<float> narrow(const Numbers& x) { return {x.begin(), x.end()}; }

/// The gradient in `x` of the sum of dy f(x), by central differences in double.
Numbers differences(const std::function<Numbers(const Numbers&)>& f, Numbers x, const Numbers& dy) {
  constexpr double kStep = 1e-5;
  Numbers gradient;
  for (double& v : x) {
    const double middle = v;
    double sides[2];
    for (const int side : {0, 1}) {
      v = middle + (side == 0 ? -kStep : kStep);
      const Numbers y = f(x);
      sides[side] = xt::sum(xt::adapt(y, {y.size()}) * xt::adapt(dy, {dy.size()}))();
    }
    v = middle;
    gradient.push_back((sides[1] - sides[0]) / (2 * kStep));
  }
  return gradient;
}

double difference_of(const std::vector<float>& found, const Numbers& expected) {
  REQUIRE(found.size() == expected.size());
  const auto want = xt::adapt(expected, {expected.size()});
  const auto off = xt::cast<double>(xt::adapt(found, {found.size()})) - want;
  return std::sqrt(xt::sum(off * off)() / xt::sum(want * want)());
}

constexpr double kBound = 2e-6;  // float32 against double

TEST_CASE("the gradient of a norm is the one of differences, and is added") {
  const size_t rows = 3, size = 10;
  const Numbers x = random_numbers(rows * size, 1), w = random_numbers(size, 2),
                dy = random_numbers(rows * size, 3);
  const double epsilon = 0.03;
  const auto norm = [&](const Numbers& all) {
    const auto in = xt::adapt(all, {rows, size});
    const xt::xtensor<double, 2> mean = xt::mean(in * in, {1}, xt::keep_dims) + epsilon;
    const xt::xtensor<double, 2> out = in / xt::sqrt(mean) * xt::adapt(w, {size});
    return Numbers(out.begin(), out.end());
  };
  std::vector<float> dx(x.size(), 1.0f);
  add_norm_gradient(narrow(x).data(), rows, narrow(w), epsilon, narrow(dy).data(), dx.data());
  for (float& v : dx) v -= 1.0f;
  CHECK(difference_of(dx, differences(norm, x, dy)) < kBound);
}

/// Attention of one sequence in double: q [T, heads, size], then k and v.
struct SlowAttention {
  size_t tokens, heads, kv_heads, size, value_size, window;
  double scale;
  Numbers sinks;

  size_t q_count() const { return tokens * heads * size; }
  size_t k_count() const { return tokens * kv_heads * size; }
  size_t count() const { return q_count() + k_count() + tokens * kv_heads * value_size; }
  Numbers run(const Numbers& all) const {
    Numbers out(tokens * heads * value_size);
    for (size_t h = 0; h < heads; ++h) {
      for (size_t t = 0; t < tokens; ++t) {
        const size_t kv = h / (heads / kv_heads);
        const size_t first = window > 0 && t + 1 > window ? t + 1 - window : 0;
        double sum = sinks.empty() ? 0 : std::exp(sinks[h]);
        Numbers powers;
        for (size_t j = first; j <= t; ++j) {
          double product = 0;
          for (size_t i = 0; i < size; ++i)
            product += all[(t * heads + h) * size + i] * all[q_count() + (j * kv_heads + kv) * size + i];
          powers.push_back(std::exp(scale * product));
          sum += powers.back();
        }
        for (size_t j = first; j <= t; ++j) {
          for (size_t i = 0; i < value_size; ++i)
            out[(t * heads + h) * value_size + i] +=
                powers[j - first] / sum * all[q_count() + k_count() + (j * kv_heads + kv) * value_size + i];
        }
      }
    }
    return out;
  }
};

TEST_CASE(
    "gradients of attention are those of differences: heads in groups, windows, sinks, several blocks") {
  for (const SlowAttention& slow :
       {SlowAttention{9, 4, 2, 6, 5, 0, 0.4, {}}, SlowAttention{9, 4, 1, 6, 6, 3, 0.4, {0.3, -1, 2, 0}},
        SlowAttention{7, 2, 2, 4, 8, 0, 1.1, {1, 0.5}}, SlowAttention{150, 2, 1, 2, 2, 20, 0.7, {}}}) {
    CAPTURE(slow.tokens);
    CAPTURE(slow.window);
    const Numbers all = random_numbers(slow.count(), 4);
    const Numbers dy = random_numbers(slow.tokens * slow.heads * slow.value_size, 5);
    const std::vector<float> in = narrow(all), d = narrow(dy), sinks = narrow(slow.sinks);
    const auto whole = [](size_t n) { return static_cast<int64_t>(n); };
    std::vector<float> to(in.size());
    float* const places[] = {to.data(), to.data() + slow.q_count(),
                             to.data() + slow.q_count() + slow.k_count()};
    for (int64_t kv = 0; kv < whole(slow.kv_heads); ++kv) {
      add_attention_gradient({.queries = whole(slow.tokens),
                              .keys = whole(slow.tokens),
                              .heads = whole(slow.heads),
                              .kv_heads = whole(slow.kv_heads),
                              .head_size = whole(slow.size),
                              .value_size = whole(slow.value_size),
                              .q = in.data(),
                              .k = in.data() + slow.q_count(),
                              .v = in.data() + slow.q_count() + slow.k_count(),
                              .sinks = sinks,
                              .scale = static_cast<float>(slow.scale),
                              .window = whole(slow.window)},
                             kv, d.data(), {places[0], places[1], places[2]});
    }
    CHECK(difference_of(to, differences([&](const Numbers& x) { return slow.run(x); }, all, dy)) < kBound);
  }
}

TEST_CASE("gradients of gated units are those of differences, and clamped numbers have none") {
  const size_t count = 200;
  const Numbers dy = random_numbers(count, 6), both = random_numbers(2 * count, 7, 3);
  for (const GateShape& g :
       {GateShape{}, GateShape{1.702f, 1, 2, false}, GateShape{1, 0, 1, false}, GateShape{1, 0, 0, true}}) {
    CAPTURE(g.limit);
    CAPTURE(g.is_gelu);
    const auto units = [&](const Numbers& x) {
      Numbers out;
      for (size_t i = 0; i < count; ++i) {
        const double limit = g.limit > 0 ? static_cast<double>(g.limit) : 1e9;
        const double gate = std::min(x[i], limit), up = std::clamp(x[count + i], -limit, limit);
        const double root = std::sqrt(2 / M_PI);
        out.push_back(g.is_gelu
                          ? gate / 2 * (1 + std::tanh(root * (gate + 0.044715 * gate * gate * gate))) * up
                          : gate / (1 + std::exp(-static_cast<double>(g.slope) * gate)) *
                                (up + static_cast<double>(g.offset)));
      }
      return out;
    };
    const std::vector<float> in = narrow(both);
    std::vector<float> d = narrow(dy), dup(count);
    gate_gradient(g, in.data(), in.data() + count, count, d.data(), dup.data());
    d.insert(d.end(), dup.begin(), dup.end());
    CHECK(difference_of(d, differences(units, both, dy)) < kBound);
    if (g.limit > 0) CHECK(std::count(d.begin(), d.end(), 0.0f) > 0);
  }
}

TEST_CASE("gradients of a router's logits are those of differences in the weights of the chosen experts") {
  const int64_t experts = 8, top_k = 3, tokens = 5;
  const Numbers logits = random_numbers(experts * tokens, 8, 2), dw = random_numbers(top_k * tokens, 9);
  for (const RouterScores scores :
       {RouterScores::kSoftmax, RouterScores::kSigmoid, RouterScores::kSqrtSoftplus}) {
    for (const bool renormalized : {false, true}) {
      CAPTURE(renormalized);
      const RouterRule rule{.scores = scores, .renormalized = renormalized, .scaling = 1.7};
      const ExpertChoice chosen = cpu::choose_experts(rule, narrow(logits), experts, top_k, {});
      const auto weights = [&](const Numbers& x) {
        Numbers out;
        for (int64_t t = 0; t < tokens; ++t) {
          const auto score = [&](int64_t e) {
            const double v = x[static_cast<size_t>(t * experts + e)];
            if (scores == RouterScores::kSigmoid) return 1 / (1 + std::exp(-v));
            return scores == RouterScores::kSoftmax ? std::exp(v) : std::sqrt(std::log1p(std::exp(v)));
          };
          double all = 0, of_chosen = 0;
          for (int64_t e = 0; e < experts; ++e) all += score(e);
          const auto* ids = chosen.ids.data() + t * top_k;
          for (int64_t j = 0; j < top_k; ++j) of_chosen += score(ids[j]);
          const double sum = renormalized ? of_chosen : scores == RouterScores::kSoftmax ? all : 1;
          for (int64_t j = 0; j < top_k; ++j) out.push_back(1.7 * score(ids[j]) / sum);
        }
        return out;
      };
      CHECK(difference_of(router_gradient(rule, narrow(logits), experts, chosen, narrow(dw)),
                          differences(weights, logits, dw)) < kBound);
    }
  }
}

}  // namespace
}  // namespace twofour
