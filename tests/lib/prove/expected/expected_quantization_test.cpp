#include "lib/prove/expected/expected_quantization.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "formats/half.h"
#include "kernels/numbers/casts.h"
#include "kernels/numbers/quantize.h"
#include "kernels/pack/prune.h"
#include "tests/support/conversion.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/golden_quantize.h"

using namespace twofour;

// The derivation that validate compares artifacts with, held against what the producers made and against the
// encoder, which shares nothing with it.

namespace {

using Choice = ExpectedRule::Choice;

int check_golden(const std::string& name, ExpectedRule rule) {
  const GoldenQuantize golden(name);
  int count = 0;
  for (const std::string& key : golden.cases()) {
    CAPTURE(name);
    CAPTURE(key);
    const std::vector<float> weights = golden.weights(key + "weight");
    rule.weight_type = golden.type(key + "weight");
    const float stored = golden.scalar(key + "global_scale");
    const bool is_given = !golden.contains(key + "global_amax");
    const ExpectedGlobal global =
        is_given ? kept_global(rule, stored, rule.compressed_tensors, rule.compressed_tensors)
                 : producer_global(rule, golden.scalar(key + "global_amax"));
    CHECK(std::bit_cast<uint32_t>(global.scale) == std::bit_cast<uint32_t>(stored));
    std::vector<uint8_t> codes(weights.size() / 2), scales(weights.size() / 16);
    ExpectedNvfp4(rule, global).quantize(weights, codes, scales);
    CHECK(differences(without_nan_sign(scales), without_nan_sign(golden.bytes(key + "block_scale"))) == "");
    CHECK(differences(codes, golden.bytes(key + "codes")) == "");
    ++count;
  }
  return count;
}

float in_type(DType type, float x) {
  if (type == DType::kBF16) return bf16_to_float(bf16_from_float(x));
  if (type != DType::kF16) return x;
  return fp16_to_float(fp16_from_float(std::clamp(x, -65504.0f, 65504.0f)));
}

/// Weights around `size`, with blocks of zeros, -0, blocks far smaller than the others, weights on E2M1's
/// decision points and largest magnitudes midway between two block scales.
std::vector<float> hard_weights(size_t blocks, float size, DType type, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.3f);
  const float points[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f};
  std::vector<float> weights;
  for (size_t b = 0; b < blocks; ++b) {
    const auto kind = random() % 7;
    const float fade = std::ldexp(1.0f, -static_cast<int>(random() % 24));
    for (int i = 0; i < 16; ++i) {
      const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
      const float x = kind == 0   ? 0.0f * sign
                      : kind == 1 ? points[random() % 8] / 6 * sign
                      : kind == 2 ? points[random() % 8] / 8 * sign * fade
                      : kind == 3 ? std::clamp(normal(random), -1.0f, 1.0f) * fade
                      : kind == 4 ? (i == 5 ? 31.0f / 32 : 0.1f * normal(random)) * sign
                                  : std::clamp(normal(random), -1.0f, 1.0f);
      weights.push_back(in_type(type, x * size));
    }
  }
  weights[random() % weights.size()] = in_type(type, -size);
  weights[random() % weights.size()] = -0.0f;
  return weights;
}

QuantizeRule encoder_rule(const ExpectedRule& rule) {
  QuantizeRule own;
  own.arithmetic = rule.compressed_tensors ? Arithmetic::compressed_tensors : Arithmetic::modelopt;
  own.block_scale = rule.choice == Choice::kMse           ? BlockScale::mse
                    : rule.choice == Choice::kFourOverSix ? BlockScale::four_over_six
                                                          : BlockScale::max;
  own.zero_block = rule.keeps_zero ? ZeroBlock::zero : ZeroBlock::producer;
  own.weight_type = rule.weight_type;
  return own;
}

