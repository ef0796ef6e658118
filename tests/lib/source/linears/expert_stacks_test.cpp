#include "lib/source/linears/expert_stacks.h"

#include <doctest/doctest.h>

#include "lib/source/linears/linears.h"
#include "lib/source/linears/weight_terms.h"
#include "tests/support/message.h"
#include "tests/support/weights/stored_weights.h"

namespace expert_stacks_test {

using namespace twofour;

namespace {

const std::string kGateUp = "model.layers.0.mlp.experts.gate_up_proj",
                  kDown = "model.layers.0.mlp.experts.down_proj";
const char* const kRows = R"({"model_type": "gemma4_text", "hidden_size": 64})";
const char* const kColumns = R"({"model_type": "llama4_text", "hidden_size": 64})";

/// An NVFP4 stack in ModelOpt's names, stored [E, a, b], with the scales of 16 weights along `axis`, 1 or 2.
void add_nvfp4(Tensors& to, const std::string& name, int64_t a, int64_t b, int axis) {
  std::vector<int64_t> codes{2, a, b}, scales{2, a, b};
  codes[static_cast<size_t>(axis)] /= 2;
  scales[static_cast<size_t>(axis)] /= 16;
  StoredTensor(DType::kU8, codes, 1).add_to(to, name);
  StoredTensor(DType::kF8E4M3, scales, 2).add_to(to, name + "_weight_scale");
  StoredTensor(DType::kF32, {}, 3).add_to(to, name + "_weight_scale_2");
}

/// The problems by which commands that read all weights refuse a checkpoint.
std::vector<std::string> problems_of(const Tensors& tensors, const char* config) {
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors, config);
  Problems problems;
  const std::vector<Linear> linears = find_weight_modules(c, problems);
  for (const Linear& m : linears) {
    if (!m.contradiction.empty()) CHECK(contains(m.contradiction, m.name));
  }
  refuse_changed_weights(
      c, [](size_t) { return true; }, linears, problems);
  return problems.lines();
}

}  // namespace

TEST_CASE("stacks whose scales are along N are refused in either order of their dimensions") {
  for (const int64_t i : {32, 64, 128}) {
    CAPTURE(i);
    for (const bool by_columns : {false, true}) {
      const char* config = by_columns ? kColumns : kRows;
      const int k = by_columns ? 1 : 2;
      for (const int axis : {1, 2}) {
        Tensors tensors;
        const int64_t a = by_columns ? 64 : 2 * i, b = by_columns ? 2 * i : 64;
        add_nvfp4(tensors, kGateUp, a, b, axis);
        add_nvfp4(tensors, kDown, by_columns ? i : 64, by_columns ? 64 : i, axis);
        CHECK(problems_of(tensors, config).empty() == (axis == k));
      }
      // One of both.
      Tensors tensors;
      add_nvfp4(tensors, kGateUp, by_columns ? 64 : 2 * i, by_columns ? 2 * i : 64, k);
      add_nvfp4(tensors, kDown, by_columns ? i : 64, by_columns ? 64 : i, 3 - k);
      CHECK(!problems_of(tensors, config).empty());
    }
  }
}

TEST_CASE("a square matrix has the order of the other stack or of the family") {
  for (const char* config : {kRows, kColumns}) {
    for (const bool is_turned : {false, true}) {  // down, beside gate_up in the family's order
      Tensors tensors;
      const int k = config == kColumns ? 1 : 2;
      add_nvfp4(tensors, kGateUp, k == 1 ? 64 : 128, k == 1 ? 128 : 64, k);
      add_nvfp4(tensors, kDown, 64, 64, is_turned ? 3 - k : k);
      CHECK(problems_of(tensors, config).size() == (is_turned ? 1 : 0));
    }
  }
}

TEST_CASE("stacks of another hidden size than the config's, or than the other stack's, are refused") {
  for (const DType type : {DType::kBF16, DType::kF8E4M3}) {
    Tensors tensors;
    StoredTensor(type, {2, 64, 48}, 1).add_to(tensors, kGateUp);
    StoredTensor(type, {2, 48, 32}, 2).add_to(tensors, kDown);
    if (type == DType::kF8E4M3) {
      StoredTensor(DType::kF32, {2}, 3).add_to(tensors, kGateUp + "_scale_inv");
      StoredTensor(DType::kF32, {2}, 4).add_to(tensors, kDown + "_scale_inv");
    }
    const auto problems = problems_of(tensors, kRows);
    REQUIRE(problems.size() == 2);
    CHECK(contains(problems[0], "expected N = 64 as the config's hidden_size says, found N = 48 and K = 32"));
    CHECK(problems_of(tensors, R"({"model_type": "gemma4_text", "hidden_size": 48})").empty());
  }
}

}  // namespace expert_stacks_test
