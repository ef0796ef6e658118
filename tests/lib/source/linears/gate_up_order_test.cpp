#include "lib/source/linears/expert_stacks.h"

#include <doctest/doctest.h>

#include "lib/source/linears/linears.h"
#include "tests/support/message.h"
#include "tests/support/weights/stored_weights.h"

namespace gate_up_order_test {

using namespace twofour;

namespace {

const std::string kBlock = "model.layers.0.mlp.experts";

GateUpOrder order_of(const char* config, bool has_bias) {
  return find_gate_up_order(parse_json("config.json", config), kBlock, [&](const std::string& name) {
    return has_bias && name == kBlock + ".gate_up_proj_bias";
  });
}

}  // namespace

TEST_CASE("model_type decides how a stack orders gate and up, where its bias agrees") {
  CHECK(order_of(R"({"model_type": "gpt_oss"})", true).rows == GateUpRows::kInterleaved);
  CHECK(order_of(R"({"model_type": "openai_privacy_filter"})", true).rows == GateUpRows::kHalves);
  for (const char* config :
       {R"({"model_type": "llama4"})",
        R"({"model_type": "llama4", "text_config": {"model_type": "llama4_text"}})",
        R"({"model_type": "some_vlm", "text_config": {"model_type": "qwen3_5_moe_text"}})",
        R"({"model_type": "qwen3_5_moe"})"}) {
    CAPTURE(config);
    CHECK(order_of(config, false).rows == GateUpRows::kHalves);
    CHECK(!order_of(config, true).rows);
  }
  CHECK(order_of(R"({"model_type": "gpt_oss"})", false)
            .problem.starts_with(
                "expected gate_up_proj_bias beside it (as in model_type gpt_oss), found none: "));
  CHECK(order_of(R"({"model_type": "llama4"})", true)
            .problem.starts_with(
                "expected no bias beside it (as in model_type llama4), found gate_up_proj_bias: "));
}

TEST_CASE("where neither model_type nor a bias says how gate and up are ordered, nothing is guessed") {
  CHECK(order_of("{}", true).rows == GateUpRows::kInterleaved);
  CHECK(order_of("{}", false)
            .problem.starts_with("expected a model_type in config.json that determines the order of gate and "
                                 "up rows (interleaved or halves), found none (and no gate_up_proj_bias "
                                 "beside the stack); set model_type in config.json"));
  // A bias alone is no proof of gpt-oss: openai_privacy_filter has one, too.
  for (const bool bias : {false, true}) {
    CHECK(contains(order_of(R"({"model_type": "other"})", bias).problem, "found \"other\" (and "));
    CHECK(contains(order_of(R"({"model_type": 5})", bias).problem, "found 5 (and "));
    CHECK(!order_of(R"({"model_type": "gpt_oss", "text_config": {"model_type": "llama4_text"}})", bias).rows);
  }
}

TEST_CASE("linears of an uncertain stack are refused in every format, the rest is found") {
  for (const char* suffix : {"", ".weight", "_blocks"}) {
    CAPTURE(suffix);
    const bool mxfp4 = suffix == std::string("_blocks");
    Tensors tensors;
    if (mxfp4) {
      StoredTensor(DType::kU8, {2, 64, 1, 16}, 1).add_to(tensors, kBlock + ".gate_up_proj_blocks");
      StoredTensor(DType::kU8, {2, 64, 1}, 2).add_to(tensors, kBlock + ".gate_up_proj_scales");
      StoredTensor(DType::kU8, {2, 32, 1, 16}, 3).add_to(tensors, kBlock + ".down_proj_blocks");
      StoredTensor(DType::kU8, {2, 32, 1}, 4).add_to(tensors, kBlock + ".down_proj_scales");
    } else {
      StoredTensor(DType::kBF16, {2, 64, 32}, 1).add_to(tensors, kBlock + ".gate_up_proj" + suffix);
      StoredTensor(DType::kBF16, {2, 32, 32}, 2).add_to(tensors, kBlock + ".down_proj" + suffix);
    }
    for (const char* config : {"{}", R"({"model_type": "gpt_oss"})", R"({"model_type": "x"})"}) {
      CAPTURE(config);
      const Scratch scratch;
      const Checkpoint c = open_checkpoint(scratch, tensors, config);
      Problems problems;
      const auto modules = find_weight_modules(c, problems);
      REQUIRE(modules.size() == 1);
      CHECK(modules[0].name == kBlock + ".down_proj");
      REQUIRE(problems.lines().size() == 1);
      CHECK(contains(problems.lines()[0], "model.safetensors: " + kBlock + ".gate_up_proj"));
      const auto uncertain = find_uncertain_stacks(c.config(), c.tensors());
      REQUIRE(uncertain.size() == 1);
      CHECK(c.tensors()[uncertain[0].tensor].name == kBlock + ".gate_up_proj" + suffix);
    }
    const Scratch scratch;
    const Checkpoint c = open_checkpoint(scratch, tensors, R"({"model_type": "llama4"})");
    CHECK(find_weight_modules(c).size() == 2);
    CHECK(find_uncertain_stacks(c.config(), c.tensors()).empty());
  }
}

}  // namespace gate_up_order_test
