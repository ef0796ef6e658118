#include "kernels/pack/prune.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/weights/slow_float.h"

namespace prune_float_test {

using namespace twofour;

namespace {

/// By sorting each four.
std::vector<float> pruned_slowly(std::vector<float> weights) {
  for (size_t first = 0; first < weights.size(); first += 4) {
    std::array<size_t, 4> order{first, first + 1, first + 2, first + 3};
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return std::abs(weights[a]) > std::abs(weights[b]); });
    weights[order[2]] = weights[order[3]] = 0.0f;
  }
  return weights;
}

void check_pruned(const std::vector<float>& weights) {
  const std::vector<float> expected = pruned_slowly(weights);
  for (const Isa isa : available_isas()) {
    std::vector<float> found = weights;
    prune_2_4(found, isa);
    CAPTURE(isa_name(isa));
    for (size_t i = 0; i < weights.size(); ++i) {
      CAPTURE(i);
      REQUIRE(bits_of(found[i]) == bits_of(expected[i]));
    }
  }
}

}  // namespace

TEST_CASE("the two largest weights of each four stay, in every order of values with ties, zeros and signs") {
  constexpr std::array<float, 8> kValues{0.0f, -0.0f, 1.0f, -1.0f, 2.0f, -2.0f, 3.0f, 0x1p-149f};
  std::vector<float> weights;
  for (unsigned quad = 0; quad < 4096; ++quad) {
    for (unsigned i = 0; i < 4; ++i) weights.push_back(kValues[(quad >> 3 * i) & 7]);
  }
  check_pruned(weights);
}

TEST_CASE("random weights, infinities and any number of fours") {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> weights(4 * 1001);
  for (float& x : weights) {
    x = normal(random);
    if (random() % 10 == 0)
      x = random() % 2 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::max();
  }
  check_pruned(weights);
  for (int quads = 0; quads < 20; ++quads) check_pruned({weights.begin(), weights.begin() + 4 * quads});
}

}  // namespace prune_float_test
