#include "lib/recipe/selection/input_scales.h"
#include "lib/source/config/configured_quantization.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/lint/lint.h"
#include "tests/lib/write/methods/input_scale_model.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

namespace input_scales_quantize_test {

using namespace twofour;
using namespace input_scale_model;

namespace {

/// Linears of `dtype` in place of NVFP4: floats, or FP8 with a scale a tensor and the input scales (amax /
/// 448).
Tensors other_tensors(DType dtype, const Multipliers& scales) {
  Tensors t;
  unsigned seed = 40;
  for (const auto& [module, multiplier] : scales) {
    const bool is_down = module.ends_with("down_proj");
    const int64_t n = is_down ? 32 : 48, k = is_down ? 48 : 32;
    if (dtype == DType::kBF16) {
      add_floats(t, module, random_floats(n, k, ++seed));
      continue;
    }
    fp8_weights({n, k}, ++seed).add_to(t, module + ".weight");
    add_scalar(t, module + ".weight_scale", 0.5f, {});
    if (multiplier > 0) add_scalar(t, module + ".input_scale", multiplier * 6, {});
  }
  add_floats(t, "lm_head", random_floats(32, 32, 2));
  return t;
}

Json fp8_config() {
  Json config = config_of("modelopt", true);
  config["quantization_config"]["quant_algo"] = "FP8";
  return config;
}

}  // namespace

TEST_CASE("quantize writes the input scales that its words give, from floats and from FP8") {
  const Scratch scratch;
  Multipliers filled = source_scales();
  for (const char* leaf : {"gate_proj", "up_proj"})
    filled[kExperts + "1." + leaf] = filled[kExperts + "2.up_proj"];
  filled[kExperts + "1.down_proj"] = filled[kExperts + "2.down_proj"];
  struct Case {
    DType dtype;
    const char* words;
    bool one;
    Multipliers expected;
  };
  const std::vector<Case> cases = {
      {DType::kBF16, "", false, all_of(0)},
      {DType::kBF16, "none", false, all_of(0)},
      {DType::kBF16, "constant", false, all_of(1)},
      {DType::kBF16, "constant=0.5", true, all_of(0.5f)},
      {DType::kBF16, "given", false, fused(source_scales())},
      {DType::kBF16, "given", true, one_a_layer(fused(source_scales()))},
      {DType::kF8E4M3, "", false, all_of(0)},
      {DType::kF8E4M3, "none", false, all_of(0)},
      {DType::kF8E4M3, "keep", false, fused(source_scales())},
      {DType::kF8E4M3, "keep", true, one_a_layer(fused(source_scales()))},
      {DType::kF8E4M3, "constant=0.5", false, all_of(0.5f)},
      {DType::kF8E4M3, "given", false, fused(source_scales())},
      {DType::kF8E4M3, "neighbours", false, fused(filled)},
      {DType::kF8E4M3, "neighbours", true, one_a_layer(fused(filled))},
  };
  for (const Case& one : cases) {
    const bool is_fp8 = one.dtype == DType::kF8E4M3;
    const Multipliers before = source_scales(std::string(one.words) == "neighbours" ? "experts.1." : "");
    Json config = fp8_config();
    if (!is_fp8) config.erase("quantization_config");
    write_checkpoint(scratch / "a", {other_tensors(one.dtype, before)}, config.dump());
    for (const std::string to : kDialects) {
      CAPTURE(is_fp8);
      CAPTURE(to);
      const std::string words = one.words;
      CAPTURE(words);
      CAPTURE(one.one);
      Recipe recipe = quantize_with(to, words, one.one);
      if (words == "given") recipe.rules[0].input_scales = amax_of(source_scales());
      convert_with(scratch, recipe);
      CHECK(stored_scales(scratch / "b", to, before) == one.expected);
      check_config(scratch / "b", to, one.expected);
    }
    std::filesystem::remove_all(scratch / "a");
  }
}

TEST_CASE("quantize refuses words that floats, or half of what engines fuse, cannot give") {
  const Scratch scratch;
  Json config = config_of("modelopt", true);
  config.erase("quantization_config");
  write_checkpoint(scratch / "a", {other_tensors(DType::kBF16, source_scales())}, config.dump());
  CHECK(contains(refusal(scratch, quantize_with("modelopt", "neighbours")),
                 "expected an input scale in its projection of the layer"));
  CHECK(contains(refusal(scratch, quantize_with("modelopt", "", true)),
                 "--one-input-scale-a-layer: expected --input-scale beside it, found none"));
  CHECK(contains(refusal(scratch, quantize_with("modelopt", "none", true)),
                 "--one-input-scale-a-layer: expected input scales, found --input-scale none"));
  std::filesystem::remove_all(scratch / "a");
  write_checkpoint(scratch / "a", {other_tensors(DType::kF8E4M3, source_scales("experts.1.up_proj"))},
                   fp8_config().dump());
  for (const auto& [dialect, found] :
       {std::pair{"modelopt", "W4A16_NVFP4"},
        {"compressed-tensors", "nvfp4-pack-quantized (tensor_group, only weights)"}}) {
    const std::string message = refusal(scratch, quantize_with(dialect, "keep"));
    CHECK(contains(message, kExperts + "1.up_proj: expected "));
    CHECK(contains(message, std::string("found ") + found));
  }
}

TEST_CASE("a mixed source: rules of their own for what stays NVFP4, becomes it, and stays FP8") {
  // Expert 0 to 2 in FP8, attention in NVFP4 without input scales, an MLP beside it that has them.
  const Scratch scratch;
  const std::string attention = kLayer + "self_attn.", shared = kLayer + "mlp.shared_expert.";
  Tensors t = other_tensors(DType::kF8E4M3, source_scales("self_attn"));
  std::erase_if(t, [](const TensorData& one) { return one.name.find("self_attn") != one.name.npos; });
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"})
    add_modelopt(t, attention + leaf, random_matrix(48, 32, 3));
  for (const char* leaf : {"gate_proj", "up_proj"}) {
    add_modelopt(t, shared + leaf, random_matrix(48, 32, 4));
    add_input_scale(t, "modelopt", shared + leaf, 0.125f);
  }
  fp8_weights({32, 48}, 9).add_to(t, shared + "down_proj.weight");
  add_scalar(t, shared + "down_proj.weight_scale", 0.5f, {});
  add_scalar(t, shared + "down_proj.input_scale", 0.75f, {});
  Json layers = Json::object();
  for (const auto& [name, scale] : source_scales()) {
    if (scale > 0 && name.find("experts") != name.npos) layers[name] = {{"quant_algo", "FP8"}};
  }
  layers[shared + "down_proj"] = {{"quant_algo", "FP8"}};
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"})
    layers[attention + leaf] = {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}};
  for (const char* leaf : {"gate_proj", "up_proj"})
    layers[shared + leaf] = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
  Json config = config_of("modelopt", true);
  config["quantization_config"] = {
      {"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}};
  write_checkpoint(scratch / "a", {t}, config.dump());

  const auto rule = [](const char* to, const char* match, const char* words) {
    Rule one;
    one.to = to;
    one.selection.from_default = false;
    one.selection.also = parse_patterns({match});
    one.input_scale = words;
    return one;
  };
  Multipliers modules;
  for (const auto& [name, scale] : source_scales()) modules[name] = 0;
  for (const char* leaf : {"gate_proj", "up_proj"}) modules[shared + leaf] = 0;
  for (const std::string to : kDialects) {
    CAPTURE(to);
    const bool ct = to == "compressed-tensors";
    const auto scale_of = [&](const std::string& module) {
      const ReadTensors b = read_tensors(scratch / "b");
      const auto at = b.find(module + (ct ? ".input_global_scale" : ".input_scale"));
      const float stored = at == b.end() ? 0 : at->second.as<float>()[0];
      return ct && stored > 0 ? 1 / stored : stored;
    };
    Recipe recipe;
    recipe.dialect = to;
    recipe.rules = {rule("quantize", "*.experts.*", "keep"), rule("keep", "*.self_attn.*", "constant=0.5"),
                    rule("keep", "*.shared_expert.*", "none")};
    convert_with(scratch, recipe);
    for (const auto& [name, scale] : fused(source_scales())) {
      CAPTURE(name);
      CHECK(scale_of(name) == (name.find("experts") == name.npos ? 0.5f : scale));
    }
    CHECK(scale_of(shared + "up_proj") == 0);
    CHECK(read_tensors(scratch / "b").at(shared + "down_proj.input_scale").as<float>()[0] == 0.75f);
    const Json entry = Json::parse(read_tree(scratch / "b").at("config.json")).at("quantization_config");
    if (ct) {
      const SourceGroups lookup(entry);
      CHECK(lookup.find(attention + "q_proj").at("input_activations").is_object());
      CHECK(!lookup.find(shared + "up_proj").value("input_activations", Json()).is_object());
    } else {
      const Json& listed = entry.at("quantized_layers");
      CHECK(listed.at(attention + "q_proj").at("quant_algo") == "NVFP4");
      CHECK(listed.at(shared + "up_proj").at("quant_algo") == "W4A16_NVFP4");
      CHECK(listed.at(kExperts + "1.up_proj").at("quant_algo") == "NVFP4");
      CHECK(listed.at(shared + "down_proj").at("quant_algo") == "FP8");
    }

    // What is to be NVFP4 and is so already keeps the input scale that it has, and gets one where it lacks
    // one.
    recipe.rules = {rule("keep", "lm_head", ""), rule("quantize", "*", "constant=0.5")};
    convert_with(scratch, recipe);
    CHECK(scale_of(shared + "up_proj") == 0.125f);
    CHECK(scale_of(attention + "k_proj") == 0.5f);
    CHECK(scale_of(kExperts + "2.down_proj") == 0.5f);
  }
}

TEST_CASE("neighbours are all linears of the layer, in whatever format they are and stay") {
  // Experts 0 and 1 in FP8 with input scales; 2 in BF16, which alone is quantized with them.
  const Scratch scratch;
  const Multipliers scales = source_scales();
  Tensors t = other_tensors(DType::kF8E4M3, scales), floats = other_tensors(DType::kBF16, scales);
  const auto is_two = [](const TensorData& one) { return one.name.find("experts.2.") != one.name.npos; };
  std::erase_if(t, is_two);
  for (const TensorData& one : floats) {
    if (is_two(one)) t.push_back(one);
  }
  write_checkpoint(scratch / "a", {t}, fp8_config().dump());
  Recipe recipe = quantize_with("modelopt", "neighbours");
  recipe.rules[0].selection.include = parse_patterns({"*.experts.*"});
  convert_with(scratch, recipe);
  const ReadTensors b = read_tensors(scratch / "b");
  CHECK(b.at(kExperts + "2.down_proj.input_scale").as<float>()[0] == scales.at(kExperts + "1.down_proj"));
  CHECK(b.at(kExperts + "2.gate_proj.input_scale").as<float>()[0] == scales.at(kExperts + "1.up_proj"));
}

}  // namespace input_scales_quantize_test
