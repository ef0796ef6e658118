#include "kernels/attention/attention.h"

#include <doctest/doctest.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace twofour {
namespace {

std::vector<float> draw(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = normal(random);
  return x;
}

/// The output for query i of a head, in double [value_size].
xt::xtensor<double, 1> reference(const cpu::Attention& in, int64_t i, int64_t head) {
  const int64_t position = in.keys - in.queries + i, kv = head / (in.heads / in.kv_heads);
  const int64_t first = in.window > 0 ? std::max<int64_t>(position - in.window + 1, 0) : 0;
  const auto of_keys = [&](const float& all, int64_t size) -> xt::xtensor<double, 2> {  // [seen, size]
    return xt::view(xt::adapt(&all, {in.keys, in.kv_heads, size}), xt::range(first, position + 1), kv);
  };
  const xt::xtensor<double, 1> q =
      xt::view(xt::adapt(&in.q[0], {in.queries, in.heads, in.head_size}), i, head);
  const xt::xtensor<double, 1> logits = xt::sum(of_keys(in.k[0], in.head_size) * q, {1});
  const xt::xtensor<double, 1> weights = xt::exp(logits * static_cast<double>(in.scale));
  const double sink =
      in.sinks.empty() ? 0 : std::exp(static_cast<double>(in.sinks[static_cast<size_t>(head)]));
  const auto v = of_keys(in.v[0], in.value_size);
  return xt::sum(xt::view(weights, xt::all(), xt::newaxis()) * v, {0}) / (sink + xt::sum(weights)());
}

TEST_CASE("attention is that in double: groups, windows, sinks, keys before the queries") {
  const std::vector<float> sinks{0.5f, -1.0f, 2.0f, 0.0f};
  for (const int64_t queries : {1, 130, 300}) {
    for (const int64_t before : {0, 40}) {
      for (const int64_t window : {0, 1, 33}) {
        for (const bool sink : {false, true}) {
          CAPTURE(queries);
          CAPTURE(before);
          CAPTURE(window);
          CAPTURE(sink);
          const int64_t keys = queries + before;
          const std::vector<float> q = draw(queries * 4 * 12, 1), k = draw(keys * 2 * 12, 2),
                                   v = draw(keys * 2 * 7, 3);
          cpu::Attention in{queries, keys, 4, 2, 12, 7, q.data(), k.data(), v.data(), {}, 0.3f, window};
          if (sink) in.sinks = sinks;
          std::vector<float> out(static_cast<size_t>(queries * 4 * 7));
          cpu::attend(in, out.data());
          const auto found = xt::adapt(out.data(), {queries, int64_t{4}, int64_t{7}});
          for (int64_t i = 0; i < queries; i += 7) {
            for (int64_t h = 0; h < 4; ++h)  // numbers of about 1, sums of up to 340 in float32
              CHECK(xt::all(xt::abs(xt::view(found, i, h) - reference(in, i, h)) < 1e-5));
          }
        }
      }
    }
  }
}

TEST_CASE("a rotation turns pairs by their angle and leaves the rest of a head") {
  const std::vector<float> frequencies{0.5f, 0.25f};
  for (const bool interleaved : {false, true}) {
    std::vector<float> x{9, 1, 2, 3, 4, 8, 9, 1, 2, 3, 4, 8};  // two heads of 6, pairs from 1 on
    cpu::rotate({frequencies, 2.0f, interleaved}, x.data(), 1, 12, 2, 6, 1, 3);
    const double c0 = 2 * std::cos(1.5), s0 = 2 * std::sin(1.5), c1 = 2 * std::cos(0.75),
                 s1 = 2 * std::sin(0.75);
    const double expected[2][6] = {{9, c0 - 3 * s0, 2 * c1 - 4 * s1, 3 * c0 + s0, 4 * c1 + 2 * s1, 8},
                                   {9, c0 - 2 * s0, 2 * c0 + s0, 3 * c1 - 4 * s1, 4 * c1 + 3 * s1, 8}};
    for (size_t i = 0; i < x.size(); ++i)
      CHECK(static_cast<double>(x[i]) == doctest::Approx(expected[interleaved][i % 6]).epsilon(1e-6));
  }
}

TEST_CASE("a norm brings the mean of squares to 1 and multiplies by the weight") {
  std::vector<float> x{3, 4, 0, 0};
  const std::vector<float> weight{2, 1};
  cpu::rms_norm(x.data(), 2, weight, 0.5, x.data());
  CHECK(x[0] == doctest::Approx(6 / std::sqrt(13.0)));
  CHECK(x[1] == doctest::Approx(4 / std::sqrt(13.0)));
  CHECK(x[2] == 0.0f);
}

}  // namespace
}  // namespace twofour
