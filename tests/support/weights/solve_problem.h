#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/numbers/quantize.h"
#include "kernels/pack/prune.h"

namespace twofour {

/// Activations that depend on each other, of unlike sizes, with an input that is never used and one that
/// repeats another.
struct SolveProblem {
  int64_t k;
  std::vector<float> hessian, weights;
  float stored;

  SolveProblem(int64_t rows, int64_t columns, int tokens, unsigned seed,
               Arithmetic arithmetic = Arithmetic::modelopt)
      : k(columns), hessian(static_cast<size_t>(columns * columns)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> size;
    for (int64_t j = 0; j < k; ++j) size.push_back(std::exp(normal(random)));
    size[5] = 0;
    for (int t = 0; t < tokens; ++t) {
      const float shared = normal(random);
      std::vector<float> x;
      for (int64_t j = 0; j < k; ++j) x.push_back(size[static_cast<size_t>(j)] * (normal(random) + shared));
      x[9] = x[8];
      for (size_t i = 0; i < x.size(); ++i) {
        for (size_t j = 0; j < x.size(); ++j) hessian[i * x.size() + j] += x[i] * x[j];
      }
    }
    for (float& h : hessian) h /= static_cast<float>(tokens);
    float amax = 0;
    for (int64_t i = 0; i < rows * k; ++i) {
      float w = 0.02f * normal(random);
      if (i % 7 == 0) w = -0.0f;
      if (i / k % 5 == 1 && i % k < 40) w = 0;            // blocks of zeros
      if (i / k % 5 == 2) w = i % 3 == 0 ? 0.5f : -0.5f;  // ties
      if (i / k % 5 == 3) w = 0;                          // a row of zeros
      weights.push_back(w);
      amax = std::max(amax, std::abs(w));
    }
    QuantizeRule rule;
    rule.arithmetic = arithmetic;
    stored = global_scale_of(rule, amax).stored;
  }
  int64_t rows() const { return static_cast<int64_t>(weights.size()) / k; }
};

/// Masks of a pattern, by chance.
inline std::vector<uint8_t> random_mask(const SolveProblem& p, PrunePattern pattern, unsigned seed) {
  std::mt19937 random(seed);
  const size_t each = pattern == PrunePattern::k2of4 ? 1 : 2;
  std::vector<uint8_t> mask(p.weights.size());
  for (size_t first = 0; first < mask.size(); first += 4 * each) {
    const size_t a = random() % 4, b = (a + 1 + random() % 3) % 4;
    for (size_t i = 0; i < each; ++i) mask[first + a * each + i] = mask[first + b * each + i] = 1;
  }
  return mask;
}

}  // namespace twofour