void check_against_encoder(const ExpectedRule& rule, const ExpectedGlobal& global,
                           const GlobalScale& encoder_global, const std::vector<float>& weights) {
  REQUIRE(std::bit_cast<uint32_t>(global.scale) == std::bit_cast<uint32_t>(encoder_global.stored));
  std::vector<uint8_t> codes(weights.size() / 2), scales(weights.size() / 16);
  ExpectedNvfp4(rule, global).quantize(weights, codes, scales);
  const QuantizeRule own = encoder_rule(rule);
  for (const Isa isa : {Isa::portable, best_isa()}) {
    std::vector<uint8_t> found_codes(codes.size()), found_scales(scales.size());
    quantize_nvfp4(own, encoder_global, weights, found_codes.data(), found_scales.data(), isa);
    REQUIRE(differences(found_scales, scales) == "");
    REQUIRE(differences(found_codes, codes) == "");
    std::vector<float> values(weights.size()), found(weights.size());
    expected_values(codes, scales, global.scale, rule.compressed_tensors, values);
    dequantize_nvfp4(own.arithmetic, global.scale, codes.data(), scales.data(), found, isa);
    for (size_t i = 0; i < values.size(); ++i) {
      REQUIRE(std::bit_cast<uint32_t>(values[i]) == std::bit_cast<uint32_t>(found[i]));
    }
    const RowError error = row_error(weights, values);
    const QuantizeError sums = quantize_error_of(weights, found, isa);
    REQUIRE(error.energy == sums.weights_squared);
    // Values beyond float32 are infinite, and so may the sums be no number.
    REQUIRE(
        (error.error == sums.errors_squared || (std::isnan(error.error) && std::isnan(sums.errors_squared))));
  }
}

