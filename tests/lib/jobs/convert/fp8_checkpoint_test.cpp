#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

namespace fp8_checkpoint_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

OneRule to_fp8(const std::string& dialect, const std::string& granularity) {
  OneRule recipe;
  recipe.to = "fp8";
  recipe.dialect = dialect;
  recipe.granularity = granularity;
  recipe.odd_blocks = granularity == "tensor" || granularity == "row" ? "" : "write";
  return recipe;
}

const std::string kName = "model.layers.0.mlp.down_proj";

/// Odd shapes: partial blocks at both edges.
Tensors odd_model() {
  Tensors t;
  FloatMatrix m = random_floats(131, 277, 1);
  std::fill(m.values.begin() + 277 * 3, m.values.begin() + 277 * 4, 0.0f);  // a row of zeros
  add_floats(t, kName, m);
  add_floats(t, "lm_head", random_floats(8, 277, 2));
  return t;
}

void check_valid(const fs::path& source, const fs::path& artifact) {
  const ValidateReport report = validate_from(source, artifact);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
  CHECK(report.source_tensors == read_tensors(source).size());
}

}  // namespace

TEST_CASE("weights in E4M3 with a scale a tensor, a row or a block, in each dialect's tensors") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {odd_model()});
  const ReadTensors before = read_tensors(scratch / "src");
  const auto bits = before.at(kName + ".weight").as<uint16_t>();
  using Shape = std::vector<int64_t>;
  struct Case {
    std::string dialect, granularity;
    Shape scales;
    int64_t rows, cols;  // that share a scale
  };
  for (const Case& c : std::vector<Case>{{"compressed-tensors", "tensor", {1}, 131, 277},
                                         {"compressed-tensors", "row", {131, 1}, 1, 277},
                                         {"compressed-tensors", "block", {2, 3}, 128, 128},
                                         {"modelopt", "tensor", {}, 131, 277},
                                         {"modelopt", "row", {131}, 1, 277},
                                         {"modelopt", "block", {2, 1, 3, 1}, 128, 128},
                                         {"deepseek", "block", {2, 3}, 128, 128}}) {
    CAPTURE(c.dialect);
    CAPTURE(c.granularity);
    const fs::path to = scratch / (c.dialect + c.granularity);
    MemoryLimits limits;
    limits.piece = 24 * 277 * 9;
    convert(scratch / "src", to, to_fp8(c.dialect, c.granularity), {}, limits);
    const ReadTensors out = read_tensors(to);
    const ReadTensor& weight = out.at(kName + ".weight");
    const ReadTensor& scale =
        out.at(kName + (c.dialect == "deepseek" ? ".weight_scale_inv" : ".weight_scale"));
    CHECK(weight.dtype == DType::kF8E4M3);
    CHECK((weight.shape == Shape{131, 277}));
    CHECK(scale.dtype == DType::kF32);
    CHECK((scale.shape == c.scales));
    CHECK((out.at("lm_head.weight") == before.at("lm_head.weight")));
    CHECK(out.size() == (c.dialect == "modelopt" && c.granularity == "tensor" ? 4 : 3));
    const auto scales = scale.as<float>();
    const int64_t across = (277 + c.cols - 1) / c.cols;
    for (int64_t b = 0; b < static_cast<int64_t>(scales.size()); ++b) {
      float largest = 0;
      for (int64_t n = b / across * c.rows; n < std::min<int64_t>(131, (b / across + 1) * c.rows); ++n) {
        for (int64_t k = b % across * c.cols; k < std::min<int64_t>(277, (b % across + 1) * c.cols); ++k) {
          largest = std::max(largest, std::fabs(bf16_to_float(bits[static_cast<size_t>(n * 277 + k)])));
        }
      }
      const float expected = largest == 0 ? 1 : largest / 448;
      REQUIRE(bits_of(scales[static_cast<size_t>(b)]) == bits_of(expected));
    }
    for (int64_t i = 0; i < 131 * 277; ++i) {
      const float s = scales[static_cast<size_t>(i / 277 / c.rows * across + i % 277 / c.cols)];
      const float x = bf16_to_float(bits[static_cast<size_t>(i)]) / s;
      const uint8_t byte = weight.bytes[static_cast<size_t>(i)];
      // The nearest of all, by looking at its neighbours.
      const auto miss = [&](unsigned code) { return std::fabs(kSlowE4m3.value(code) - double{x}); };
      REQUIRE((byte & 0x7F) != 0x7F);
      if ((byte & 0x7F) < 0x7E) REQUIRE(miss(byte) <= miss(byte + 1u));
      if ((byte & 0x7F) > 0) REQUIRE(miss(byte) <= miss(byte - 1u));
      REQUIRE((std::signbit(x) == ((byte & 0x80) != 0)));
    }
    check_valid(scratch / "src", to);
  }
}

