#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/numbers/quantize.h"
#include "tests/support/weights/golden_quantize.h"

namespace quantize_golden_test {

// The results of the producers themselves for the same weights: tests/golden/quantize.

using namespace twofour;

namespace {

/// Checks every byte of every case; returns how many cases there were.
int check_file(const std::string& name, QuantizeRule rule) {
  const GoldenQuantize golden(name);
  int count = 0;
  for (const std::string& key : golden.cases()) {
    CAPTURE(name);
    CAPTURE(key);
    const std::vector<float> weights = golden.weights(key + "weight");
    rule.weight_type = golden.type(key + "weight");
    const float stored = golden.scalar(key + "global_scale");
    GlobalScale global = global_scale_from(rule, stored);
    if (golden.contains(key + "global_amax")) {
      const float amax = largest_magnitude(weights);
      CHECK(std::bit_cast<uint32_t>(amax) == std::bit_cast<uint32_t>(golden.scalar(key + "global_amax")));
      global = global_scale_of(rule, amax);
      CHECK(std::bit_cast<uint32_t>(global.stored) == std::bit_cast<uint32_t>(stored));
    }
    std::vector<uint8_t> codes(weights.size() / 2), scales(weights.size() / 16);
    quantize_nvfp4(rule, global, weights, codes.data(), scales.data());
    CHECK(differences(without_nan_sign(scales), without_nan_sign(golden.bytes(key + "block_scale"))) == "");
    CHECK(differences(codes, golden.bytes(key + "codes")) == "");
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("ModelOpt's own bytes: block scales from the maximum") {
  CHECK(check_file("modelopt_max", {}) == 42);
  CHECK(check_file("modelopt_max_given", {}) == 3);
}

TEST_CASE("llm-compressor's own bytes: block scales from the maximum") {
  const QuantizeRule rule{.arithmetic = Arithmetic::compressed_tensors};
  CHECK(check_file("compressed_tensors_max", rule) == 42);
  CHECK(check_file("compressed_tensors_max_given", rule) == 3);
}

TEST_CASE("ModelOpt's own bytes: four over six") {
  CHECK(check_file("modelopt_four_over_six", {.block_scale = BlockScale::four_over_six}) == 28);
}

TEST_CASE("ModelOpt's own bytes: block scales with the least squared error") {
  CHECK(check_file("modelopt_mse", {.block_scale = BlockScale::mse}) == 26);
}

}  // namespace quantize_golden_test
