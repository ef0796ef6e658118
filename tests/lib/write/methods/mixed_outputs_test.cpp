#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "formats/json.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/lint/lint.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/write/transform/open_to_convert.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_int4.h"
#include "tests/support/weights/stored_weights.h"

namespace mixed_outputs_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kLayer = "model.layers.0.", kAttention = kLayer + "self_attn.";

Rule for_roles(const std::string& to, std::vector<ModuleRole> roles) {
  Rule rule{.to = to};
  rule.selection.from_default = false;
  rule.selection.roles = std::move(roles);
  return rule;
}

/// Attention to FP8, experts to what is named.
Recipe fp8_beside(const std::string& to, const std::string& dialect) {
  Rule attention = for_roles("fp8", {ModuleRole::kAttention});
  attention.granularity = "tensor";
  Recipe recipe;
  recipe.rules = {attention, for_roles(to, {ModuleRole::kRoutedExperts, ModuleRole::kSharedExperts})};
  recipe.dialect = dialect;
  return recipe;
}

Recipe keep_in(const std::string& dialect) {
  Rule rule{.to = "nvfp4"};
  rule.dialect = dialect;
  return Recipe(rule);
}

void convert_with(const fs::path& from, const fs::path& to, const Recipe& recipe) {
  const Checkpoint source = open_to_convert(from, recipe);
  Progress progress;
  convert(source, make_plan(source, recipe), to, {}, progress);
  const ValidateReport report = validate_from(from, to);
  INFO(text_of(report.differences));
  CHECK(report.differences.empty());
}

/// A layer of floats: attention, two experts, a shared expert with its gate, a router, a head.
Tensors float_layer(const std::string& attention = kAttention, const std::string& experts = "mlp.experts.") {
  Tensors t;
  unsigned seed = 1;
  for (const char* leaf : {"q_proj", "k_proj", "v_proj", "o_proj"})
    add_floats(t, attention + leaf, random_floats(64, 64, seed++));
  for (const char* e : {"0.", "1."}) {
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"})
      add_floats(t, kLayer + experts + e + leaf, random_floats(64, 64, seed++));
  }
  for (const char* leaf : {"gate_proj", "up_proj", "down_proj"})
    add_floats(t, kLayer + "mlp.shared_expert." + leaf, random_floats(64, 64, seed++));
  add_floats(t, kLayer + "mlp.shared_expert_gate", random_floats(1, 64, seed++));
  add_floats(t, kLayer + "mlp.gate", random_floats(2, 64, seed++));
  add_floats(t, "lm_head", random_floats(32, 64, seed++));
  return t;
}

std::string config_of(const char* type) {
  return Json{{"model_type", type}, {"num_hidden_layers", 1}, {"num_experts", 2}}.dump();
}

Json quantization_of(const fs::path& folder) {
  return Json::parse(read_tree(folder).at("config.json")).at("quantization_config");
}

/// Attention in block FP8, experts alike, as compressed-tensors has them, with BF16 scales.
void write_block_fp8(const fs::path& folder, bool exact) {
  Tensors t;
  unsigned seed = 1;
  const auto add = [&](const std::string& name) {
    fp8_weights({256, 128}, seed++).add_to(t, name + ".weight");
    random_scales(exact ? DType::kBF16 : DType::kF32, {2, 1}, seed++).add_to(t, name + ".weight_scale");
  };
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"}) add(kAttention + leaf);
  for (const char* e : {"0.", "1."}) {
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) add(kLayer + "mlp.experts." + e + leaf);
  }
  const Json weights = {{"num_bits", 8},       {"type", "float"},
                        {"strategy", "block"}, {"block_structure", {128, 128}},
                        {"symmetric", true},   {"dynamic", false}};
  write_checkpoint(folder, {t},
                   Json{{"model_type", "qwen3_moe"},
                        {"num_hidden_layers", 1},
                        {"num_experts", 2},
                        {"quantization_config",
                         {{"quant_method", "compressed-tensors"},
                          {"format", "float-quantized"},
                          {"ignore", Json::array()},
                          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}}}}
                       .dump());
}

}  // namespace