TEST_CASE("configurations say what engines look for") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {odd_model()});
  const auto config_of = [&](const std::string& dialect, const std::string& granularity) {
    const fs::path to = scratch / (dialect + granularity);
    convert(scratch / "src", to, to_fp8(dialect, granularity));
    return parse_json("config", read_text(to / "config.json"))["quantization_config"];
  };
  const Json row = config_of("compressed-tensors", "row"), block = config_of("compressed-tensors", "block");
  CHECK(row["format"] == "float-quantized");
  CHECK(row["config_groups"]["group_0"]["weights"]["strategy"] == "channel");
  CHECK(row["config_groups"]["group_0"]["input_activations"]["strategy"] == "token");
  CHECK(row["config_groups"]["group_0"]["input_activations"]["dynamic"] == true);
  CHECK(row["ignore"] == Json::array({"lm_head"}));
  CHECK(block["config_groups"]["group_0"]["weights"]["block_structure"] == Json::array({128, 128}));
  CHECK(block["config_groups"]["group_0"]["input_activations"]["group_size"] == 128);
  for (const auto& [granularity, algo] :
       {std::pair{"tensor", "FP8"}, {"row", "FP8_PER_CHANNEL_PER_TOKEN"}, {"block", "FP8_PB_WO"}}) {
    CHECK(config_of("modelopt", granularity)["quant_algo"] == algo);
    const Json hf = parse_json(
        "hf", read_text(scratch / (std::string("modelopt") + granularity) / "hf_quant_config.json"));
    CHECK(hf["quantization"]["quant_algo"] == algo);
    CHECK(hf["quantization"]["exclude_modules"] == Json::array({"lm_head"}));
  }
  const Json deepseek = config_of("deepseek", "");
  CHECK(deepseek["quant_method"] == "fp8");
  CHECK(deepseek["weight_block_size"] == Json::array({128, 128}));
  CHECK(deepseek["modules_to_not_convert"] == Json::array({"lm_head"}));
  CHECK(deepseek["activation_scheme"] == "dynamic");
  CHECK_THROWS_WITH_AS(convert(scratch / "src", scratch / "none", to_fp8("deepseek", "row")),
                       "--granularity: expected block, the only choice of the deepseek dialect, found row",
                       Error);
}

TEST_CASE("NVFP4 becomes FP8 as floats of its values do where asked, its input scales those of FP8") {
  const Scratch scratch;
  Tensors tensors;
  add_modelopt(tensors, kName, random_matrix(48, 160, 1, 0.3f));
  tensors.push_back({kName + ".input_scale", DType::kF32, {}, float_bytes_as(DType::kF32, {0.25f})});
  add_floats(tensors, "model.layers.0.self_attn.q_proj", random_floats(16, 48, 1));
  write_checkpoint(scratch / "src", {tensors});
  const Checkpoint c = Checkpoint::open(scratch / "src");
  WeightReader reader(c);
  FloatMatrix exact{48, 160, std::vector<float>(48 * 160)};
  reader.read_rows(find_weight_modules(c)[0], 0, 0, 48, exact.values);
  Tensors plain;
  add_floats(plain, kName, exact, DType::kF32);
  write_checkpoint(scratch / "plain", {plain});
  OneRule recipe = to_fp8("modelopt", "tensor");
  recipe.exact = "off";
  const ConvertResult result = convert(scratch / "src", scratch / "out", recipe);
  const ConvertResult without = convert(scratch / "plain", scratch / "plain-out", recipe);
  const ReadTensors out = read_tensors(scratch / "out"), expected = read_tensors(scratch / "plain-out");
  CHECK((out.at(kName + ".weight") == expected.at(kName + ".weight")));
  CHECK((out.at(kName + ".weight_scale") == expected.at(kName + ".weight_scale")));
  CHECK(out.at(kName + ".input_scale").as<float>()[0] == 1.5f);
  CHECK(expected.at(kName + ".input_scale").as<float>()[0] == 1);
  CHECK(findings_of(result.findings, "no-input-scale").empty());
  CHECK(findings_of(without.findings, "no-input-scale").size() == 1);
  // Floats stay as they are beside weights that were quantized.
  CHECK(out.at("model.layers.0.self_attn.q_proj.weight").dtype == DType::kBF16);
  check_valid(scratch / "src", scratch / "out");
}

TEST_CASE("stacks become experts of their own, one flipped bit is found") {
  const Scratch scratch;
  const std::string block = "model.layers.0.mlp.experts";
  std::vector<FloatMatrix> halves, downs;
  Tensors tensors, single;
  for (unsigned e = 0; e < 2; ++e) {
    const FloatMatrix gate = random_floats(24, 48, 3 * e), up = random_floats(24, 48, 3 * e + 1, 0.1f);
    downs.push_back(random_floats(48, 24, 3 * e + 2));
    halves.push_back(join_rows(gate, up, false));
    add_floats(single, fmt::format("{}.{}.gate_proj", block, e), gate);
    add_floats(single, fmt::format("{}.{}.up_proj", block, e), up);
    add_floats(single, fmt::format("{}.{}.down_proj", block, e), downs[e]);
  }
  add_float_stack(tensors, block + ".gate_up_proj", halves, false);
  add_float_stack(tensors, block + ".down_proj", downs, false);
  write_checkpoint(scratch / "src", {tensors});
  write_checkpoint(scratch / "single", {single});
  const OneRule recipe = to_fp8("compressed-tensors", "row");
  convert(scratch / "src", scratch / "out", recipe);
  convert(scratch / "single", scratch / "expected", recipe);
  CHECK((read_tensors(scratch / "out") == read_tensors(scratch / "expected")));
  check_valid(scratch / "src", scratch / "out");
  const Checkpoint c = Checkpoint::open(scratch / "out");
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const uint64_t at = c.shard_of(i).data_begin + c.tensors()[i].begin;
    flip_bit(c.shard_of(i).file.path(), at, 0);
    const auto found = findings_of(validate_from(scratch / "src", scratch / "out").differences, "bytes");
    REQUIRE(found.size() == 1);
    CHECK(found[0].where == c.tensors()[i].name);
    flip_bit(c.shard_of(i).file.path(), at, 0);
  }
}

}  // namespace fp8_checkpoint_test
