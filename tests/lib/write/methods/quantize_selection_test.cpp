#include <doctest/doctest.h>

#include <algorithm>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

namespace quantize_selection_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

OneRule to_nvfp4() {
  OneRule recipe;
  recipe.to = "quantize";
  recipe.dialect = "compressed-tensors";
  return recipe;
}

/// The refusal of `tensors`; empty if they are quantized.
std::string refusal_of(const Tensors& tensors) {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  const std::string message = message_of([&] { convert(scratch / "src", scratch / "out", to_nvfp4()); });
  if (!message.empty()) CHECK(!fs::exists(scratch / "out"));
  return message;
}

}  // namespace

TEST_CASE(
    "layers that predict further tokens, indexers' weights and a tied head stay in floats and are listed") {
  const Scratch scratch;
  Tensors tensors;
  const std::string first = "model.layers.0.", beyond = "model.layers.1.";
  add_floats(tensors, first + "mlp.down_proj", random_floats(16, 48, 1));
  add_floats(tensors, first + "self_attn.indexer.weights_proj", random_floats(16, 48, 2));
  add_floats(tensors, beyond + "mlp.down_proj", random_floats(16, 48, 3));
  add_floats(tensors, beyond + "eh_proj", random_floats(16, 48, 4));
  write_checkpoint(scratch / "src", {tensors},
                   R"({"text_config": {"num_hidden_layers": 1, "tie_word_embeddings": true}})");
  const ConvertResult result = convert(scratch / "src", scratch / "out", to_nvfp4());
  CHECK(result.modules.size() == 1);
  const Json config = parse_json("config", read_text(scratch / "out/config.json"));
  CHECK(config["quantization_config"]["ignore"] ==
        Json::array({"lm_head", first + "self_attn.indexer.weights_proj", beyond + "eh_proj",
                     beyond + "mlp.down_proj"}));
}

TEST_CASE("experts that are not whole, all there and alike are refused") {
  const std::string block = "model.layers.0.mlp.experts.";
  const auto expert = [&](Tensors& t, const std::string& e, int64_t gate_rows = 32) {
    add_floats(t, block + e + ".gate_proj", random_floats(gate_rows, 48, 1));
    add_floats(t, block + e + ".up_proj", random_floats(32, 48, 2));
    add_floats(t, block + e + ".down_proj", random_floats(48, 32, 3));
  };
  Tensors whole;
  expert(whole, "0");
  expert(whole, "1");
  CHECK(refusal_of(whole) == "");
  Tensors half = whole;
  add_floats(half, block + "2.gate_proj", random_floats(32, 48, 4));
  CHECK(refusal_of(half) == "model.layers.0.mlp.experts.2: expected 3 matrices (as in expert 0), found 1");
  Tensors gap = whole;
  expert(gap, "3");
  CHECK(refusal_of(gap) == "model.layers.0.mlp.experts: expected experts 0 to 3, found 3");
  Tensors other = whole;
  expert(other, "2", 16);
  CHECK(refusal_of(other) ==
        "model.layers.0.mlp.experts.2.gate_proj: expected weights of [32, 48] (as in expert 0), found [16, "
        "48]");
  Tensors stack;
  stack.push_back({"model.layers.0.mlp.experts.gate_up_proj", DType::kBF16, {2, 32, 48}, {}});
  stack.back().bytes.resize(2 * 2 * 32 * 48);
  CHECK(refusal_of(stack) != "");
}

TEST_CASE("FP8 whose inputs fill no blocks is refused, floats of that kind stay") {
  Tensors tensors;
  add_floats(tensors, "model.layers.0.mlp.up_proj", random_floats(16, 48, 1));
  fp8_weights({16, 40}, 1).add_to(tensors, "model.layers.0.mlp.down_proj.weight");
  tensors.push_back({"model.layers.0.mlp.down_proj.weight_scale", DType::kF32, {}, {0, 0, 0x80, 0x3F}});
  const std::string message = refusal_of(tensors);
  CHECK(message.find("down_proj.weight: expected K a multiple of 16 to quantize, found 40") !=
        std::string::npos);
}

TEST_CASE("what engines multiply as one is quantized as a whole or not at all; unknown stacks stay") {
  const Scratch scratch;
  Tensors tensors;
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
    add_floats(tensors, std::string("model.layers.0.self_attn.") + name, random_floats(16, 48, 1));
  tensors.push_back({"model.layers.0.moe.input_linear.weight", DType::kBF16, {2, 32, 48}, {}});
  tensors.back().bytes.resize(2 * 2 * 32 * 48);
  write_checkpoint(scratch / "src", {tensors});
  for (const std::string to : {"quantize", "fp8"}) {
    OneRule split = to_nvfp4();
    split.to = to;
    split.selection.exclude = parse_patterns({"*.q_proj"});
    CHECK_THROWS_WITH_AS(make_plan(Checkpoint::open(scratch / "src"), split),
                         doctest::Contains("because loaders give linears that they fuse one format"), Error);
  }
  OneRule recipe = to_nvfp4();
  recipe.selection.exclude = parse_patterns({"*.o_proj"});
  const ConvertResult result = convert(scratch / "src", scratch / "out", recipe);
  CHECK(findings_of(result.findings, "unknown-stack").size() == 1);
  const Json config = parse_json("config", read_text(scratch / "out/config.json"));
  const Json& ignore = config["quantization_config"]["ignore"];
  CHECK(std::find(ignore.begin(), ignore.end(), "model.layers.0.moe.input_linear") != ignore.end());
}

TEST_CASE("stacks under a name that no model has are refused") {
  Tensors tensors;
  add_floats(tensors, "model.layers.0.self_attn.q_proj", random_floats(32, 64, 1));
  StoredTensor(DType::kU8, {2, 32, 2, 16}, 2).add_to(tensors, "model.layers.0.mixer.weights_blocks");
  StoredTensor scales(DType::kU8, {2, 32, 2}, 3);
  scales.bytes.assign(scales.bytes.size(), 127);
  scales.add_to(tensors, "model.layers.0.mixer.weights_scales");
  const std::string found = "model.layers.0.mixer.weights";
  CHECK(refusal_of(tensors) == "model.safetensors: " + found +
                                   "_blocks: expected a stack of experts with a known name, found " + found);
}

}  // namespace quantize_selection_test