template <class F>
void for_each_rule(F&& f) {
  for (const bool compressed_tensors : {false, true}) {
    for (const Choice choice : {Choice::kMax, Choice::kMse, Choice::kFourOverSix}) {
      for (const bool keeps_zero : {false, true}) {
        for (const DType type : {DType::kBF16, DType::kF16, DType::kF32}) {
          f(ExpectedRule{compressed_tensors, choice, keeps_zero, type});
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("the derivation gives the producers' own bytes") {
  ExpectedRule modelopt, compressed_tensors;
  compressed_tensors.compressed_tensors = true;
  CHECK(check_golden("modelopt_max", modelopt) == 42);
  CHECK(check_golden("modelopt_max_given", modelopt) == 3);
  CHECK(check_golden("compressed_tensors_max", compressed_tensors) == 42);
  CHECK(check_golden("compressed_tensors_max_given", compressed_tensors) == 3);
  modelopt.choice = Choice::kFourOverSix;
  CHECK(check_golden("modelopt_four_over_six", modelopt) == 28);
  modelopt.choice = Choice::kMse;
  CHECK(check_golden("modelopt_mse", modelopt) == 26);
}

TEST_CASE("the derivation reads a rule's words by itself and refuses those that it does not know") {
  const ExpectedRule plain = expected_rule("modelopt", "max", "producer");
  CHECK(!plain.compressed_tensors);
  CHECK((plain.choice == Choice::kMax));
  CHECK(!plain.keeps_zero);
  const ExpectedRule other = expected_rule("compressed-tensors", "four-over-six", "zero");
  CHECK(other.compressed_tensors);
  CHECK((other.choice == Choice::kFourOverSix));
  CHECK(other.keeps_zero);
  CHECK((expected_rule("modelopt", "mse", "zero").choice == Choice::kMse));
  CHECK(expects_2_4("2:4"));
  CHECK(!expects_2_4(""));
  CHECK_THROWS_AS(expected_rule("", "max", "producer"), Error);
  CHECK_THROWS_AS(expected_rule("modelopt", "most", "producer"), Error);
  CHECK_THROWS_AS(expected_rule("modelopt", "max", "none"), Error);
  CHECK_THROWS_AS(expects_2_4("4:8-paired"), Error);
}

TEST_CASE("derivation and encoder give equal bytes under every rule, whatever the weights' size") {
  unsigned seed = 1;
  for_each_rule([&](const ExpectedRule& rule) {
    CAPTURE(rule.compressed_tensors);
    CAPTURE(int(rule.choice));
    CAPTURE(rule.keeps_zero);
    CAPTURE(dtype_name(rule.weight_type));
    // Down to global scales that are subnormal or overflow the weights' type, up to the largest floats.
    for (const float size :
         {1.0f, 0.0173f, 448.0f, 1e-4f, 0.04f, 3e4f, 1e-30f, 2e-37f, 0x1p-120f, 1e30f, 3e38f}) {
      if (rule.weight_type == DType::kF16 && (size > 65504 || size < 1e-7f)) continue;
      CAPTURE(size);
      const std::vector<float> weights = hard_weights(23, size, rule.weight_type, seed++);
      float amax = 0;
      for (const float x : weights) amax = std::max(amax, std::fabs(x));
      check_against_encoder(rule, producer_global(rule, amax), global_scale_of(encoder_rule(rule), amax),
                            weights);
      // One that is given, of matrices with larger and with smaller weights.
      for (const float factor : {0.01f, 0.7f, 1.0f, 3.0f, 1e4f}) {
        CAPTURE(factor);
        const float stored = producer_global(rule, amax).scale * factor;
        if (!std::isfinite(stored) || stored < 0x1p-120f || stored > 0x1p120f) continue;
        ExpectedGlobal kept = kept_global(rule, stored, rule.compressed_tensors, false);
        kept.keeps_negative = false;
        check_against_encoder(rule, kept, global_scale_from(encoder_rule(rule), stored), weights);
      }
    }
  });
}

TEST_CASE("global scales pass between dialects by one reciprocal, all zeros have 1, a kept one keeps -0") {
  for_each_rule([&](const ExpectedRule& rule) {
    const bool own = rule.compressed_tensors;
    for (const float amax : {0.3f, 7.1f, 1234.5f}) {
      const ExpectedGlobal producer = producer_global(rule, amax);
      CHECK(expected_global(rule, amax, own).written == producer.scale);
      CHECK(expected_global(rule, amax, !own).written == 1.0f / producer.scale);
      CHECK(kept_global(rule, amax, own, own).scale == amax);
      CHECK(kept_global(rule, amax, !own, !own).scale == 1.0f / amax);
      CHECK(kept_global(rule, amax, !own, !own).written == amax);
      CHECK(kept_global(rule, amax, own, !own).written == 1.0f / amax);
    }
    const std::vector<float> zeros(16, -0.0f);
    std::vector<uint8_t> codes(8, 0xAA), scales(1, 0xAA);
    CHECK(expected_global(rule, 0, own).written == 1);
    ExpectedNvfp4(rule, expected_global(rule, 0, own)).quantize(zeros, codes, scales);
    CHECK((codes == std::vector<uint8_t>(8, 0)));
    CHECK(scales[0] == 0);
    ExpectedNvfp4(rule, kept_global(rule, 2, own, own)).quantize(zeros, codes, scales);
    CHECK((codes == std::vector<uint8_t>(8, 0x88)));
  });
}

TEST_CASE("2:4, E4M3 and the cast of MXFP4 agree with the kernels") {
  for (unsigned seed = 1; seed < 40; ++seed) {
    std::vector<float> weights = hard_weights(7, 1, DType::kBF16, seed);
    std::vector<float> pruned = weights, found = weights;
    expect_2_4(pruned);
    prune_2_4(found);
    for (size_t i = 0; i < found.size(); ++i) {
      REQUIRE(std::bit_cast<uint32_t>(pruned[i]) == std::bit_cast<uint32_t>(found[i]));
    }
    std::mt19937 random(seed);
    std::vector<uint8_t> codes(8 * 16), scales(8);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
    std::vector<uint8_t> kept = codes, other(codes.size());
    const std::vector<uint8_t> ones(16, 0x38);
    expect_2_4(kept);
    prune_codes_reference(PrunePattern::k2of4, {codes.data(), ones.data(), 16, 1}, other.data());
    REQUIRE(differences(other, kept) == "");

    const auto base = random() % 225;
    for (uint8_t& s : scales) s = static_cast<uint8_t>(base + random() % 30);
    if (seed % 3 == 0) std::fill_n(codes.begin(), 16, uint8_t{0x80});
    CastRange range;
    Mxfp4Range encoders;
    range.add(codes, scales);
    REQUIRE(encoders.add(codes, scales) == -1);
    REQUIRE(range.is_exact() == encoders.is_exact());
    REQUIRE(range.exponent() == encoders.exponent());
    std::vector<uint8_t> twice(16);
    cast_mxfp4_scales(scales, encoders.exponent(), twice.data());
    for (size_t i = 0; i < 16; ++i) REQUIRE(twice[i] == expected_cast_scale(scales[i / 2], range.exponent()));
    std::vector<uint8_t> rounded = codes;
    const int64_t inexact = round_small_mxfp4_blocks(scales, encoders.exponent(), rounded.data());
    int64_t expected_inexact = 0;
    for (size_t b = 0; b < scales.size(); ++b) {
      bool changes = false;
      for (size_t i = 32 * b; i < 32 * b + 32; ++i) {
        const unsigned code = codes[i / 2] >> i % 2 * 4 & 15u, now = rounded[i / 2] >> i % 2 * 4 & 15u;
        REQUIRE(now == expected_cast_code(code, scales[b], range.exponent()));
        changes =
            changes || std::ldexp(e2m1_to_float(code), scales[b] - 127) !=
                           std::ldexp(e2m1_to_float(now) * e4m3_to_float(twice[2 * b]), range.exponent());
      }
      expected_inexact += changes;
    }
    REQUIRE(inexact == expected_inexact);
  }
  CHECK(CastRange{}.exponent() == 0);
}

TEST_CASE("what quantize writes is proven under every recipe and weight type, its figures to the last bit") {
  const Scratch scratch;
  for (const DType type : {DType::kBF16, DType::kF16, DType::kF32}) {
    Tensors tensors;
    add_floats(tensors, "model.layers.0.mlp.gate_proj", {5, 48, hard_weights(15, 0.7f, type, 3)}, type);
    add_floats(tensors, "model.layers.0.mlp.up_proj", {5, 48, hard_weights(15, 0.02f, type, 4)}, type);
    add_floats(tensors, "model.layers.0.mlp.down_proj", {3, 80, hard_weights(15, 0.03f, type, 5)}, type);
    add_floats(tensors, "model.layers.0.self_attn.o_proj", {3, 16, std::vector<float>(48, 0.0f)}, type);
    const auto source = scratch / fmt::format("src-{}", dtype_name(type));
    write_checkpoint(source, {tensors});
    for (const char* dialect : {"modelopt", "compressed-tensors"}) {
      for (const char* arithmetic : {"modelopt", "compressed-tensors"}) {
        for (const char* block_scale : {"max", "mse", "four-over-six"}) {
          for (const char* zero_block : {"producer", "zero"}) {
            for (const char* pattern : {"", "2:4"}) {
              CAPTURE(fmt::format("{} {} {} {} {} '{}'", dtype_name(type), dialect, arithmetic, block_scale,
                                  zero_block, pattern));
              OneRule rule;
              rule.to = "quantize";
              rule.dialect = dialect;
              rule.arithmetic = arithmetic;
              rule.block_scale = block_scale;
              rule.zero_block = zero_block;
              rule.pattern = pattern;
              std::filesystem::remove_all(scratch / "out");
              convert(source, scratch / "out", rule);
              const ValidateReport report = validate_from(source, scratch / "out", 0);
              REQUIRE_MESSAGE(report.differences.empty(), text_of(report.differences));
            }
          }
        }
      }
    }
  }
}
