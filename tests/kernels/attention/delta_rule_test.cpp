#include "kernels/attention/delta_rule.h"

#include <doctest/doctest.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace twofour {
namespace {

using Rows = xt::xtensor<double, 2>;
using Heads = xt::xtensor<double, 3>;

std::vector<float> drawn(int64_t count, unsigned seed, float mean = 0, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = mean + scale * normal(random);
  return x;
}

Rows rows_of(const std::vector<float>& x, int64_t columns) {
  return xt::adapt(x, {static_cast<int64_t>(x.size()) / columns, columns});
}

/// The largest difference over the largest number.
template <class Expected>
double error_in(const std::vector<float>& found, const Expected& expected) {
  const xt::xtensor<double, 1> flat = xt::flatten(expected);
  REQUIRE(found.size() == flat.size());
  const xt::xtensor<double, 1> off = xt::abs(xt::adapt(found, {found.size()}) - flat);
  return xt::amax(off)() / xt::amax(xt::abs(flat))();
}

Rows silu(const Rows& x) { return x / (1.0 + xt::exp(-x)); }

TEST_CASE("a convolution is that in double, in any pieces") {
  for (const int64_t kernel : {1, 2, 4, 7}) {
    for (const int64_t channels : {1, 5, 130}) {
      CAPTURE(kernel);
      CAPTURE(channels);
      const int64_t m = 20, before = kernel - 1;
      const std::vector<float> x = drawn(m * channels, 1), weight = drawn(channels * kernel, 2),
                               window = drawn(before * channels, 3);
      const Rows all =
          before > 0 ? Rows(xt::concatenate(xt::xtuple(rows_of(window, channels), rows_of(x, channels)), 0))
                     : rows_of(x, channels);
      Rows expected = xt::zeros<double>({m, channels});
      for (int64_t t = 0; t < kernel; ++t)
        expected += xt::view(rows_of(weight, kernel), xt::all(), t) * xt::view(all, xt::range(t, t + m));
      expected = silu(expected);
      for (const int64_t piece : {1, 2, 3, 7, 20}) {
        for (const Isa isa : available_isas()) {
          std::vector<float> kept = window, out(x.size());
          for (int64_t at = 0; at < m; at += piece) {
            cpu::Convolution in{.m = std::min(piece, m - at), .channels = channels, .kernel = kernel};
            in.x = x.data() + at * channels, in.weight = weight.data(), in.window = kept.data();
            cpu::convolve(in, out.data() + at * channels, isa);
          }
          CHECK(error_in(out, expected) <= 2e-6);  // sums of up to 7 products, and exp of float32
          const std::vector<float> last(x.end() - before * channels, x.end());
          CHECK(kept == last);
        }
      }
    }
  }
}

TEST_CASE("heads become as long as the factor, and zeros stay zeros") {
  std::vector<float> x = drawn(3 * 40, 1);
  std::fill(x.begin(), x.begin() + 8, 0.0f);
  const Heads heads = xt::view(xt::adapt(x, {3, 5, 8}), xt::all(), xt::range(0, 4));
  const Heads expected =
      heads / xt::sqrt(xt::view(xt::sum(heads * heads, {2}), xt::all(), xt::all(), xt::newaxis()) + 1e-6) *
      0.25;
  const std::vector<float> before = x;
  cpu::normalize_lengths(x.data(), 3, 40, 4, 8, 0.25f);
  std::vector<float> found;
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 40 < 32) found.push_back(x[i]);
    if (i % 40 >= 32) CHECK(x[i] == before[i]);
  }
  CHECK(error_in(found, expected) <= 1e-6);
}

TEST_CASE("gates are those in double, over the range of softplus") {
  const std::vector<float> a{-90, -30, -5, 0, 5, 19.9f, 20.1f, 500}, b{-90, -3, 0, 1, 30, 90, 0.5f, -0.5f},
      a_log{-2, 1}, dt_bias{0.5f, -1};
  std::vector<float> decay(8), beta(8);
  cpu::delta_gates({a.data(), b.data(), a_log, dt_bias, decay.data(), beta.data()}, 4);
  for (size_t i = 0; i < 8; ++i) {
    CAPTURE(i);
    const double x = static_cast<double>(a[i]) + static_cast<double>(dt_bias[i % 2]);
    const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
    const double expected = -std::exp(static_cast<double>(a_log[i % 2])) * softplus;
    CHECK(static_cast<double>(decay[i]) == doctest::Approx(expected).epsilon(1e-6));
    CHECK(static_cast<double>(beta[i]) ==
          doctest::Approx(1 / (1 + std::exp(-static_cast<double>(b[i])))).epsilon(1e-6));
  }
}

/// Tokens for the delta rule, and what the formulas give in double.
struct DeltaCase {
  int64_t m, key_heads, value_heads, key_size, value_size;
  float decay = 1;   ///< mean of the decays
  float spread = 1;  ///< 0: all keys are alike
  std::vector<float> qkv = {}, decays = {}, betas = {}, state = {};
  int64_t stride() const { return 2 * key_heads * key_size + value_heads * value_size; }

