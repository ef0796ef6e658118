#include "lib/base/names/weight_names.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace weight_names_test {

using namespace twofour;

namespace {

TensorInfo tensor(const std::string& name, size_t rank) {
  return {name, DType::kBF16, std::vector<int64_t>(rank, 2), 0, 0};
}

/// "tensor|other|above" of each, with spaces between them.
std::string homes(std::vector<TensorInfo> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  std::string all;
  for (const SecondHome& home : find_second_homes(tensors))
    all += (all.empty() ? "" : " ") + tensors[home.tensor].name + "|" + tensors[home.other].name + "|" +
           home.above;
  return all;
}

}  // namespace

TEST_CASE("weights in two formats are found, other tensors of a module are not") {
  CHECK(homes({tensor("x.weight", 2), tensor("x.weight_packed", 2)}) == "x.weight_packed|x.weight|x");
  CHECK(homes({tensor("x.weight", 2), tensor("x.qweight", 2)}) == "x.weight|x.qweight|x");
  CHECK(homes({tensor("x.weight", 2), tensor("x.weight_packed", 1)}) == "x.weight_packed|x.weight|x");
  CHECK(homes({tensor("l.mlp.experts.down_proj", 3), tensor("l.mlp.experts.down_proj_blocks", 4)}) ==
        "l.mlp.experts.down_proj_blocks|l.mlp.experts.down_proj|l.mlp.experts");
  CHECK(homes({tensor("x.weight", 1), tensor("x.bias", 1), tensor("x.weight_scale", 2), tensor("y.weight", 2),
               tensor("x.qweight", 2)}) == "");
}

TEST_CASE("a matrix by the names of two families is found") {
  const std::string e = "l.mlp.experts.0.";
  CHECK(homes({tensor(e + "gate_proj.weight", 2), tensor(e + "w1.weight_packed", 2)}) ==
        e + "w1.weight_packed|" + e + "gate_proj.weight|l.mlp.experts.0");
  CHECK(homes({tensor(e + "gate_proj.weight", 2), tensor(e + "w3.weight", 2), tensor(e + "w2.weight", 2),
               tensor("l.mlp.experts.1.w1.weight", 2), tensor("l.mlp.shared_experts.gate_proj.weight", 2)}) ==
        "");
}

TEST_CASE("a matrix by another family's name is found in blocks that this family does not have") {
  const std::string mlp = "model.layers.3.mlp.";
  for (const auto& [own, other] : {std::pair{"down_proj", "w2"}, {"gate_proj", "w1"}, {"up_proj", "w3"}}) {
    CHECK(homes({tensor(mlp + own + ".weight_packed", 2), tensor(mlp + other + ".weight", 2)}) ==
          mlp + own + ".weight_packed|" + mlp + other + ".weight|model.layers.3.mlp");
    CHECK(homes({tensor(mlp + own + ".weight", 2), tensor("model.layers.3.mixer." + std::string(other), 2)})
              .empty());
  }
  for (const auto& [fused, part] : {std::pair{"gate_up_proj", "w3"}, {"w13", "w1"}, {"w13", "up_proj"}})
    CHECK(!homes({tensor(mlp + fused + ".weight", 2), tensor(mlp + part + ".qweight", 2)}).empty());
  CHECK(
      homes({tensor(mlp + "gate_proj.weight", 2), tensor(mlp + "w2.weight", 2), tensor(mlp + "w3.weight", 2)})
          .empty());
}

TEST_CASE("a layer's matrix in and without a wrapper, or fused and in parts, is found") {
  const std::string down = "layers.0.mlp.down_proj.weight";
  const auto both = [&](const std::string& a, const std::string& b) {
    return homes({tensor(a + down, 2), tensor(b + down, 2)});
  };
  CHECK(both("language_model.model.", "model.") == "language_model.model." + down + "|model." + down +
                                                       "|language_model.model.layers.0.mlp.down_proj model." +
                                                       down + "|language_model.model." + down +
                                                       "|model.layers.0.mlp.down_proj");
  for (const char* wrapper : {"model.language_model.", "language_model.", "model.model.", ""})
    CHECK(!both("model.", wrapper).empty());
  CHECK(!both("", "language_model.model.").empty());
  for (const char* other : {"vision_tower.model.", "model.vision_tower.", "mtp.", "model.mtp.",
                            "eagle.model.", "talker.model.", "model.audio."})
    CHECK((both("model.", other).empty() && both("", other).empty()));
  const std::string l = "model.layers.0.";
  for (const auto& [fused, part] :
       {std::pair{"mlp.gate_up_proj", "mlp.up_proj"}, {"self_attn.qkv_proj", "self_attn.v_proj"}}) {
    CHECK(!homes({tensor(l + fused + ".weight", 2), tensor(l + part + ".weight_packed", 2)}).empty());
    CHECK(homes({tensor(l + fused + ".weight", 2),
                 tensor("model.layers.1." + std::string(part) + ".weight", 2)})
              .empty());
  }
}

TEST_CASE("an engine's own stack beside experts is found, alone it is not") {
  const std::string e = "model.layers.0.mlp.experts.", up = e + "0.up_proj.weight";
  for (const char* name :
       {"w13_weight", "w2_weight", "w13_weight_packed", "w2_weight_scale", "w13_qweight"}) {
    CHECK(homes({tensor(e + name, 3), tensor(up, 2)}) == up + "|" + e + name + "|model.layers.0.mlp.experts");
    CHECK(homes({tensor(e + name, 3), tensor("model.layers.1.mlp.experts.0.up_proj.weight", 2)}).empty());
  }
}

TEST_CASE("a stack beside experts of their own is found by the matrices that both hold") {
  const std::string e = "model.layers.0.mlp.experts.";
  const std::string stack = e + "gate_up_proj", above = "|model.layers.0.mlp.experts";
  CHECK(homes({tensor(stack, 3), tensor(e + "0.up_proj.weight_packed", 2)}) ==
        stack + "|" + e + "0.up_proj.weight_packed" + above);
  CHECK(homes({tensor(stack, 3), tensor(e + "7.gate_proj.qweight", 2)}) ==
        stack + "|" + e + "7.gate_proj.qweight" + above);
  CHECK(homes({tensor(stack + "_blocks", 4), tensor(e + "0.up_proj.weight", 2)}) ==
        stack + "_blocks|" + e + "0.up_proj.weight" + above);
  CHECK(homes({tensor("l.block_sparse_moe.input_linear.weight", 3),
               tensor("l.block_sparse_moe.experts.3.w1.weight", 2)}) ==
        "l.block_sparse_moe.input_linear.weight|l.block_sparse_moe.experts.3.w1.weight|l.block_sparse_moe");
  // Other matrices, another layer's, and scales hold none of them.
  CHECK(homes({tensor(stack, 3), tensor(e + "0.down_proj.weight", 2),
               tensor("model.layers.1.mlp.experts.0.up_proj.weight", 2),
               tensor(e + "0.up_proj.weight_scale", 2), tensor("model.layers.0.mlp.gate.weight", 2)}) == "");
}

}  // namespace weight_names_test
