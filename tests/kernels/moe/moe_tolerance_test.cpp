#include <doctest/doctest.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include <cmath>
#include <random>

#include "formats/half.h"
#include "kernels/moe/moe.h"

namespace moe_tolerance_test {

using namespace twofour;

namespace {

using Floats = xt::xtensor<float, 1>;

/// Weights in BF16, [E, N, K].
struct Weights {
  xt::xtensor<float, 3> values;
  Weights(size_t e, size_t n, size_t k, unsigned seed) : values({e, n, k}) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, 0.05);
    for (float& x : values) x = bf16_to_float(bf16_from_float(static_cast<float>(normal(random))));
  }
  WeightRows rows() {
    const auto size = [&](size_t d) { return static_cast<int64_t>(values.shape(d)); };
    return {size(0), size(1), size(2), [this](int64_t e) { expert_ = e; },
            [this](int64_t n, std::span<double> out) {
              xt::adapt(out.data(), {out.size()}) = xt::view(values, expert_, n);
            }};
  }
  /// W x of an expert in float32.
  Floats times(int64_t e, const Floats& x) const { return xt::sum(xt::view(values, e) * x, {1}); }

 private:
  int64_t expert_ = 0;
};

struct Layer {
  int64_t m = 3, h, i, topk = 2;
  bool gated;
  Weights w13, w2;
  std::vector<float> hidden, weights;
  std::vector<int32_t> ids;
  Layer(int64_t width, int64_t inner, bool is_gated)
      : h(width),
        i(inner),
        gated(is_gated),
        w13(4, static_cast<size_t>((gated ? 2 : 1) * i), static_cast<size_t>(h), 1),
        w2(4, static_cast<size_t>(h), static_cast<size_t>(i), 2) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (int64_t n = 0; n < m * h; ++n) hidden.push_back(bf16_to_float(bf16_from_float(normal(random))));
    for (int64_t n = 0; n < m * topk; ++n) {
      ids.push_back(static_cast<int32_t>(n % 4));
      weights.push_back(0.2f + static_cast<float>(n) / 10);
    }
  }
  MoeInput input() const { return {m, h, topk, hidden, ids, weights}; }

  /// A kernel in float32 with FP16 between the multiplications. `spoil` changes activations.
  template <class F>
  std::vector<float> run(F&& spoil) const {
    std::vector<float> out(static_cast<size_t>(m * h));
    auto sums = xt::adapt(out.data(), {m, h});
    const auto x = xt::adapt(hidden.data(), {m, h});
    for (int64_t r = 0; r < m * topk; ++r) {
      const int64_t token = r / topk, e = ids[static_cast<size_t>(r)];
      const Floats first = w13.times(e, xt::view(x, token));
      std::vector<float> active;
      for (int64_t n = 0; n < i; ++n) {
        const float own = first(n), relu = std::max(own, 0.0f);
        const float value = gated ? own / (1 + std::exp(-own)) * first(i + n) : relu * relu;
        active.push_back(fp16_to_float(fp16_from_float(value)));
      }
      spoil(r, active);
      xt::view(sums, token) += weights[static_cast<size_t>(r)] * w2.times(e, xt::adapt(active.data(), {i}));
    }
    return out;
  }
};

/// Largest error over its tolerance.
double worst(const MoeTolerance& want, const std::vector<float>& found) {
  const auto array = [](const auto& numbers) { return xt::adapt(numbers.data(), {numbers.size()}); };
  const auto out = array(want.out);
  return xt::amax(xt::abs(array(found) - out) / (array(want.tolerance) + 0x1p-24 * xt::abs(out)))();
}

}  // namespace

TEST_CASE("a kernel that rounds as it says stays inside the tolerance, one that is wrong does not") {
  for (const bool gated : {true, false}) {
    for (const auto& [h, i] : {std::pair<int64_t, int64_t>{16, 16}, {336, 208}, {2048, 512}}) {
      CAPTURE(gated);
      CAPTURE(h);
      Layer layer(h, i, gated);
      const MoeTolerance want =
          moe_tolerance(layer.input(), layer.w13.rows(), layer.w2.rows(), {0x1p-23, 0x1p-11 + 0x1p-20});
      const auto reference = moe_reference(layer.input(), layer.w13.rows(), layer.w2.rows());
      CHECK(want.out == reference);
      const double sound = worst(want, layer.run([](int64_t, std::vector<float>&) {}));
      CHECK(sound > 0);
      CHECK(sound < 1);
      // One activation of one row left out: the largest, as errors of single numbers hide behind roundings.
      CHECK(worst(want, layer.run([](int64_t r, std::vector<float>& active) {
              if (r != 1) return;
              *std::max_element(active.begin(), active.end(),
                                [](float a, float b) { return std::abs(a) < std::abs(b); }) = 0;
            })) > 1);
      // Neighbours exchanged, as a kernel with a wrong place would
      CHECK(worst(want, layer.run([](int64_t r, std::vector<float>& active) {
              if (r == 0) std::rotate(active.begin(), active.begin() + 1, active.end());
            })) > 1);
      // A factor a hundredth off
      CHECK(worst(want, layer.run([](int64_t, std::vector<float>& active) {
              for (float& x : active) x *= 1.01f;
            })) > 1);
    }
  }
}

}  // namespace moe_tolerance_test
