#include <doctest/doctest.h>

#include "lib/source/config/config_terms.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/contradictions.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/configured_scheme.h"
#include "lib/source/linears/linears.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/stored_int4.h"

namespace contradictions_test {

using namespace twofour;

namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kNvfp4, WeightFormat::kMxfp4, WeightFormat::kFp8,
                                     WeightFormat::kMxfp8, WeightFormat::kInt4};

std::string contradiction(const std::string& config, WeightFormat format) {
  SourceGroups groups(parse_json("config", config));
  return contradiction_of(groups.configured(), "model.layers.0.mlp.down_proj", format);
}

std::string group(const std::string& weights, const std::string& packing = "null") {
  return R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "format": )" +
         packing + R"(, "weights": {)" + weights + "}}}}";
}

std::string settings_error(const Checkpoint& c) {
  return message_of([&] {
    WeightReader reader(c);
    for (const Linear& m : find_weight_modules(c)) reader.check_settings(m);
  });
}

}  // namespace

TEST_CASE("settings of another number contradict codes of every format") {
  for (const WeightFormat format : kFormats) {
    CAPTURE(format->name);
    const bool integers = format->integers;
    const std::string own = integers        ? R"("num_bits": 4, "type": "int")"
                            : format->pairs ? R"("num_bits": 4, "type": "float")"
                                            : R"("num_bits": 8, "type": "float")";
    CHECK(contradiction(group(own), format).empty());
    CHECK(contradiction(R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})", format).empty());
    CHECK(contradiction("null", format).empty());
    for (const char* packing : {"nvfp4-pack-quantized", "mxfp4-pack-quantized", "pack-quantized"}) {
      const std::string found = contradiction(group(own, json_quote(packing)), format);
      const std::string its = integers ? "pack-quantized" : format->packed_as;
      CHECK(found.empty() == (its == packing));
    }
    CHECK(contradiction(group(own, R"("mixed-precision")"), format).empty());
    if (integers) continue;
    CHECK(contains(contradiction(group(format->pairs ? R"("num_bits": 4, "type": "int")"
                                                     : R"("num_bits": 8, "type": "int")"),
                                 format),
                   "weights.type: expected float"));
    CHECK(!contradiction(group(own + R"(, "symmetric": false)"), format).empty());
    CHECK(!contradiction(group(own + R"(, "actorder": "group")"), format).empty());
    CHECK(contradiction(group(own + R"(, "symmetric": true, "actorder": null)"), format).empty());
    CHECK(contradiction(group(R"("num_bits": 6, "type": "float")"), format).empty() == format->tiles);
    for (const char* algorithm : {"MXINT4", "NVINT4", "NF4", "IF4", "W4A16_AWQ", "INT8"}) {
      CAPTURE(algorithm);
      const std::string config =
          R"({"quant_method": "modelopt", "quant_algo": ")" + std::string(algorithm) + R"("})";
      CHECK(contains(contradiction(config, format), "quant_algo: expected an algorithm of"));
    }
  }
}

TEST_CASE("Quark's and AutoRound's types of another number contradict codes") {
  const auto quark = [](const std::string& dtype) {
    return R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": ")" + dtype +
           R"("}}, "layer_quant_config": {"*.up_proj": {"weight": {"dtype": "int8"}}}})";
  };
  for (const char* other : {"int4", "uint4", "fp4_e1m2", "bfp16", "fp6_e3m2"})
    CHECK(contains(contradiction(quark(other), WeightFormat::kMxfp4), "weight.dtype: expected MXFP4"));
  for (const char* own : {"fp4", "fp4_e2m1", "mxfp4"})
    CHECK(contradiction(quark(own), WeightFormat::kMxfp4).empty());
  CHECK(contradiction(quark("fp8_e4m3"), WeightFormat::kFp8).empty());
  CHECK(!contradiction(quark("fp8_e5m2"), WeightFormat::kFp8).empty());
  const auto round = [](const std::string& type) {
    return R"({"quant_method": "auto-round", "bits": 4, "data_type": ")" + type + R"("})";
  };
  CHECK(!contradiction(round("mx_int"), WeightFormat::kMxfp4).empty());
  CHECK(contradiction(round("mx_fp"), WeightFormat::kMxfp4).empty());
  CHECK(contradiction(round("int"), WeightFormat::kInt4).empty());
}

