#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/linears/linears.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/stored_weights.h"

namespace twofour {
namespace {

const std::string kLayer = "model.layers.0.", kExperts = kLayer + "mlp.experts";

void add_scalar(Tensors& to, const std::string& name, float value, const std::vector<int64_t>& shape = {}) {
  std::vector<uint8_t> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  to.push_back({name, DType::kF32, shape, bytes});
}

/// FP8 with `scales` under a name.
void add_fp8(Tensors& to, const std::string& module, const char* scale, const StoredTensor& scales, int64_t n,
             int64_t k, unsigned seed) {
  fp8_weights({n, k}, seed).add_to(to, module + ".weight");
  scales.add_to(to, module + scale);
}

StoredTensor ones_and_more(DType type, std::vector<int64_t> shape, unsigned seed) {
  StoredTensor scales = scales_for_bf16(type, std::move(shape), seed);
  if (type == DType::kF32) std::memcpy(scales.bytes.data(), "\0\0\x80\x3f", 4);
  return scales;
}

/// A layer of ModelOpt's: experts in NVFP4, attention in FP8 of each granularity and in MXFP8, a dense linear
/// in MXFP4, a router and a head in BF16.
Tensors mixed_tensors() {
  Tensors t;
  add_experts(t, kExperts, random_experts(2, 32, 64));
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"}) {
    const std::string name = kLayer + "self_attn." + leaf;
    add_fp8(t, name, ".weight_scale", ones_and_more(DType::kF32, {}, 3), 48, 64, 4);
    add_scalar(t, name + ".input_scale", 0.5f);
  }
  add_fp8(t, kLayer + "self_attn.o_proj", ".weight_scale", random_scales(DType::kF32, {40}, 5), 40, 64, 6);
  add_fp8(t, kLayer + "mlp.shared_expert.gate_proj", ".weight_scale_inv",
          random_scales(DType::kF32, {2, 1}, 7), 200, 100, 8);
  add_fp8(t, kLayer + "mlp.shared_expert.up_proj", ".weight_scale_inv", random_scales(DType::kF32, {2, 1}, 9),
          200, 100, 10);
  add_fp8(t, kLayer + "mlp.shared_expert.down_proj", ".weight_scale",
          scales_for_bf16(DType::kU8, {64, 4}, 11), 64, 128, 12);
  StoredTensor(DType::kU8, {48, 32}, 13).add_to(t, kLayer + "linear_attn.out_proj.weight");
  scales_for_bf16(DType::kU8, {48, 2}, 14).add_to(t, kLayer + "linear_attn.out_proj.weight_scale");
  add_bf16(t, kLayer + "mlp.gate.weight", {2, 64});
  add_bf16(t, kLayer + "input_layernorm.weight", {64});
  add_bf16(t, "lm_head.weight", {32, 64}, 2);
  return t;
}

std::string mixed_config() {
  Json layers = Json::object();
  for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) {
    for (const char* e : {"0", "1"})
      layers[kExperts + "." + e + "." + leaf] = {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}};
  }
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"})
    layers[kLayer + "self_attn." + leaf] = {{"quant_algo", "FP8"}};
  return Json{
      {"model_type", "qwen3_moe"},
      {"num_hidden_layers", 1},
      {"num_experts", 2},
      {"quantization_config",
       {{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}}}}
      .dump();
}

Recipe to_nvfp4(const char* dialect) {
  Rule rule;
  rule.to = "nvfp4";
  rule.dialect = dialect;
  return Recipe(rule);
}

void convert_with(const Scratch& scratch, const char* from, const char* to, const Recipe& recipe) {
  const Checkpoint source = Checkpoint::open(scratch / from);
  Progress progress;
  convert(source, make_plan(source, recipe), scratch / to, {}, progress);
  const ValidateReport report = validate_from(scratch / from, scratch / to);
  INFO(text_of(report.differences));
  CHECK(report.differences.empty());
}

