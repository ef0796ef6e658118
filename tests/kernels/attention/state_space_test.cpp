#include "kernels/attention/state_space.h"

#include <doctest/doctest.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/attention/delta_rule.h"

namespace twofour {
namespace {

using ScanRows = xt::xtensor<double, 2>;
using ScanHeads = xt::xtensor<double, 3>;

std::vector<float> normal_floats(int64_t count, unsigned seed, float mean = 0, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = mean + scale * normal(random);
  return x;
}

/// The largest difference over the largest number.
template <class Expected>
double largest_error(const std::vector<float>& found, const Expected& expected) {
  const xt::xtensor<double, 1> flat = xt::flatten(expected);
  REQUIRE(found.size() == flat.size());
  const xt::xtensor<double, 1> off = xt::abs(xt::adapt(found, {found.size()}) - flat);
  return xt::amax(off)() / xt::amax(xt::abs(flat))();
}

/// Tokens for a scan, and what the formulas give in double.
struct ScanCase {
  int64_t m, heads, groups, head_size, state_size;
  float rate = 0;  ///< mean of a_log
  std::vector<float> xbc = {}, steps = {}, a_log = {}, d = {}, state = {};
  int64_t stride() const { return heads * head_size + 2 * groups * state_size; }

  void draw() {
    xbc = normal_floats(m * stride(), 1, 0.25f);
    steps = normal_floats(m * heads, 2);
    for (float& s : steps) s = std::abs(s);
    a_log = normal_floats(heads, 3, rate);
    d = normal_floats(heads, 4);
    state = normal_floats(heads * state_size * head_size, 5);
  }
  cpu::StateScan scan(std::vector<float>& at, int64_t from, int64_t count) const {
    const float *x = xbc.data() + from * stride(), *b = x + heads * head_size, *c = b + groups * state_size;
    return {count, heads, groups,   head_size, state_size, x, b, c, stride(), steps.data() + from * heads,
            a_log, d,     at.data()};
  }
  /// Returns the outputs [m, heads, head_size], and changes `s` [heads, state_size, head_size].
  ScanHeads reference(ScanHeads& s) const {
    const ScanRows all = xt::adapt(xbc, {m, stride()}), t = xt::adapt(steps, {m, heads});
    ScanHeads out = xt::zeros<double>({m, heads, head_size});
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t group = h / (heads / groups), first = heads * head_size + group * state_size,
                      behind = first + groups * state_size;
        const auto part = [&](int64_t begin, int64_t count) {
          return xt::xtensor<double, 1>(xt::view(all, i, xt::range(begin, begin + count)));
        };
        const auto x = part(h * head_size, head_size), b = part(first, state_size),
                   c = part(behind, state_size);
        const auto head = static_cast<size_t>(h);
        const double decay = std::exp(-std::exp(static_cast<double>(a_log[head])) * t(i, h));
        ScanRows now = decay * xt::view(s, h);
        now += xt::view(b, xt::all(), xt::newaxis()) * xt::view(x, xt::newaxis(), xt::all()) * t(i, h);
        xt::view(out, i, h) =
            xt::sum(xt::view(c, xt::all(), xt::newaxis()) * now, {0}) + static_cast<double>(d[head]) * x;
        xt::view(s, h) = now;
      }
    }
    return out;
  }
};

TEST_CASE("a scan of states is that in double, by token, by chunk and in pieces") {
  for (ScanCase c : {ScanCase{1, 1, 1, 4, 4}, ScanCase{2, 4, 2, 12, 8}, ScanCase{63, 2, 2, 16, 16},
                     ScanCase{64, 3, 1, 20, 16}, ScanCase{65, 4, 2, 5, 8}, ScanCase{129, 2, 1, 33, 32},
                     ScanCase{200, 8, 2, 64, 128, -2.0f}, ScanCase{130, 2, 1, 16, 16, 5.0f},
                     ScanCase{100, 2, 2, 1, 1}, ScanCase{150, 6, 3, 3, 70, -9.0f}}) {
    CAPTURE(c.m);
    CAPTURE(c.state_size);
    c.draw();
    ScanHeads s = xt::adapt(c.state, {c.heads, c.state_size, c.head_size});
    const ScanHeads expected = c.reference(s);
    const auto check_run = [&](int64_t piece, auto&& run) {
      CAPTURE(piece);
      std::vector<float> state = c.state, out(static_cast<size_t>(c.m * c.heads * c.head_size));
      for (int64_t at = 0; at < c.m; at += piece)
        run(c.scan(state, at, std::min(piece, c.m - at)), out.data() + at * c.heads * c.head_size);
      // Up to 200 updates of float32, each with the error of a sum over the state
      CHECK(largest_error(out, expected) <= 1e-5);
      CHECK(largest_error(state, s) <= 1e-5);
    };
    const auto by_token = [](const cpu::StateScan& in, float* out) { cpu::scan_states_by_token(in, out); };
    check_run(c.m, by_token);
    for (const int64_t piece : {int64_t{1}, int64_t{7}, int64_t{64}, int64_t{65}})
      check_run(piece, [](const cpu::StateScan& in, float* out) { cpu::scan_states(in, out); });
    for (const Isa isa : available_isas()) {
      CAPTURE(isa_name(isa));
      check_run(c.m, [&](const cpu::StateScan& in, float* out) { cpu::scan_states_by_chunk(in, out, isa); });
    }
  }
}