  void draw() {
    qkv = drawn(m * stride(), 1, 0.5f, spread);
    cpu::normalize_lengths(qkv.data(), m, stride(), 2 * key_heads, key_size, 1);
    decays = drawn(m * value_heads, 2, 0, decay);
    for (float& d : decays) d = -std::abs(d);
    betas = drawn(m * value_heads, 3);
    for (float& b : betas) b = 1 / (1 + std::exp(-3 * b));
    state = drawn(value_heads * key_size * value_size, 4);
  }
  cpu::DeltaRule rule(std::vector<float>& at) const {
    const float *q = qkv.data(), *k = q + key_heads * key_size, *v = k + key_heads * key_size;
    return {m, key_heads, value_heads, key_size,      value_size,   q,
            k, v,         stride(),    decays.data(), betas.data(), at.data()};
  }
  /// Returns the outputs [m, heads, value_size], and changes `s` [heads, key_size, value_size].
  Heads reference(Heads& s) const {
    const Rows all = rows_of(qkv, stride()), d = rows_of(decays, value_heads),
               b = rows_of(betas, value_heads);
    const int64_t keys = key_heads * key_size, group = value_heads / key_heads;
    Heads out = xt::zeros<double>({m, value_heads, value_size});
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t h = 0; h < value_heads; ++h) {
        const int64_t at = h / group * key_size, own = 2 * keys + h * value_size;
        const xt::xtensor<double, 1> q = xt::view(all, i, xt::range(at, at + key_size)),
                                     k = xt::view(all, i, xt::range(keys + at, keys + at + key_size)),
                                     v = xt::view(all, i, xt::range(own, own + value_size));
        const auto column = [](const xt::xtensor<double, 1>& x) {
          return xt::view(x, xt::all(), xt::newaxis());
        };
        Rows now = std::exp(d(i, h)) * xt::view(s, h);
        const xt::xtensor<double, 1> written = b(i, h) * (v - xt::sum(column(k) * now, {0}));
        now += column(k) * xt::view(written, xt::newaxis(), xt::all());
        xt::view(out, i, h) = xt::sum(column(q) * now, {0});
        xt::view(s, h) = now;
      }
    }
    return out;
  }
};

TEST_CASE("the delta rule is that in double, by token and by chunk, at the borders of chunks") {
  for (DeltaCase c : {DeltaCase{1, 1, 1, 4, 4}, DeltaCase{2, 2, 4, 8, 12}, DeltaCase{63, 2, 2, 16, 16},
                      DeltaCase{64, 1, 3, 16, 20}, DeltaCase{65, 2, 4, 8, 5}, DeltaCase{129, 1, 2, 32, 33},
                      DeltaCase{200, 2, 4, 128, 128, 0.02f}, DeltaCase{130, 1, 1, 16, 16, 200.0f},
                      DeltaCase{100, 1, 2, 1, 1}, DeltaCase{150, 1, 1, 64, 3, 0.0f}}) {
    CAPTURE(c.m);
    CAPTURE(c.key_size);
    CAPTURE(c.decay);
    c.draw();
    Heads s = xt::adapt(c.state, {c.value_heads, c.key_size, c.value_size});
    const Heads expected = c.reference(s);
    const auto check_run = [&](auto&& run) {
      std::vector<float> state = c.state, out(static_cast<size_t>(c.m * c.value_heads * c.value_size));
      run(c.rule(state), out.data());
      // Up to 200 updates of float32, each with the error of a sum over the key.
      CHECK(error_in(out, expected) <= 1e-5);
      CHECK(error_in(state, s) <= 1e-5);
    };
    check_run([](const cpu::DeltaRule& in, float* out) { cpu::delta_rule_by_token(in, out); });
    check_run([](const cpu::DeltaRule& in, float* out) { cpu::delta_rule(in, out); });
    for (const Isa isa : available_isas()) {
      CAPTURE(isa_name(isa));
      check_run([&](const cpu::DeltaRule& in, float* out) { cpu::delta_rule_by_chunk(in, out, isa); });
    }
  }
}

TEST_CASE("equal keys that are written again and again leave the last value") {
  DeltaCase c{160, 1, 1, 16, 8, 0.0f, 0.0f};
  c.draw();
  std::fill(c.betas.begin(), c.betas.end(), 1.0f);
  std::vector<float> state(c.state.size(), 0.0f), out(static_cast<size_t>(160 * 8));
  cpu::delta_rule_by_chunk(c.rule(state), out.data());
  // Queries equal keys: each token reads what it wrote, its value of 0.5.
  for (const float x : out) CHECK(x == doctest::Approx(0.5).epsilon(1e-4));
}

TEST_CASE("a decay that forgets everything leaves what tokens write themselves") {
  DeltaCase c{70, 1, 2, 8, 8};
  c.draw();
  std::fill(c.decays.begin(), c.decays.end(), -1e30f);
  Heads s = xt::adapt(c.state, {c.value_heads, c.key_size, c.value_size});
  const Heads expected = c.reference(s);
  std::vector<float> state = c.state, out(static_cast<size_t>(70 * 2 * 8));
  cpu::delta_rule(c.rule(state), out.data());
  CHECK(error_in(out, expected) <= 1e-5);
}

TEST_CASE("a gated norm is that in double") {
  for (const int64_t size : {1, 12, 128}) {
    const int64_t m = 90;
    const std::vector<float> x = drawn(m * size, 1), gate = drawn(m * size, 2, 0, 8), weight = drawn(size, 3);
    const Rows rows = rows_of(x, size);
    const Rows expected = rows /
                          xt::sqrt(xt::view(xt::mean(rows * rows, {1}), xt::all(), xt::newaxis()) + 1e-5) *
                          xt::adapt(weight, {size}) * silu(rows_of(gate, size));
    for (const Isa isa : available_isas()) {
      std::vector<float> out(x.size());
      cpu::gated_norm(x.data(), gate.data(), m, weight, 1e-5, out.data(), isa);
      CHECK(error_in(out, expected) <= 2e-6);
    }
  }
}

}  // namespace
}  // namespace twofour