/// Every linear of two checkpoints has the same values.
void check_equal_values(const std::filesystem::path& a, const std::filesystem::path& b) {
  const Checkpoint x = Checkpoint::open(a), y = Checkpoint::open(b);
  const auto all = find_weight_modules(x), others = find_weight_modules(y);
  REQUIRE(all.size() == others.size());
  WeightReader xs(x), ys(y);
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(all[i].name);
    REQUIRE(all[i].name == others[i].name);
    REQUIRE(all[i].n == others[i].n);
    std::vector<float> v(static_cast<size_t>(all[i].n * all[i].k)), w(v.size());
    xs.read_rows(all[i], 0, 0, all[i].n, v);
    ys.read_rows(others[i], 0, 0, all[i].n, w);
    CHECK(std::memcmp(v.data(), w.data(), v.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("A mixed checkpoint goes to compressed-tensors and back with every format and value") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {mixed_tensors()}, mixed_config());
  convert_with(scratch, "a", "b", to_nvfp4("compressed-tensors"));
  check_equal_values(scratch / "a", scratch / "b");
  const ReadTensors b = read_tensors(scratch / "b");
  CHECK(b.at(kExperts + ".1.up_proj.weight_packed").dtype == DType::kU8);
  CHECK(b.at(kLayer + "self_attn.q_proj.weight_scale").shape == std::vector<int64_t>{1});
  CHECK(b.at(kLayer + "self_attn.q_proj.input_scale").shape == std::vector<int64_t>{1});
  CHECK(b.at(kLayer + "self_attn.o_proj.weight_scale").shape == std::vector<int64_t>{40, 1});
  CHECK(b.at(kLayer + "mlp.shared_expert.gate_proj.weight_scale").shape == std::vector<int64_t>{2, 1});
  CHECK(b.at(kLayer + "linear_attn.out_proj.weight_packed").shape == std::vector<int64_t>{48, 32});

  convert_with(scratch, "b", "c", to_nvfp4("modelopt"));
  check_equal_values(scratch / "a", scratch / "c");
  const ReadTensors a = read_tensors(scratch / "a"), c = read_tensors(scratch / "c");
  for (const char* same :
       {"self_attn.q_proj.weight_scale", "self_attn.q_proj.input_scale", "self_attn.o_proj.weight_scale",
        "mlp.shared_expert.down_proj.weight_scale", "linear_attn.out_proj.weight"}) {
    CAPTURE(same);
    CHECK(a.at(kLayer + same) == c.at(kLayer + same));
  }
  CHECK(c.at(kLayer + "mlp.shared_expert.gate_proj.weight_scale").shape == std::vector<int64_t>{2, 1, 1, 1});
}

TEST_CASE("The configuration of a mixed output names every module once, and nothing else") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {mixed_tensors()}, mixed_config());
  convert_with(scratch, "a", "b", to_nvfp4("compressed-tensors"));
  convert_with(scratch, "b", "c", to_nvfp4("modelopt"));
  const Json entry = Json::parse(read_tree(scratch / "c").at("config.json")).at("quantization_config");
  const Json file = Json::parse(read_tree(scratch / "c").at("hf_quant_config.json")).at("quantization");
  CHECK(entry.at("quant_algo") == "MIXED_PRECISION");
  CHECK(entry.at("quantized_layers") == file.at("quantized_layers"));
  const Checkpoint c = Checkpoint::open(scratch / "c");
  size_t quantized = 0;
  for (const Linear& m : find_weight_modules(c)) {
    CAPTURE(m.name);
    const bool named = file.at("quantized_layers").contains(m.name);
    CHECK(named == (m.format != WeightFormat::kFloat));
    quantized += named;
  }
  CHECK(file.at("quantized_layers").size() == quantized);
  CHECK(file.at("quantized_layers").at(kLayer + "mlp.shared_expert.down_proj").at("quant_algo") == "MXFP8");
  CHECK(file.at("quantized_layers").at(kLayer + "self_attn.o_proj").at("quant_algo") ==
        "FP8_PER_CHANNEL_PER_TOKEN");

  const Json groups = Json::parse(read_tree(scratch / "b").at("config.json")).at("quantization_config");
  CHECK(groups.at("format") == "mixed-precision");
  const SourceGroups lookup(groups);
  CHECK(lookup.find(kExperts + ".0.gate_proj").at("format") == "nvfp4-pack-quantized");
  CHECK(lookup.find(kLayer + "self_attn.o_proj").at("weights").at("strategy") == "channel");
  CHECK(lookup.find("lm_head").is_null());
  CHECK(lookup.find(kLayer + "mlp.gate").is_null());
}

TEST_CASE("BF16 of all quantized linears leaves no scale and no quantization") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {mixed_tensors()}, mixed_config());
  Rule rule;
  rule.to = "bf16";
  convert_with(scratch, "a", "b", Recipe(rule));
  for (const auto& [name, tensor] : read_tensors(scratch / "b")) {
    CAPTURE(name);
    CHECK(tensor.dtype == DType::kBF16);
    CHECK(name.find("scale") == name.npos);
  }
  CHECK(!Json::parse(read_tree(scratch / "b").at("config.json")).contains("quantization_config"));
  CHECK(!read_tree(scratch / "b").contains("hf_quant_config.json"));
}

