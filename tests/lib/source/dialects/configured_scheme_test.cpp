#include "lib/source/dialects/configured_scheme.h"

#include <doctest/doctest.h>

#include <string>

namespace configured_scheme_test {

using namespace twofour;

TEST_CASE("an algorithm of ModelOpt is one scheme, whoever asks") {
  // Source: NVIDIA/Model-Optimizer, modelopt/torch/export/quant_utils.py: what is beside NVFP4's tensors, and
  // the range of its global scale, makes no other format.
  const std::pair<const char*, const char*> kAll[] = {
      {"NVFP4", "NVFP4"},
      {"W4A16_NVFP4", "NVFP4 without input scales"},
      {"NVFP4_AWQ", "NVFP4"},
      {"NVFP4_SVD", "NVFP4"},
      {"NVFP4_SVDQUANT", "NVFP4"},
      {"W4A8_NVFP4_FP8", "NVFP4"},
      {"W4A8_MXFP4_FP8", "MXFP4"},
      {"MXFP4", "MXFP4"},
      {"MXFP8", "MXFP8"},
      {"FP8", "FP8 with a scale a tensor"},
      {"FP8_PER_CHANNEL_PER_TOKEN", "FP8 with a scale a row"},
      {"FP8_PB_WO", "FP8 by blocks of 128 x 128"},
      {"fp8_pb_real", "FP8 by blocks of 128 x 128"},
      {"FP8_BLOCK_SCALES", "FP8 by blocks of 128 x 128"},
      {"W4A16_AWQ", "a format that is not known"},
      {"W8A8_SQ_PER_CHANNEL", "a format that is not known"},
      {"MADE_UP", "a format that is not known"},
  };
  for (const auto& [algorithm, name] : kAll) {
    CAPTURE(algorithm);
    CHECK(scheme_label(configured_scheme({{"quant_algo", algorithm}})) == name);
  }
  CHECK(scheme_label(configured_scheme({{"quant_algo", "FP8_PB_WO"}, {"group_size", 64}})) ==
        "FP8 by blocks of 64 x 64");
}

TEST_CASE("the row of an algorithm says what lint holds modules against") {
  REQUIRE(find_algorithm("NVFP4_SVD") != nullptr);
  CHECK(find_algorithm("NVFP4_SVD")->scheme == schemes::kNvfp4);
  CHECK(find_algorithm("NVFP4_SVD")->scales_inputs_first);
  CHECK(find_algorithm("W4A8_NVFP4_FP8")->inputs == InputPromise::kStatic);
  CHECK(find_algorithm("W4A16_NVFP4")->inputs == InputPromise::kFloats);
  CHECK(find_algorithm("INT8")->scheme == schemes::kOther);
  CHECK(find_algorithm("MADE_UP") == nullptr);
}

TEST_CASE("a stored scheme is said without what no configuration tells apart") {
  const Scheme blocks{WeightFormat::kFp8, Granularity::kBlock, 128, 128, DType::kBF16, ".weight_scale_inv"};
  CHECK(as_configured(blocks) == schemes::fp8_blocks(128, 128));
  const Scheme mxfp8{WeightFormat::kFp8, Granularity::kBlock, 1, 32, DType::kU8, ".weight_scale"};
  CHECK(as_configured(mxfp8) == schemes::kMxfp8);
  CHECK(as_configured({.format = WeightFormat::kMxfp4, .rows = 1, .cols = 32}) == schemes::kMxfp4);
  CHECK(scheme_label(schemes::fp8_blocks(0, 0)) == "FP8 by blocks");
  CHECK(scheme_label(schemes::fp8_blocks(1, 128), false) == "FP8 by blocks");
}

}  // namespace configured_scheme_test
