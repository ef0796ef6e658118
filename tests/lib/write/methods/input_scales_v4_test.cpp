#include "lib/recipe/selection/input_scales.h"
#include "lib/source/config/configured_quantization.h"

#include <doctest/doctest.h>

#include <string>

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

namespace input_scales_v4_test {

using namespace twofour;
using namespace input_scale_model;

namespace {

const std::string kV4 = "layers.0.ffn.experts.";

/// DeepSeek-V4's own form: two layers, experts 0 and 1 in MXFP4 and attention in block FP8.
Tensors v4_tensors() {
  Tensors t;
  unsigned seed = 60;
  for (const char* layer : {"layers.0.", "layers.1."}) {
    for (const char* e : {"0.", "1."}) {
      for (const char* leaf : {"w1", "w2", "w3"}) {
        const std::string name = std::string(layer) + "ffn.experts." + e + leaf;
        StoredTensor(DType::kI8, {64, 32}, ++seed).add_to(t, name + ".weight");
        StoredTensor scales(DType::kF8E8M0, {64, 2}, ++seed, 8);
        for (uint8_t& byte : scales.bytes) byte += 118;
        scales.add_to(t, name + ".scale");
      }
    }
    fp8_weights({128, 128}, ++seed).add_to(t, std::string(layer) + "attn.wo_b.weight");
    t.push_back({std::string(layer) + "attn.wo_b.scale", DType::kF8E8M0, {1, 1}, {120}});
    add_bf16(t, std::string(layer) + "ffn.gate.weight", {2, 64}, ++seed);
  }
  return t;
}

Json v4_config() {
  return {{"model_type", "deepseek_v4"},
          {"num_hidden_layers", 2},
          {"n_routed_experts", 2},
          {"expert_dtype", "fp4"},
          {"quantization_config",
           {{"quant_method", "fp8"},
            {"activation_scheme", "dynamic"},
            {"fmt", "e4m3"},
            {"scale_fmt", "ue8m0"},
            {"weight_block_size", {128, 128}}}}};
}

}  // namespace

TEST_CASE("DeepSeek-V4's own form: constant by default, and never none") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {v4_tensors()}, v4_config().dump());
  Multipliers modules;
  for (const TensorData& t : v4_tensors()) {
    if (t.dtype == DType::kI8) modules[t.name.substr(0, t.name.size() - 7)] = 0;
  }
  const auto every = [&](float scale) {
    Multipliers all = modules;
    for (auto& [name, own] : all) own = scale;
    return all;
  };
  for (const auto& [words, scale] : {std::pair{"", 1.0f}, {"constant=0.25", 0.25f}, {"given", 0.5f}}) {
    CAPTURE(words);
    Recipe recipe = quantize_with("", words);
    recipe.rules[0].selection.include = parse_patterns({"*.experts.*"});
    if (std::string(words) == "given") recipe.rules[0].input_scales = amax_of(every(0.5f));
    convert_with(scratch, recipe);
    CHECK(stored_scales(scratch / "b", "modelopt", modules) == every(scale));
    const Json entry = Json::parse(read_tree(scratch / "b").at("config.json")).at("quantization_config");
    CHECK(entry.at("quant_method") == "fp8");
    CHECK(entry.at("moe_quant_algo") == "NVFP4");
  }
  CHECK(contains(
      refusal(scratch, quantize_with("deepseek-v4", "none")),
      "--input-scale none: expected input scales in DeepSeek-V4's form, because its loaders read them"));
  CHECK(contains(refusal(scratch, quantize_with("deepseek-v4", "neighbours")),
                 "expected an input scale in its projection of the layer"));

  // What is in that form and NVFP4 already.
  Recipe recipe = quantize_with("", "");
  recipe.rules[0].selection.include = parse_patterns({"*.experts.*"});
  convert_with(scratch, recipe, "a", "n");
  std::filesystem::remove(scratch / "n" / "twofour.json");
  const auto kept = [&](const char* words) {
    const Checkpoint source = Checkpoint::open(scratch / "n");
    return message_of([&] { make_plan(source, keep_with("source", words)); });
  };
  CHECK(contains(kept("none"), "--input-scale none: expected input scales in DeepSeek-V4's form"));
  convert_with(scratch, keep_with("source", "constant=0.5"), "n", "b");
  CHECK(stored_scales(scratch / "b", "modelopt", modules) == every(0.5f));
}

TEST_CASE("DeepSeek-V4's own form: a layer that has input scales keeps and shares them, another gets 1") {
  const Scratch scratch;
  Tensors t = v4_tensors();
  // FP8 experts with static activations in layer 0, expert 1's w2 without.
  std::erase_if(t, [](const TensorData& one) { return one.name.starts_with(kV4); });
  for (const char* e : {"0.", "1."}) {
    for (const char* leaf : {"w1", "w2", "w3"}) {
      const std::string name = kV4 + e + leaf;
      fp8_weights({64, 64}, 80).add_to(t, name + ".weight");
      t.push_back({name + ".scale", DType::kF8E8M0, {1, 1}, {120}});
      if (name != kV4 + "1.w2") add_scalar(t, name + ".input_scale", 1.5f, {});
    }
  }
  write_checkpoint(scratch / "a", {t}, v4_config().dump());
  Recipe recipe = quantize_with("", "");
  recipe.rules[0].selection.include = parse_patterns({"*.experts.*"});
  convert_with(scratch, recipe);
  const ReadTensors b = read_tensors(scratch / "b");
  CHECK(b.at(kV4 + "0.w1.input_scale").as<float>()[0] == 0.25f);
  CHECK(b.at(kV4 + "1.w2.input_scale").as<float>()[0] == 0.25f);
  CHECK(b.at("layers.1.ffn.experts.0.w2.input_scale").as<float>()[0] == 1);
}

}  // namespace input_scales_v4_test