TEST_CASE("BF16 of some linears keeps the rest byte for byte") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {mixed_tensors()}, mixed_config());
  Rule rule;
  rule.to = "bf16";
  rule.selection.include = parse_patterns({"*.self_attn.*"});
  convert_with(scratch, "a", "b", Recipe(rule));
  const ReadTensors a = read_tensors(scratch / "a"), b = read_tensors(scratch / "b");
  for (const auto& [name, tensor] : a) {
    CAPTURE(name);
    if (name.find("self_attn") == name.npos) CHECK(b.at(name) == tensor);
  }
  CHECK(b.at(kLayer + "self_attn.q_proj.weight").dtype == DType::kBF16);
  CHECK(!b.contains(kLayer + "self_attn.q_proj.weight_scale"));
  const Json layers = Json::parse(read_tree(scratch / "b").at("hf_quant_config.json"))
                          .at("quantization")
                          .at("quantized_layers");
  CHECK(!layers.contains(kLayer + "self_attn.q_proj"));
  CHECK(layers.at(kLayer + "mlp.shared_expert.up_proj").at("quant_algo") == "FP8_BLOCK_SCALES");
}

TEST_CASE("Quantizing experts alone keeps all else byte for byte") {
  const Scratch scratch;
  Tensors t = mixed_tensors();
  std::erase_if(t, [](const TensorData& one) { return one.name.find("experts.") != one.name.npos; });
  for (const char* leaf : {".0.gate_proj", ".0.up_proj", ".0.down_proj"})
    add_fp8(t, kExperts + leaf, ".weight_scale_inv", random_scales(DType::kF32, {1, 1}, 21), 64, 64, 22);
  Json config = Json::parse(mixed_config());
  config["num_experts"] = 1;
  write_checkpoint(scratch / "a", {t}, config.dump());
  Rule rule;
  rule.to = "quantize";
  rule.selection.include = parse_patterns({"*.experts.*"});
  convert_with(scratch, "a", "b", Recipe(rule));
  const ReadTensors a = read_tensors(scratch / "a"), b = read_tensors(scratch / "b");
  for (const auto& [name, tensor] : a) {
    CAPTURE(name);
    if (name.find(".experts.") == name.npos) CHECK(b.at(name) == tensor);
  }
  CHECK(b.at(kExperts + ".0.down_proj.weight").dtype == DType::kU8);
  CHECK(b.at(kExperts + ".0.down_proj.weight_scale_2").shape.empty());
}

TEST_CASE("What loaders cannot tell apart is refused with the rule") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {mixed_tensors()}, mixed_config());
  const auto refusal = [&](const char* pattern) {
    Rule rule;
    rule.to = "bf16";
    rule.selection.also = parse_patterns({pattern});
    rule.selection.from_default = false;
    const Checkpoint source = Checkpoint::open(scratch / "a");
    return message_of([&] { make_plan(source, Recipe(rule)); });
  };
  CHECK(refusal((kLayer + "self_attn.q_proj").c_str()).find("linears that they fuse") != std::string::npos);
  CHECK(refusal((kExperts + ".1.down_proj").c_str()).find("the experts of a layer") != std::string::npos);
}

TEST_CASE("Several rules: the first that matches decides") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {mixed_tensors()}, mixed_config());
  Rule keep, bf16;
  keep.to = "keep";
  keep.selection.from_default = false;
  keep.selection.roles = {ModuleRole::kAttention};
  bf16.to = "bf16";
  bf16.selection.include = parse_patterns({"*"});
  Recipe recipe;
  recipe.rules = {keep, bf16};
  recipe.dialect = "source";
  convert_with(scratch, "a", "b", recipe);
  const ReadTensors a = read_tensors(scratch / "a"), b = read_tensors(scratch / "b");
  CHECK(a.at(kLayer + "self_attn.q_proj.weight") == b.at(kLayer + "self_attn.q_proj.weight"));
  CHECK(b.at(kExperts + ".0.down_proj.weight").dtype == DType::kBF16);
  CHECK(b.at(kLayer + "linear_attn.out_proj.weight").dtype == DType::kBF16);
}

}  // namespace
}  // namespace twofour