TEST_CASE("the algorithms that readers know are those that the dialects know") {
  for (const char* name :
       {"NVFP4", "W4A16_NVFP4", "NVFP4_AWQ", "NVFP4_SVD", "NVFP4_ARC", "MXFP4", "W4A16_MXFP4", "MXFP8", "FP8",
        "FP8_PB_WO", "FP8_PB_REAL", "FP8_BLOCK_SCALES", "INT8", "W4A16_AWQ"}) {
    CAPTURE(name);
    REQUIRE(find_algorithm(name) != nullptr);
    const WeightFormat format = find_algorithm(name)->scheme.format;
    CHECK(format_of_algorithm(name).value() == format);
  }
}

TEST_CASE("an order of groups that the config rules out is refused, a trivial one is not") {
  StoredInt4 w(16, 72, 32, DType::kF16, 1);
  w.make_symmetric();
  const auto error = [&](const std::string& config) {
    Tensors tensors;
    w.add_gptq(tensors, "m", 1);
    w.add_index(tensors, "m.g_idx");
    const Scratch scratch;
    write_checkpoint(scratch / "c", {tensors}, config);
    return settings_error(Checkpoint::open(scratch / "c"));
  };
  const std::string out = int4_config("gptq", 32, R"(, "desc_act": false)"),
                    in = int4_config("gptq", 32, R"(, "desc_act": true)");
  CHECK(error(out).empty());
  w.shuffle(3);
  CHECK(contains(error(out), "in the order of their groups of 32"));
  CHECK(error(in).empty());
}

TEST_CASE("zero points that no config explains are refused unless they are 8") {
  StoredInt4 w(16, 64, 32, DType::kF16, 1);
  const auto error = [&](ZeroPoints how) {
    Tensors tensors;
    w.add_gptq(tensors, "m", 1);
    const Scratch scratch;
    write_checkpoint(scratch / "c", {tensors}, "{}");
    return settings_error(Checkpoint::open(scratch / "c", Io::kCached, how));
  };
  w.raise_zeros();
  CHECK(contains(error(ZeroPoints::kAsStated), "no config states how others are stored"));
  CHECK(error(ZeroPoints::kV2).empty());
  w.make_symmetric();
  CHECK(error(ZeroPoints::kAsStated).empty());
}

TEST_CASE("entries and transforms deeper than readers look are found by their path") {
  for (const char* holder : {"thinker_config", "audio_config", "model_config", "decoder"}) {
    for (const char* key : {"quantization_config", "compression_config", "transform_config"}) {
      const std::string config = R"({")" + std::string(holder) + R"(": {"text_config": {")" + key +
                                 R"(": {"quant_method": "gptq"}}}})";
      const auto found = find_config_terms(parse_json("config", config), Json(), {});
      REQUIRE(found.size() == 1);
      CHECK(found[0].key == std::string(holder) + ".text_config." + key);
    }
  }
  CHECK(find_config_terms(parse_json("c", R"({"vision_config": {"quantization_config": {}}})"), Json(), {})
            .empty());
}

TEST_CASE("rotations in files beside config.json are found") {
  const Scratch scratch;
  for (const char* name : kSideConfigs) {
    write_text(scratch / name, R"({"bits": 4, "rotation": "hadamard"})");
    const auto found = find_side_terms(scratch.path);
    REQUIRE(found.size() == 1);
    CHECK(found[0].file == name);
    std::filesystem::remove(scratch / name);
  }
}

}  // namespace contradictions_test