TEST_CASE("what rules made of two formats is a source: BF16 of it, and the other dialect") {
  for (const char* dialect : {"modelopt", "compressed-tensors"}) {
    CAPTURE(std::string(dialect));
    const Scratch scratch;
    write_checkpoint(scratch / "a", {float_layer()}, config_of("qwen2_moe"));
    convert_with(scratch / "a", scratch / "b", fp8_beside("quantize", dialect));
    convert_with(scratch / "b", scratch / "c", Recipe(Rule{.to = "bf16"}));
    for (const auto& [name, tensor] : read_tensors(scratch / "c")) {
      CAPTURE(name);
      CHECK(tensor.dtype == DType::kBF16);
    }
    const bool is_modelopt = std::string_view(dialect) == "modelopt";
    convert_with(scratch / "b", scratch / "d", keep_in(is_modelopt ? "compressed-tensors" : "modelopt"));
    convert_with(scratch / "d", scratch / "e", keep_in(dialect));
    ReadTensors e = read_tensors(scratch / "e");
    // ModelOpt's FP8 needs input scales, which stay.
    if (!is_modelopt) std::erase_if(e, [](const auto& t) { return t.first.ends_with(".input_scale"); });
    CHECK(read_tensors(scratch / "b") == e);
  }
}

TEST_CASE("a layout beside FP8 is a source, its FP8 as it is stored") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {float_layer()}, config_of("qwen2_moe"));
  convert_with(scratch / "a", scratch / "b", fp8_beside("g8", "modelopt"));
  convert_with(scratch / "a", scratch / "direct", fp8_beside("quantize", "modelopt"));
  convert_with(scratch / "b", scratch / "c", keep_in("modelopt"));
  const ReadTensors c = read_tensors(scratch / "c"), direct = read_tensors(scratch / "direct");
  CHECK(c.size() == direct.size());
  for (const auto& [name, tensor] : direct) {
    CAPTURE(name);
    REQUIRE(c.contains(name));
    CHECK(c.at(name) == tensor);
  }
  convert_with(scratch / "b", scratch / "d", Recipe(Rule{.to = "bf16"}));
  CHECK(read_tensors(scratch / "d").at(kAttention + "q_proj.weight").dtype == DType::kBF16);
}

TEST_CASE("a role takes no part that engines have in floats, a name does") {
  const Scratch scratch;
  Tensors t = float_layer();
  add_floats(t, kLayer + "attn.compressor.wkv", random_floats(64, 64, 90));
  write_checkpoint(scratch / "a", {t}, config_of("qwen2_moe"));
  Recipe recipe = fp8_beside("quantize", "modelopt");
  convert_with(scratch / "a", scratch / "b", recipe);
  const ReadTensors b = read_tensors(scratch / "b");
  for (const char* left :
       {"mlp.shared_expert_gate.weight", "attn.compressor.wkv.weight", "mlp.gate.weight"}) {
    CAPTURE(left);
    CHECK(b.at(kLayer + left) == read_tensors(scratch / "a").at(kLayer + left));
  }
  CHECK(b.at(kLayer + "mlp.shared_expert.up_proj.weight").dtype == DType::kU8);
  recipe.rules[0].selection.also = parse_patterns({"*.compressor.*"});
  convert_with(scratch / "a", scratch / "c", recipe);
  CHECK(read_tensors(scratch / "c").at(kLayer + "attn.compressor.wkv.weight").dtype == DType::kF8E4M3);
}

TEST_CASE("groups are found under the names that vLLM and transformers give modules") {
  const Scratch scratch;
  const auto lookup_of = [&](const Tensors& tensors, const char* type) {
    fs::remove_all(scratch / "a");
    fs::remove_all(scratch / "b");
    write_checkpoint(scratch / "a", {tensors}, config_of(type));
    convert_with(scratch / "a", scratch / "b", fp8_beside("quantize", "compressed-tensors"));
    return std::make_unique<SourceGroups>(quantization_of(scratch / "b"));
  };
  const auto jamba = lookup_of(float_layer(), "jamba");
  CHECK(jamba->find("model.layers.0.q_proj").at("format") == "float-quantized");
  CHECK(jamba->find(kAttention + "q_proj").at("format") == "float-quantized");
  const auto gpt_oss = lookup_of(float_layer(), "gpt_oss");
  CHECK(gpt_oss->find("model.layers.0.attn.o_proj").at("format") == "float-quantized");
  CHECK(lookup_of(float_layer(), "qwen2_moe")->find("model.layers.0.attn.o_proj").is_null());
  Tensors own;
  for (const char* leaf : {"wq_a", "wkv", "wq_b"})
    add_floats(own, kLayer + "attn." + leaf, random_floats(64, 64, 5));
  for (const char* leaf : {"w1", "w2", "w3"}) {
    add_floats(own, kLayer + "ffn.experts.0." + leaf, random_floats(64, 64, 6));
    add_floats(own, kLayer + "ffn.experts.1." + leaf, random_floats(64, 64, 7));
  }
  add_floats(own, "head", random_floats(32, 64, 8));
  const auto deepseek = lookup_of(own, "deepseek_v4");
  CHECK(deepseek->find("model.layers.0.self_attn.q_a_proj").at("format") == "float-quantized");
  CHECK(deepseek->find("lm_head").is_null());
  const Json ignored = quantization_of(scratch / "b").at("ignore");
  CHECK(std::find(ignored.begin(), ignored.end(), Json("lm_head")) != ignored.end());
  Progress progress;
  for (const LintFinding& finding : lint(scratch / "b", {}, progress).findings) {
    CAPTURE(finding.message);
    CHECK(finding.rule != *find_lint_rule("unused-pattern"));
  }
}

