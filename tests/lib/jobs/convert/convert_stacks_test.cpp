#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/scratch.h"

namespace convert_stacks_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

enum class Rows { halves, interleaved };

/// How a producer stacks experts in one tensor.
struct Stack {
  const char* block;
  Rows rows;
  bool k_outer;  ///< [E, K/2, N] instead of [E, N, K/2]
  bool with_bias;
};

constexpr Stack kStacks[] = {
    {"language_model.model.layers.0.feed_forward.experts", Rows::halves, true, false},   // Llama-4
    {"language_model.model.layers.0.feed_forward.experts", Rows::halves, false, false},  // row-major
    {"model.layers.0.mlp.experts", Rows::interleaved, true, true},                       // gpt-oss
    {"model.layers.0.mlp.experts", Rows::interleaved, false, true},
    {"model.layers.0.mlp.experts", Rows::halves, false, false},  // Qwen3.5
    {"model.layers.0.mlp.experts", Rows::halves, true, false},
};

Tensors stacked(const Stack& stack, const ExpertSet& experts, const std::vector<int64_t>& scale_shape) {
  std::vector<Nvfp4Matrix> gate_up;
  for (size_t e = 0; e < experts.up.size(); ++e) {
    gate_up.push_back(stack.rows == Rows::halves ? stack_rows(experts.gate[e], experts.up[e])
                                                 : interleave_rows(experts.gate[e], experts.up[e]));
  }
  Tensors tensors;
  const std::string block = stack.block;
  add_stack(tensors, block + ".gate_up_proj", gate_up, stack.k_outer, scale_shape);
  add_stack(tensors, block + ".down_proj", experts.down, stack.k_outer, scale_shape);
  if (stack.with_bias) {
    const auto e = static_cast<int64_t>(gate_up.size());
    add_bf16(tensors, block + ".gate_up_proj_bias", {e, gate_up[0].n});
    add_bf16(tensors, block + ".down_proj_bias", {e, experts.down[0].n});
  }
  return tensors;
}

/// Weights and scales of a block in an artifact.
ReadTensors block_of(const fs::path& artifact, const std::string& block) {
  ReadTensors tensors = read_tensors(artifact);
  std::erase_if(tensors, [&](auto& t) {
    return !t.first.starts_with(block + ".w13_") && !t.first.starts_with(block + ".w2_");
  });
  return tensors;
}

/// A stack must give what the same experts give as matrices of their own.
void check_stack(const Stack& stack, const ExpertSet& experts, const std::vector<int64_t>& scale_shape) {
  const Scratch scratch;
  Tensors singles;
  add_experts(singles, stack.block, experts);
  write_checkpoint(scratch / "singles", {singles});
  write_checkpoint(scratch / "stack", {stacked(stack, experts, scale_shape)});
  convert(scratch / "singles", scratch / "from singles");
  convert(scratch / "stack", scratch / "from stack");
  const ReadTensors expected = block_of(scratch / "from singles", stack.block);
  CHECK(expected.size() == 8);
  CHECK((block_of(scratch / "from stack", stack.block) == expected));
  for (const auto& [name, bytes] : expected_v7(stack.block, experts)) {
    CAPTURE(name);
    CHECK((expected.at(name).bytes == bytes));
  }
  const ValidateReport report = validate_from(scratch / "stack", scratch / "from stack");
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
}

}  // namespace

TEST_CASE("stacked experts give the bytes of the same experts apart") {
  struct Case {
    int64_t e, i, h;
  };
  for (const Stack& stack : kStacks) {
    CAPTURE(std::string(stack.block));
    CAPTURE(stack.k_outer);
    for (const auto& [e, i, h] : {Case{1, 16, 16}, {3, 48, 80}, {2, 112, 16}}) {
      CAPTURE(i);
      CAPTURE(h);
      check_stack(stack, random_experts(e, i, h), {e});
    }
  }
}

TEST_CASE("a stack's global scale may be one for all, one an expert or [E, 1, 1]") {
  ExpertSet experts = random_experts(3, 16, 32);
  for (const Stack& stack : kStacks) {
    check_stack(stack, experts, {});
    check_stack(stack, experts, {1});
  }
  for (size_t e = 0; e < 3; ++e) {
    const float own = 0.5f + static_cast<float>(e);
    experts.gate[e].global = experts.up[e].global = own;
    experts.down[e].global = 2 * own;
  }
  for (const Stack& stack : kStacks) {
    check_stack(stack, experts, {3});
    check_stack(stack, experts, {3, 1, 1});
  }
}

TEST_CASE("a gpt-oss stack that names its model_type is taken apart the same way") {
  const ExpertSet experts = random_experts(2, 16, 16);
  const Scratch scratch;
  write_checkpoint(scratch / "src", {stacked(kStacks[2], experts, {2})}, R"({"model_type": "gpt_oss"})");
  convert(scratch / "src", scratch / "out");
  const ReadTensors ours = read_tensors(scratch / "out");
  for (const auto& [name, bytes] : expected_v7(kStacks[2].block, experts))
    CHECK((ours.at(name).bytes == bytes));
}

TEST_CASE("biases of stacked experts pass through as they are") {
  const Stack& stack = kStacks[2];
  const Tensors tensors = stacked(stack, random_experts(2, 16, 32), {2});
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  convert(scratch / "src", scratch / "out");
  const ReadTensors ours = read_tensors(scratch / "out");
  for (const TensorData& t : tensors) {
    const bool bias = t.name.ends_with("_bias");
    CHECK(ours.count(t.name) == bias);
    if (bias) CHECK((ours.at(t.name).bytes == t.bytes));
  }
}

}  // namespace convert_stacks_test
