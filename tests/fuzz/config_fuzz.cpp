#include <fstream>

#include "tests/fuzz/fuzz.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

using namespace twofour;

namespace {

/// A sound checkpoint whose configs change.
struct FuzzedSource : Scratch {
  FuzzedSource() {
    Tensors tensors;
    add_experts(tensors, "model.layers.0.mlp.experts", random_experts(2, 8, 16));
    add_bf16(tensors, "model.layers.0.self_attn.q_proj.weight", {16, 16});
    write_checkpoint(path, {tensors});
  }
  void write(const char* name, std::string_view text) const {
    std::ofstream(path / name, std::ios::binary | std::ios::trunc) << text;
  }
};

}  // namespace

void twofour::fuzz_config(const uint8_t* data, size_t size) {
  static const FuzzedSource source;
  const std::string_view text = text_of(data, size);
  source.write("config.json", text.substr(0, text.find('\0')));
  source.write("hf_quant_config.json",
               text.find('\0') == text.npos ? "{}" : text.substr(text.find('\0') + 1));
  expect_error_at_most([&] {
    const Checkpoint checkpoint = Checkpoint::open(source.path);
    for (const auto& [layout, dialect] : {std::pair("v7", ""), std::pair("nvfp4", "compressed-tensors"),
                                          std::pair("nvfp4", "modelopt"), std::pair("bf16", "")}) {
      OneRule recipe;
      recipe.to = layout;
      recipe.dialect = dialect;
      expect_error_at_most([&] {
        const Plan plan = make_plan(checkpoint, recipe);
        for (const auto& [name, written] : plan.config.texts) parse_json(name, written);
      });
    }
  });
}