TEST_CASE("a quantized head is named beside the class of linears, which does not reach it") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {float_layer()}, config_of("qwen2_moe"));
  Rule rule{.to = "quantize"};
  rule.dialect = "modelopt";
  rule.selection.also = parse_patterns({"lm_head"});
  convert_with(scratch / "a", scratch / "b", Recipe(rule));
  convert_with(scratch / "b", scratch / "c", keep_in("compressed-tensors"));
  rule.dialect = "compressed-tensors";
  convert_with(scratch / "a", scratch / "d", Recipe(rule));
  for (const char* folder : {"c", "d"}) {
    CAPTURE(std::string(folder));
    const Json entry = quantization_of(scratch / folder);
    CHECK(entry.at("config_groups").at("group_0").at("targets") == Json{"Linear", "re:.*lm_head$"});
    CHECK(SourceGroups(entry).find("lm_head").is_object());
  }
  rule.selection.also.clear();
  convert_with(scratch / "a", scratch / "e", Recipe(rule));
  CHECK(SourceGroups(quantization_of(scratch / "e")).find("lm_head").is_null());
}

TEST_CASE("experts without a gate are found by loaders that ask for one") {
  const Scratch scratch;
  Tensors t;
  for (const char* e : {"0.", "1."}) {
    for (const char* leaf : {"up_proj", "down_proj"})
      add_floats(t, "backbone.layers.0.mixer.experts." + std::string(e) + leaf, random_floats(64, 64, 1));
  }
  for (const char* leaf : {"q_proj", "k_proj", "v_proj", "o_proj"})
    add_floats(t, "backbone.layers.1.mixer." + std::string(leaf), random_floats(64, 64, 2));
  write_checkpoint(
      scratch / "a", {t},
      Json{{"model_type", "nemotron_h"}, {"num_hidden_layers", 2}, {"n_routed_experts", 2}}.dump());
  convert_with(scratch / "a", scratch / "b", fp8_beside("quantize", "compressed-tensors"));
  const SourceGroups groups(quantization_of(scratch / "b"));
  for (const char* leaf : {"gate_proj", "up_proj", "down_proj"})
    CHECK(groups.find("model.layers.0.mixer.experts.0." + std::string(leaf)).at("format") ==
          "nvfp4-pack-quantized");
}

TEST_CASE(
    "blocks of FP8 of experts have DeepSeek's name in ModelOpt's dialect, others ModelOpt's four "
    "dimensions") {
  const Scratch scratch;
  write_block_fp8(scratch / "a", true);
  convert_with(scratch / "a", scratch / "b", keep_in("modelopt"));
  const ReadTensors a = read_tensors(scratch / "a"), b = read_tensors(scratch / "b");
  const std::string expert = kLayer + "mlp.experts.1.up_proj";
  CHECK(b.at(expert + ".weight_scale_inv") == a.at(expert + ".weight_scale"));
  CHECK(b.at(kAttention + "q_proj.weight_scale").shape == std::vector<int64_t>{2, 1, 1, 1});
  const Json layers = quantization_of(scratch / "b").at("quantized_layers");
  CHECK(layers.at(expert).at("quant_algo") == "FP8_BLOCK_SCALES");
  CHECK(layers.at(kAttention + "q_proj").at("quant_algo") == "FP8_PB_WO");
}

