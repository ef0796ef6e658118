#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>

#include "tests/support/faults/lint_changed.h"
#include "tests/support/faults/spoil.h"

// Biases that a config does not have: AutoGPTQ stores zeros for every linear, which change nothing.

namespace zero_biases_test {

using namespace twofour;
using namespace twofour::spoil;

namespace {

constexpr int kLayers = 3;

/// Biases of `module` in all layers. That of the last layer has `last` as its one number that is not zero.
Change biases(const std::string& module, float last) {
  return [=](Save& save, std::mt19937&) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::string name = fmt::format("model.layers.{}.{}", layer, module);
      int64_t rows = 0;
      for (const TensorData* part : tensors(save, name + ".weight*"))
        if (part->shape.size() == 2) rows = part->shape[0];
      TensorData t{name + ".bias", DType::kF32, {rows}, {}};
      t.bytes.resize(4 * static_cast<size_t>(t.shape[0]));
      if (layer == kLayers - 1) std::memcpy(&t.bytes[40], &last, 4);
      save.add(t);
    }
  };
}

}  // namespace

TEST_CASE("biases of zeros are harmless, in modules that may have one and in others") {
  for (const Base base : {Base::kLlama, Base::kLlamaCt, Base::kUnknown}) {
    const std::set<std::string> none = rules_of_change(base, all_of({}));
    std::vector<Change> all;
    for (const char* module : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                               "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      CAPTURE(std::string(module));
      CHECK(rules_of_change(base, biases(module, 0)) == none);
      all.push_back(biases(module, 0));
    }
    CHECK(rules_of_change(base, all_of(all)) == none);
  }
}

TEST_CASE("one number of a bias that is not zero is a bias") {
  for (const char* module : {"self_attn.q_proj", "mlp.down_proj"}) {
    CAPTURE(std::string(module));
    CHECK_FALSE(rules_of_change(Base::kLlama, biases(module, 0.5f)).empty());
  }
}

}  // namespace zero_biases_test
