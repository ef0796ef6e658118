#include "kernels/attention/compressed_attention.h"

#include <doctest/doctest.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xsort.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <set>

#include "kernels/attention/residual_streams.h"

// Each function against a reference in double, which follows the formulas of DeepSeek-V4.

namespace twofour {
namespace {

using Wide2 = xt::xtensor<double, 2>;
using Wide3 = xt::xtensor<double, 3>;

std::vector<float> normal_numbers(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = normal(random);
  return x;
}
Wide2 wide(const std::vector<float>& x, int64_t rows, int64_t columns) {
  return xt::cast<double>(xt::adapt(x, {rows, columns}));
}
double largest_difference(const std::vector<float>& found, const Wide2& expected) {
  REQUIRE(found.size() == expected.size());
  return xt::amax(xt::abs(xt::adapt(found, expected.shape()) - expected))();
}

/// Entry `i` in double: rows of values and gates under a softmax for each channel.
Wide2 entries_in_double(const cpu::Compressor& c, const Wide2& values, const Wide2& gates) {
  const int64_t m = static_cast<int64_t>(values.shape(0)), r = c.ratio, w = c.width;
  Wide2 entries = xt::zeros<double>({m / r, w});
  for (int64_t i = 0; i < m / r; ++i) {
    for (int64_t channel = 0; channel < w; ++channel) {
      double sum = 0, weights = 0;
      for (int64_t token = c.overlaps ? (i - 1) * r : i * r; token < (i + 1) * r; ++token) {
        if (token < 0) continue;
        const int64_t column = channel + (c.overlaps && token >= i * r ? w : 0);
        const double gate =
            gates(token, column) +
            static_cast<double>(c.bias[static_cast<size_t>(token % r * c.columns() + column)]);
        sum += std::exp(gate) * values(token, column);
        weights += std::exp(gate);
      }
      entries(i, channel) = sum / weights;
    }
  }
  return entries;
}

TEST_CASE("entries are weighted means of their tokens, however the tokens come") {
  for (const auto& [ratio, overlaps] : {std::pair(4, true), std::pair(128, false), std::pair(4, false)}) {
    CAPTURE(ratio);
    CAPTURE(overlaps);
    cpu::Compressor c{ratio, 6, overlaps, {}};
    const std::vector<float> bias = normal_numbers(ratio * c.columns(), 3);
    c.bias = bias;
    const int64_t m = 300;
    const std::vector<float> values = normal_numbers(m * c.columns(), 1);
    std::vector<float> gates = normal_numbers(m * c.columns(), 2);
    for (float& g : gates) g *= 4;
    const Wide2 expected = entries_in_double(c, wide(values, m, c.columns()), wide(gates, m, c.columns()));
    std::vector<float> first;
    for (const std::vector<int64_t>& pieces :
         {std::vector<int64_t>{300}, {1, 2, 1, 4, 3, 116, 1, 1, 171}, {127, 1, 172}}) {
      cpu::CompressorState state;
      std::vector<float> found;
      int64_t begin = 0;
      for (const int64_t count : pieces) {
        const auto some = cpu::compress(c, values.data() + begin * c.columns(),
                                        gates.data() + begin * c.columns(), count, begin, state);
        found.insert(found.end(), some.begin(), some.end());
        begin += count;
        CHECK(static_cast<int64_t>(state.values.size()) == (begin - c.first_needed(begin)) * c.columns());
      }
      REQUIRE(begin == m);
      CHECK(largest_difference(found, expected) < 1e-5);
      if (first.empty()) first = found;
      CHECK(found == first);  // the same sums in the same order
    }
  }
}

TEST_CASE("gates of any size make finite entries") {
  const std::vector<float> bias(16);
  const cpu::Compressor own{4, 2, true, bias};
  const std::vector<float> values = normal_numbers(8 * 4, 1);
  for (const float size : {3e38f, -3e38f}) {
    cpu::CompressorState state;
    const auto found = cpu::compress(own, values.data(), std::vector<float>(32, size).data(), 8, 0, state);
    for (const float x : found) CHECK(std::isfinite(x));
  }
}

TEST_CASE("the Hadamard matrix is Sylvester's") {
  const std::vector<float> x = normal_numbers(3 * 16, 5);
  Wide2 expected = xt::zeros<double>({3, 16});
  for (unsigned row = 0; row < 3; ++row) {
    for (unsigned i = 0; i < 16; ++i) {
      for (unsigned j = 0; j < 16; ++j)
        expected(row, i) +=
            (std::popcount(i & j) % 2 == 0 ? 0.25 : -0.25) * static_cast<double>(x[row * 16 + j]);
    }
  }
  std::vector<float> found = x;
  cpu::hadamard(found.data(), 3, 16);
  CHECK(largest_difference(found, expected) < 1e-6);
  cpu::hadamard(found.data(), 3, 16);  // it is its own inverse
  CHECK(largest_difference(found, wide(x, 3, 16)) < 1e-6);
}

TEST_CASE("a token sees the entries with the largest scores, of equal ones the lowest") {
  const int64_t m = 60, heads = 5, size = 8, entries = 15;
  const std::vector<float> q = normal_numbers(m * heads * size, 1), keys = normal_numbers(entries * size, 2),
                           w = normal_numbers(m * heads, 3);
  cpu::EntryScores in{m, 3, heads, size, 4, 6, q.data(), keys.data(), w.data()};
  const auto chosen = cpu::choose_entries(in);
  for (int64_t i = 0; i < m; ++i) {
    const int64_t count = (3 + i + 1) / 4;
    std::vector<std::pair<double, int64_t>> scores;
    for (int64_t e = 0; e < count; ++e) {
      double score = 0;
      for (int64_t h = 0; h < heads; ++h) {
        double product = 0;
        for (int64_t j = 0; j < size; ++j)
          product += static_cast<double>(q[static_cast<size_t>((i * heads + h) * size + j)]) *
                     static_cast<double>(keys[static_cast<size_t>(e * size + j)]);
        score += static_cast<double>(w[static_cast<size_t>(i * heads + h)]) * std::max(product, 0.0);
      }
      scores.emplace_back(-score, e);
    }
    std::sort(scores.begin(), scores.end());
    std::set<int64_t> expected;
    for (int64_t j = 0; j < std::min<int64_t>(count, 6); ++j)
      expected.insert(scores[static_cast<size_t>(j)].second);
    const auto& found = chosen[static_cast<size_t>(i)];
    CHECK(std::is_sorted(found.begin(), found.end()));
    CHECK(std::set<int64_t>(found.begin(), found.end()) == expected);
  }
  // All scores are 0, and one is no number.
  const std::vector<float> none(static_cast<size_t>(m * heads * size));
  in.q = none.data();
  CHECK(cpu::choose_entries(in).back() == std::vector<int32_t>{0, 1, 2, 3, 4, 5});
  std::vector<float> odd = keys;
  odd[0] = NAN;
  in.keys = odd.data();
  CHECK(cpu::choose_entries(in).back() == std::vector<int32_t>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("attention has one softmax over window, entries and sink") {
  const int64_t m = 9, begin = 20, heads = 20, size = 6, window = 5, first = begin - (window - 1);
  const std::vector<float> q = normal_numbers(m * heads * size, 1),
                           tokens = normal_numbers((m + window - 1) * size, 2),
                           entries = normal_numbers(7 * size, 3), sinks = normal_numbers(heads, 4);
  std::vector<std::vector<int32_t>> chosen;
  for (int32_t i = 0; i < m; ++i)
    chosen.push_back(i % 3 == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{i % 2, 3, 6});
  for (const bool with_entries : {true, false}) {
    Wide2 expected = xt::zeros<double>({m, heads * size});
    for (int64_t i = 0; i < m; ++i) {
      std::vector<const float*> seen;
      for (int64_t p = begin + i - window + 1; p <= begin + i; ++p)
        seen.push_back(tokens.data() + (p - first) * size);
      if (with_entries) {
        for (const int32_t e : chosen[static_cast<size_t>(i)]) seen.push_back(entries.data() + e * size);
      }
      for (int64_t h = 0; h < heads; ++h) {
        double all = std::exp(static_cast<double>(sinks[static_cast<size_t>(h)]));
        for (const float* key : seen) {
          double logit = 0;
          for (int64_t j = 0; j < size; ++j)
            logit += 0.4 * static_cast<double>(q[static_cast<size_t>((i * heads + h) * size + j)]) *
                     static_cast<double>(key[j]);
          all += std::exp(logit);
          for (int64_t j = 0; j < size; ++j)
            expected(i, h * size + j) += std::exp(logit) * static_cast<double>(key[j]);
        }
        for (int64_t j = 0; j < size; ++j) expected(i, h * size + j) /= all;
      }
    }
    std::vector<float> found(static_cast<size_t>(m * heads * size));
    cpu::attend_chosen({m, begin, heads, size, q.data(), window, first, tokens.data(), entries.data(),
                        with_entries ? &chosen : nullptr, sinks, 0.4f},
                       found.data());
    CHECK(largest_difference(found, expected) < 1e-6);
  }
}

/// Weights of a mixer with n streams of 6 numbers.
struct MixerNumbers {
  MixerNumbers(int64_t n, int64_t rows, int64_t scales)
      : weight(normal_numbers(rows * n * 6, 1)),
        base(normal_numbers(rows, 2)),
        scale(normal_numbers(scales, 3)) {
    mixer = {n, 6, weight, base, scale, 20, 1e-6, 1e-5};
  }
  std::vector<float> weight, base, scale;
  cpu::StreamMixer mixer;
};

/// The values of a mixer's rows for each token: scale * (row x / rms(x)) + base, in double.
Wide2 logits_in_double(const MixerNumbers& w, const Wide2& x) {
  const int64_t rows = static_cast<int64_t>(w.base.size()), n = w.mixer.streams;
  const Wide2 weight = wide(w.weight, rows, n * 6);
  Wide2 out = xt::zeros<double>({static_cast<int64_t>(x.shape(0)), rows});
  for (size_t i = 0; i < x.shape(0); ++i) {
    const auto row = xt::view(x, i, xt::all());
    const double size = std::sqrt(xt::mean(row * row)() + 1e-5);
    for (int64_t r = 0; r < rows; ++r) {
      const size_t kind = w.scale.size() == 1 || r < n ? 0 : r < 2 * n ? 1 : 2;
      out(i, r) =
          xt::sum(xt::view(weight, r, xt::all()) * row)() / size * static_cast<double>(w.scale[kind]) +
          static_cast<double>(w.base[static_cast<size_t>(r)]);
    }
  }
  return out;
}
double sigmoid_in_double(double x) { return 1 / (1 + std::exp(-x)); }

TEST_CASE("streams mix as in double: rows and columns sum to 1, and the mix is used transposed") {
  for (const int64_t n : {2, 4}) {
    const int64_t m = 5;
    const MixerNumbers w(n, 2 * n + n * n, 3);
    const std::vector<float> x = normal_numbers(m * n * 6, 7), y = normal_numbers(m * 6, 8);
    const Wide2 logits = logits_in_double(w, wide(x, m, n * 6));
    const cpu::StreamMix found = cpu::mix_streams(w.mixer, x.data(), m);
    std::vector<float> in(static_cast<size_t>(m * 6)), after = x;
    cpu::read_streams(found.read, x.data(), n, 6, in.data());
    cpu::write_streams(found, y.data(), n, 6, after.data());
    Wide2 input = xt::zeros<double>({m, int64_t{6}}), expected = xt::zeros<double>({m, n * 6});
    for (int64_t i = 0; i < m; ++i) {
      Wide2 a = xt::zeros<double>({n, n});
      for (int64_t j = 0; j < n * n; ++j) a(j / n, j % n) = std::exp(logits(i, 2 * n + j));
      a = Wide2(a / xt::view(xt::sum(a, {1}), xt::all(), xt::newaxis()) + 1e-6);
      for (int turn = 0; turn < 20; ++turn) {
        if (turn > 0) a = Wide2(a / (xt::view(xt::sum(a, {1}), xt::all(), xt::newaxis()) + 1e-6));
        a = Wide2(a / (xt::view(xt::sum(a, {0}), xt::newaxis(), xt::all()) + 1e-6));
      }
      CHECK(xt::amax(xt::abs(xt::sum(a, {0}) - 1.0))() < 1e-4);
      for (int64_t c = 0; c < 6; ++c) {
        for (int64_t k = 0; k < n; ++k) {
          const double stream = static_cast<double>(x[static_cast<size_t>((i * n + k) * 6 + c)]);
          input(i, c) += (sigmoid_in_double(logits(i, k)) + 1e-6) * stream;
          double sum = 2 * sigmoid_in_double(logits(i, n + k)) *
                       static_cast<double>(y[static_cast<size_t>(i * 6 + c)]);
          for (int64_t j = 0; j < n; ++j)
            sum += a(j, k) * static_cast<double>(x[static_cast<size_t>((i * n + j) * 6 + c)]);
          expected(i, k * 6 + c) = sum;
        }
      }
    }
    CHECK(largest_difference(in, input) < 1e-5);
    CHECK(largest_difference(after, expected) < 1e-5);
  }
}

TEST_CASE("the head reads a weighted sum of the streams") {
  const int64_t n = 4, m = 3;
  const MixerNumbers w(n, n, 1);
  const std::vector<float> x = normal_numbers(m * n * 6, 7);
  const Wide2 logits = logits_in_double(w, wide(x, m, n * 6));
  Wide2 expected = xt::zeros<double>({m, n});
  for (int64_t i = 0; i < m * n; ++i) expected(i / n, i % n) = sigmoid_in_double(logits(i / n, i % n)) + 1e-6;
  CHECK(largest_difference(cpu::mix_for_head(w.mixer, x.data(), m), expected) < 1e-5);
}

}  // namespace
}  // namespace twofour