TEST_CASE("time steps are softplus between their limits") {
  const std::vector<float> x{-90, -8, -3, 0, 3, 19.9f, 20.1f, 500}, bias{0.5f, -1};
  for (const auto& [least, most] : {std::pair(0.0f, INFINITY), std::pair(0.1f, 4.0f)}) {
    std::vector<float> found = x;
    cpu::time_steps(found.data(), 4, bias, least, most);
    for (size_t i = 0; i < x.size(); ++i) {
      const double sum = static_cast<double>(x[i]) + static_cast<double>(bias[i % 2]);
      const double softplus = std::max(sum, 0.0) + std::log1p(std::exp(-std::abs(sum)));
      const double expected = std::clamp(softplus, static_cast<double>(least), static_cast<double>(most));
      CHECK(static_cast<double>(found[i]) == doctest::Approx(expected).epsilon(1e-6));
    }
  }
}

TEST_CASE("a convolution adds its bias before silu") {
  const int64_t m = 9, channels = 5, kernel = 3;
  const std::vector<float> x = normal_floats(m * channels, 1), weight = normal_floats(channels * kernel, 2),
                           bias = normal_floats(channels, 3);
  ScanRows expected = xt::zeros<double>({m, channels});
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t c = 0; c < channels; ++c) {
      double sum = static_cast<double>(bias[static_cast<size_t>(c)]);
      for (int64_t t = std::max<int64_t>(0, kernel - 1 - i); t < kernel; ++t) {
        sum += static_cast<double>(weight[static_cast<size_t>(c * kernel + t)]) *
               static_cast<double>(x[static_cast<size_t>((i - kernel + 1 + t) * channels + c)]);
      }
      expected(i, c) = sum / (1 + std::exp(-sum));
    }
  }
  std::vector<float> window(static_cast<size_t>((kernel - 1) * channels)), out(x.size());
  cpu::Convolution in{.m = m, .channels = channels, .kernel = kernel};
  in.x = x.data(), in.weight = weight.data(), in.window = window.data(), in.bias = bias.data();
  cpu::convolve(in, out.data());
  CHECK(largest_error(out, expected) <= 2e-6);
}

TEST_CASE("a norm of groups behind a gate is that in double") {
  for (const auto& [groups, each] : {std::pair<int64_t, int64_t>{1, 1}, {1, 96}, {4, 24}, {3, 128}}) {
    const int64_t m = 50, size = groups * each;
    const std::vector<float> x = normal_floats(m * size, 1), gate = normal_floats(m * size, 2, 0, 8),
                             weight = normal_floats(size, 3);
    ScanRows expected = xt::zeros<double>({m, size});
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t g = 0; g < groups; ++g) {
        std::vector<double> y;
        double squares = 0;
        for (int64_t j = g * each; j < (g + 1) * each; ++j) {
          const auto at = static_cast<size_t>(i * size + j);
          const auto z = static_cast<double>(gate[at]);
          y.push_back(static_cast<double>(x[at]) * z / (1 + std::exp(-z)));
          squares += y.back() * y.back();
        }
        const double norm = std::sqrt(squares / static_cast<double>(each) + 1e-5);
        for (int64_t j = 0; j < each; ++j) {
          expected(i, g * each + j) = y[static_cast<size_t>(j)] / norm *
                                      static_cast<double>(weight[static_cast<size_t>(g * each + j)]);
        }
      }
    }
    for (const Isa isa : available_isas()) {
      std::vector<float> out(x.size());
      cpu::gate_and_norm(x.data(), gate.data(), m, groups, weight, 1e-5, out.data(), isa);
      CHECK(largest_error(out, expected) <= 2e-6);
    }
  }
}

}  // namespace
}  // namespace twofour