TEST_CASE("scales of FP8 in BF16 come back from a dialect of F32 as they were, others stay in F32") {
  for (const bool exact : {true, false}) {
    CAPTURE(exact);
    const Scratch scratch;
    write_block_fp8(scratch / "a", exact);
    convert_with(scratch / "a", scratch / "b", keep_in("modelopt"));
    CHECK(read_tensors(scratch / "b").at(kAttention + "q_proj.weight_scale").dtype == DType::kF32);
    convert_with(scratch / "b", scratch / "c", keep_in("compressed-tensors"));
    CHECK(read_tensors(scratch / "a") == read_tensors(scratch / "c"));
  }
}

TEST_CASE("a dialect is given to sources without NVFP4, and only to all of their linears") {
  const Scratch scratch;
  write_block_fp8(scratch / "a", true);
  Rule rule{.to = "nvfp4"};
  rule.dialect = "modelopt";
  rule.selection.exclude = parse_patterns({"*.q_proj"});
  const Checkpoint source = Checkpoint::open(scratch / "a");
  CHECK(
      message_of([&] {
        make_plan(source, Recipe(rule));
      }).find("expected all 9 quantized linears, because one configuration describes them, found 8 chosen") !=
      std::string::npos);
}

TEST_CASE("INT4 that stays gives layouts the source's own dialect") {
  const Scratch scratch;
  Tensors t;
  unsigned seed = 1;
  const auto add = [&](const std::string& name) {
    StoredInt4 one(64, 64, 32, DType::kBF16, seed++);
    one.make_symmetric();
    one.add_packed(t, name, false);
  };
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"}) add(kAttention + leaf);
  for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) add(kLayer + "mlp." + leaf);
  const Json weights = {{"num_bits", 4},    {"type", "int"},     {"strategy", "group"},
                        {"group_size", 32}, {"symmetric", true}, {"dynamic", false}};
  write_checkpoint(scratch / "a", {t},
                   Json{{"model_type", "llama"},
                        {"num_hidden_layers", 1},
                        {"quantization_config",
                         {{"quant_method", "compressed-tensors"},
                          {"format", "pack-quantized"},
                          {"ignore", Json::array()},
                          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}}}}
                       .dump());
  convert(scratch / "a", scratch / "b", OneRule());
  CHECK(validate_from(scratch / "a", scratch / "b").differences.empty());
  const ReadTensors a = read_tensors(scratch / "a"), b = read_tensors(scratch / "b");
  CHECK(b.at(kAttention + "q_proj.weight_packed") == a.at(kAttention + "q_proj.weight_packed"));
  const Json base = quantization_of(scratch / "b").at("base");
  CHECK(base.at("quant_method") == "compressed-tensors");
  CHECK(message_of([&] {
          make_plan(Checkpoint::open(scratch / "a"), keep_in("modelopt"));
        }).find("expected a format that the modelopt dialect can name, found INT4") != std::string::npos);
}

TEST_CASE("scales of the KV cache go with the last quantized linear") {
  const Scratch scratch;
  Tensors t;
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"})
    add_modelopt(t, kAttention + leaf, random_matrix(32, 64, 1));
  const TensorData scale{kAttention + "k_proj.k_scale", DType::kF32, {}, {0, 0, 0, 0x3F}};
  t.push_back(scale);
  write_checkpoint(scratch / "a", {t}, config_of("llama"));
  convert_with(scratch / "a", scratch / "b", Recipe(Rule{.to = "bf16"}));
  CHECK(!read_tensors(scratch / "b").contains(scale.name));
  Recipe general(Rule{.to = "bf16"});
  general.dialect = "source";
  convert_with(scratch / "a", scratch / "c", general);
  CHECK(read_tensors(scratch / "b") == read_tensors(scratch / "c"));
  Rule some{.to = "bf16"};
  some.selection.include = parse_patterns({"*.o_proj"});
  add_modelopt(t, kAttention + "o_proj", random_matrix(32, 64, 2));
  write_checkpoint(scratch / "more", {t}, config_of("llama"));
  convert_with(scratch / "more", scratch / "d", Recipe(some));
  CHECK(read_tensors(scratch / "d").at(scale.name) == read_tensors(scratch / "more").at(scale.name));
}

}  // namespace mixed_outputs_test
