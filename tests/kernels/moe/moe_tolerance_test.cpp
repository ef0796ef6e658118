#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "formats/half.h"
#include "kernels/moe/moe.h"

namespace moe_tolerance_test {

using namespace twofour;

namespace {

/// Weights in double, [E, N, K].
struct Weights {
  int64_t e, n, k;
  std::vector<double> values;
  Weights(int64_t experts, int64_t rows, int64_t cols, unsigned seed)
      : e(experts), n(rows), k(cols), values(static_cast<size_t>(e * n * k)) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, 0.05);
    for (double& x : values)
      x = static_cast<double>(bf16_to_float(bf16_from_float(static_cast<float>(normal(random)))));
  }
  WeightRows rows() {
    return {e, n, k, [this](int64_t expert) { expert_ = expert; },
            [this](int64_t row, std::span<double> out) {
              std::copy_n(values.begin() + (expert_ * n + row) * k, k, out.begin());
            }};
  }
  float at(int64_t expert, int64_t row, int64_t col) const {
    return static_cast<float>(values[static_cast<size_t>((expert * n + row) * k + col)]);
  }

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
      : h(width), i(inner), gated(is_gated), w13(4, (gated ? 2 : 1) * i, h, 1), w2(4, h, i, 2) {
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
    for (int64_t r = 0; r < m * topk; ++r) {
      const int64_t token = r / topk, e = ids[static_cast<size_t>(r)];
      std::vector<float> active;
      const auto dot = [&](int64_t n) {
        float sum = 0;
        for (int64_t k = 0; k < h; ++k) sum += w13.at(e, n, k) * hidden[static_cast<size_t>(token * h + k)];
        return sum;
      };
      for (int64_t n = 0; n < i; ++n) {
        const float first = dot(n), relu = std::max(first, 0.0f);
        const float value = gated ? first / (1 + std::exp(-first)) * dot(i + n) : relu * relu;
        active.push_back(fp16_to_float(fp16_from_float(value)));
      }
      spoil(r, active);
      for (int64_t n = 0; n < h; ++n) {
        float sum = 0;
        for (int64_t k = 0; k < i; ++k) sum += w2.at(e, n, k) * active[static_cast<size_t>(k)];
        out[static_cast<size_t>(token * h + n)] += weights[static_cast<size_t>(r)] * sum;
      }
    }
    return out;
  }
};

/// Largest error over its tolerance.
double worst(const MoeTolerance& want, const std::vector<float>& found) {
  double share = 0;
  for (size_t n = 0; n < found.size(); ++n)
    share = std::max(share, std::abs(static_cast<double>(found[n]) - want.out[n]) /
                                (want.tolerance[n] + 0x1p-24 * std::abs(want.out[n])));
  return share;
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
