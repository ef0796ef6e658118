#include "formats/dialect.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "tests/support/message.h"

namespace dialect_test {

using namespace twofour;

namespace {

constexpr DType kU8 = DType::kU8, kE4m3 = DType::kF8E4M3, kF32 = DType::kF32, kBf16 = DType::kBF16;

TensorInfo tensor(std::string name, DType dtype, std::vector<int64_t> shape) {
  return {std::move(name), dtype, std::move(shape)};
}

struct Found {
  std::vector<TensorInfo> tensors;  ///< sorted
  std::vector<Nvfp4Linear> modules;
  std::string name_of(size_t index) const { return tensors[index].name; }
};

Found find(std::vector<TensorInfo> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](auto& a, auto& b) { return a.name < b.name; });
  auto modules = find_nvfp4_modules(tensors, [](size_t) { return "m.safetensors"; });
  return {std::move(tensors), std::move(modules)};
}

std::string refusal(std::vector<TensorInfo> tensors) {
  return message_of([&] { find(std::move(tensors)); });
}

/// A module of N = 6, K = 32.
std::vector<TensorInfo> modelopt() {
  return {tensor("l.q.weight", kU8, {6, 16}), tensor("l.q.weight_scale", kE4m3, {6, 2}),
          tensor("l.q.weight_scale_2", kF32, {}), tensor("l.q.input_scale", kF32, {})};
}

/// The same, of q, k and v.
std::vector<TensorInfo> fused() {
  std::vector<TensorInfo> tensors = modelopt();
  for (TensorInfo& t : tensors) t.name.replace(0, 3, "l.qkv_proj");
  return tensors;
}

std::vector<TensorInfo> compressed_tensors() {
  return {tensor("l.q.weight_packed", kU8, {6, 16}), tensor("l.q.weight_scale", kE4m3, {6, 2}),
          tensor("l.q.weight_global_scale", kF32, {1}), tensor("l.q.input_global_scale", kF32, {1})};
}

/// Three experts of N = 10, K = 64, K along the dimension before the last.
std::vector<TensorInfo> stack() {
  return {tensor("x.gate_up_proj", kU8, {3, 32, 10}),
          tensor("x.gate_up_proj_weight_scale", kE4m3, {3, 4, 10}),
          tensor("x.gate_up_proj_weight_scale_2", kF32, {3}), tensor("x.gate_up_proj_input_scale", kF32, {})};
}

/// `tensors` with one of them made another.
std::vector<TensorInfo> change(std::vector<TensorInfo> tensors, size_t which, DType dtype,
                               std::vector<int64_t> shape) {
  tensors[which].dtype = dtype;
  tensors[which].shape = std::move(shape);
  return tensors;
}

std::vector<TensorInfo> without(std::vector<TensorInfo> tensors, size_t which) {
  tensors.erase(tensors.begin() + static_cast<ptrdiff_t>(which));
  return tensors;
}

}  // namespace

TEST_CASE("a ModelOpt module is its weight, weight_scale, weight_scale_2 and input_scale") {
  const Found found = find(modelopt());
  REQUIRE(found.modules.size() == 1);
  const Nvfp4Linear& m = found.modules[0];
  CHECK(m.name == "l.q");
  CHECK(std::string(m.dialect->name) == "modelopt");
  CHECK(!m.dialect->divides);
  CHECK(found.name_of(m.codes) == "l.q.weight");
  CHECK(found.name_of(m.block_scale) == "l.q.weight_scale");
  CHECK(found.name_of(m.global_scale) == "l.q.weight_scale_2");
  REQUIRE(m.input_scale);
  CHECK(found.name_of(*m.input_scale) == "l.q.input_scale");
  CHECK(m.e == 1);
  CHECK(m.n == 6);
  CHECK(m.k == 32);
  CHECK(!m.k_outer);
}

TEST_CASE("a compressed-tensors module is its weight_packed, weight_scale and global scales, which divide") {
  const Found found = find(compressed_tensors());
  REQUIRE(found.modules.size() == 1);
  const Nvfp4Linear& m = found.modules[0];
  CHECK(m.name == "l.q");
  CHECK(std::string(m.dialect->name) == "compressed-tensors");
  CHECK(m.dialect->divides);
  CHECK(found.name_of(m.codes) == "l.q.weight_packed");
  CHECK(found.name_of(m.global_scale) == "l.q.weight_global_scale");
  REQUIRE(m.input_scale);
  CHECK(found.name_of(*m.input_scale) == "l.q.input_global_scale");
  CHECK(m.n == 6);
  CHECK(m.k == 32);
}

TEST_CASE("Quark's modules have ModelOpt's names and an input scale of their own") {
  std::vector<TensorInfo> tensors = modelopt();
  tensors[3].name = "l.q.input_scale_2";
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1}}) {
    const Found found = find(change(tensors, 3, kF32, shape));
    REQUIRE(found.modules.size() == 1);
    CHECK(std::string(found.modules[0].dialect->name) == "quark");
    CHECK(!found.modules[0].dialect->divides);
    CHECK(found.name_of(*found.modules[0].input_scale) == "l.q.input_scale_2");
    CHECK(found.modules[0].k == 32);
  }
  // One of many numbers is nobody's.
  CHECK(std::string(find(change(tensors, 3, kF32, {2})).modules.at(0).dialect->name) == "modelopt");
}

TEST_CASE("weight-only checkpoints have no input scale") {
  CHECK(!find(without(modelopt(), 3)).modules.at(0).input_scale);
  CHECK(!find(without(compressed_tensors(), 3)).modules.at(0).input_scale);
  CHECK(!find(without(stack(), 3)).modules.at(0).input_scale);
}

TEST_CASE("a global scale is 0-d or [1], of a stack also [E] or [E, 1, 1]") {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1}}) {
    CHECK(find(change(modelopt(), 2, kF32, shape)).modules.size() == 1);
    CHECK(find(change(compressed_tensors(), 2, kF32, shape)).modules.size() == 1);
    CHECK(find(change(stack(), 2, kF32, shape)).modules.size() == 1);
  }
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3}, {3, 1, 1}}) {
    CHECK(find(change(stack(), 2, kF32, shape)).modules.size() == 1);
    CHECK(refusal(change(modelopt(), 2, kF32, shape))
              .starts_with("m.safetensors: l.q.weight_scale_2: expected F32"));
  }
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0}, {2}, {4}, {3, 1}, {1, 3}, {3, 1, 2}}) {
    CHECK(refusal(change(stack(), 2, kF32, shape))
              .starts_with("m.safetensors: x.gate_up_proj_weight_scale_2: expected F32"));
  }
}

TEST_CASE("a stack of experts says by its shapes which dimension is K") {
  const Nvfp4Linear outer = find(stack()).modules.at(0);
  CHECK(outer.name == "x.gate_up_proj");
  CHECK(outer.dialect->stacked);
  CHECK(outer.k_outer);
  CHECK(outer.e == 3);
  CHECK(outer.n == 10);
  CHECK(outer.k == 64);
  const Nvfp4Linear inner =
      find(change(change(stack(), 0, kU8, {3, 10, 32}), 1, kE4m3, {3, 10, 4})).modules.at(0);
  CHECK(!inner.k_outer);
  CHECK(inner.e == 3);
  CHECK(inner.n == 10);
  CHECK(inner.k == 64);
  // A square stack: only its scales tell.
  CHECK(find(change(change(stack(), 0, kU8, {3, 32, 32}), 1, kE4m3, {3, 4, 32})).modules.at(0).k_outer);
  CHECK(!find(change(change(stack(), 0, kU8, {3, 32, 32}), 1, kE4m3, {3, 32, 4})).modules.at(0).k_outer);
}

TEST_CASE("a compressed-tensors global scale G becomes 1/G by one float32 division") {
  const auto &modelopt_dialect = *find(modelopt()).modules[0].dialect,
             &ct_dialect = *find(compressed_tensors()).modules[0].dialect;
  for (const float g : {1.0f, 3.0f, 1234.5f, 1e-8f, 0x1p-126f}) {
    CHECK(std::bit_cast<uint32_t>(global_scale_multiplier(modelopt_dialect, g)) ==
          std::bit_cast<uint32_t>(g));
    const float reciprocal = static_cast<float>(1.0 / double{g});  // exact enough to round once
    CHECK(std::bit_cast<uint32_t>(global_scale_multiplier(ct_dialect, g)) ==
          std::bit_cast<uint32_t>(reciprocal));
  }
}

TEST_CASE("modules come in the order of names, and everything else is left alone") {
  std::vector<TensorInfo> all = {
      tensor("l.norm.weight", kBf16, {6}),      tensor("embed.weight", kBf16, {9, 6}),
      tensor("l.k.k_scale", kF32, {}),          tensor("l.mx.weight_packed", kU8, {4, 16}),
      tensor("l.mx.weight_scale", kU8, {4, 1}), tensor("l.fp8.weight", kE4m3, {4, 16}),
      tensor("l.fp8.weight_scale", kF32, {}),   tensor("l.b_proj_blocks", kU8, {2, 4, 1, 16}),
      tensor("l.b_proj_scales", kU8, {2, 4, 1})};
  for (const auto& part : {modelopt(), stack()}) all.insert(all.end(), part.begin(), part.end());
  for (const char* name : {"l.a", "l.z"}) {
    all.push_back(tensor(name + std::string(".weight_packed"), kU8, {2, 8}));
    all.push_back(tensor(name + std::string(".weight_scale"), kE4m3, {2, 1}));
    all.push_back(tensor(name + std::string(".weight_global_scale"), kF32, {}));
  }
  std::vector<std::string> names;
  for (const Nvfp4Linear& m : find(all).modules) names.push_back(m.name);
  CHECK(names == std::vector<std::string>{"l.a", "l.q", "l.z", "x.gate_up_proj"});
}

TEST_CASE("a scale whose codes or block scales are missing is refused by name") {
  CHECK(refusal(without(modelopt(), 0)) ==
        "m.safetensors: l.q.weight_scale_2: expected l.q.weight beside it, found none");
  CHECK(refusal(without(modelopt(), 1)) ==
        "m.safetensors: l.q.weight_scale_2: expected l.q.weight_scale beside it, found none");
  CHECK(refusal(without(compressed_tensors(), 0)) ==
        "m.safetensors: l.q.weight_global_scale: expected l.q.weight_packed beside it, found none");
  CHECK(refusal(without(compressed_tensors(), 1)) ==
        "m.safetensors: l.q.weight_global_scale: expected l.q.weight_scale beside it, found none");
  CHECK(refusal(without(stack(), 0)) ==
        "m.safetensors: x.gate_up_proj_weight_scale_2: expected x.gate_up_proj beside it, found none");
  CHECK(refusal(without(stack(), 1)) ==
        "m.safetensors: x.gate_up_proj_weight_scale_2: expected x.gate_up_proj_weight_scale beside it, found "
        "none");
}

TEST_CASE("a tensor of the wrong type is refused with what was expected and found") {
  struct Row {
    std::vector<TensorInfo> tensors;
    std::string message;
  };
  const Row rows[] = {
      {change(modelopt(), 0, DType::kI8, {6, 16}),
       "l.q.weight: expected U8 codes, two to a byte, found I8 [6, 16]"},
      {change(modelopt(), 0, DType::kF4, {6, 32}),
       "l.q.weight: expected U8 codes, two to a byte, found F4 [6, 32]"},
      {change(modelopt(), 1, kU8, {6, 2}),
       "l.q.weight_scale: expected F8_E4M3 block scales, found U8 [6, 2]"},
      {change(modelopt(), 1, DType::kF8E8M0, {6, 2}),
       "l.q.weight_scale: expected F8_E4M3 block scales, found F8_E8M0 [6, 2]"},
      {change(modelopt(), 1, kF32, {6, 2}),
       "l.q.weight_scale: expected F8_E4M3 block scales, found F32 [6, 2]"},
      {change(modelopt(), 2, kBf16, {}), "l.q.weight_scale_2: expected F32 [] or [1], found BF16 []"},
      {change(modelopt(), 2, DType::kF64, {1}), "l.q.weight_scale_2: expected F32 [] or [1], found F64 [1]"},
      {change(compressed_tensors(), 0, DType::kI32, {6, 4}),
       "l.q.weight_packed: expected U8 codes, two to a byte, found I32 [6, 4]"},
      {change(compressed_tensors(), 2, kBf16, {1}),
       "l.q.weight_global_scale: expected F32 [] or [1], found BF16 [1]"},
      {change(fused(), 2, kF32, {3}),
       "l.qkv_proj.weight_scale_2: expected F32 [] or [1], found F32 [3], a scale for each of 3 fused "
       "matrices"},
      {change(stack(), 0, kBf16, {3, 32, 10}),
       "x.gate_up_proj: expected U8 codes, two to a byte, found BF16 [3, 32, 10]"},
      {change(stack(), 2, kBf16, {3}),
       "x.gate_up_proj_weight_scale_2: expected F32 [], [1] or [3], found BF16 [3]"},
  };
  for (const Row& row : rows) CHECK(refusal(row.tensors) == "m.safetensors: " + row.message);
}

TEST_CASE("block scales for 32 weights make another format's module") {
  CHECK(find_nvfp4_modules(change(modelopt(), 1, kE4m3, {6, 1}), [](size_t) { return "m"; }).empty());
}

TEST_CASE("an engine's own names of a stack are named") {
  auto tensors = stack();
  for (TensorInfo& t : tensors)
    t.name = t.name == "x.gate_up_proj" ? "x.w13_weight" : "x.w13" + t.name.substr(14);
  CHECK(refusal(tensors) ==
        "m.safetensors: x.w13_weight_scale_2: expected the names of a checkpoint, found those of an engine's "
        "own "
        "stack of experts, which is not supported");
}

TEST_CASE("packings of other programs are known by names and types") {
  struct Row {
    DType type;
    std::vector<int64_t> shape;
    const char* beside;
    DType beside_type;
    std::vector<int64_t> beside_shape;
    const char* format;
  };
  const Row rows[] = {
      {DType::kU32, {8, 16}, ".biases", DType::kBF16, {8, 2}, "MLX's affine codes"},
      {DType::kU32, {8, 16}, ".scales", DType::kU8, {8, 8}, "MLX's NVFP4"},
      {DType::kU32, {8, 16}, ".scales", DType::kU8, {8, 4}, "MLX's MXFP4"},
      {DType::kU8, {4, 128}, ".weight_scale", DType::kF32, {8, 1}, "ModelOpt's INT4, as of W4A16_AWQ"},
      {DType::kU8, {64, 1}, ".weight.absmax", DType::kU8, {2}, "bitsandbytes' codes of four bits"},
      {DType::kI8, {8, 16}, ".SCB", DType::kF32, {8}, "bitsandbytes' INT8"},
      {DType::kU8,
       {8, 16},
       ".weight_quantizer.scale",
       DType::kU8,
       {8, 1},
       "Quark's codes beside weight_quantizer.scale"},
      {DType::kI32, {8, 16}, ".weight_scale", DType::kBF16, {8, 1}, "Quark's INT4"},
      {DType::kU8, {8, 48}, ".weight_scale", DType::kU8, {8, 2}, "Quark's MXFP6"},
      {DType::kU8, {8, 16}, ".weight_scale", DType::kU8, {8, 1}, ""},  // MXFP4
      {DType::kU8, {8, 8}, ".weight_scale", DType::kF8E4M3, {8, 1}, ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.format);
    std::vector<TensorInfo> tensors{{"m.weight", row.type, row.shape, 0, 0},
                                    {std::string("m") + row.beside, row.beside_type, row.beside_shape, 0, 0}};
    std::ranges::sort(tensors, {}, &TensorInfo::name);
    const std::vector<UnreadCodes> found = find_unread_codes(tensors);
    REQUIRE(found.size() == (*row.format != 0));
    if (*row.format == 0) continue;
    CHECK(found[0].format == std::string_view(row.format));
    CHECK(found[0].module == "m");
  }
}

TEST_CASE("shapes that disagree are refused with the tensor, what was expected and what was found") {
  struct Row {
    std::vector<TensorInfo> tensors;
    std::string message;
  };
  const auto scales = [](const char* found) {
    return std::string("l.q.weight_scale: expected F8_E4M3 [6, 2], found F8_E4M3 ") + found;
  };
  const Row rows[] = {
      {change(modelopt(), 1, kE4m3, {6, 4}), scales("[6, 4]")},  // blocks of 8
      {change(modelopt(), 1, kE4m3, {5, 2}), scales("[5, 2]")},
      {change(modelopt(), 1, kE4m3, {2, 6}), scales("[2, 6]")},
      {change(modelopt(), 1, kE4m3, {0, 2}), scales("[0, 2]")},
      {change(modelopt(), 1, kE4m3, {128, 4}), scales("[128, 4]")},  // swizzled
      {change(modelopt(), 1, kE4m3, {12}), "l.q.weight_scale: expected 2 dimensions, found F8_E4M3 [12]"},
      {change(modelopt(), 1, kE4m3, {}), "l.q.weight_scale: expected 2 dimensions, found F8_E4M3 []"},
      {change(modelopt(), 0, kU8, {96}), "l.q.weight: expected 2 dimensions, found U8 [96]"},
      {change(modelopt(), 0, kU8, {1, 6, 16}),
       "l.q.weight: expected the names of a linear, or ModelOpt's of a stack, found a stack of experts, U8 "
       "[1, 6, "
       "16], under the names of a linear, which is not supported"},
      {change(modelopt(), 0, kU8, {6, 12}), "l.q.weight: expected K a multiple of 16, found U8 [6, 12]"},
      {change(modelopt(), 0, kU8, {6, 17}), "l.q.weight: expected K a multiple of 16, found U8 [6, 17]"},
      {change(modelopt(), 0, kU8, {6, 1}), "l.q.weight: expected K a multiple of 16, found U8 [6, 1]"},
      // A stack with K before the last dimension and N no multiple of 8: the other way cannot be meant.
      {change(stack(), 1, kE4m3, {3, 2, 10}),
       "x.gate_up_proj_weight_scale: expected F8_E4M3 [3, 4, 10], found F8_E4M3 [3, 2, 10]"},
      {change(stack(), 1, kE4m3, {2, 4, 10}),
       "x.gate_up_proj_weight_scale: expected F8_E4M3 [3, 4, 10], found F8_E4M3 [2, 4, 10]"},
      {change(change(stack(), 0, kU8, {3, 10, 32}), 1, kE4m3, {3, 10, 2}),
       "x.gate_up_proj_weight_scale: expected scales for 16 weights, found scales for 32, F8_E4M3 [3, 10, "
       "2], "
       "in a stack of experts, which is not supported"},
      {change(change(stack(), 0, kU8, {3, 10, 32}), 1, kE4m3, {3, 10, 3}),
       "x.gate_up_proj_weight_scale: expected F8_E4M3 [3, 10, 4], found F8_E4M3 [3, 10, 3]"},
      {change(change(stack(), 0, kU8, {3, 16, 32}), 1, kE4m3, {3, 16, 32}),
       "x.gate_up_proj_weight_scale: expected F8_E4M3 [3, 16, 4] or F8_E4M3 [3, 2, 32], found F8_E4M3 [3, "
       "16, 32]"},
      {change(stack(), 0, kU8, {3, 33, 10}),
       "x.gate_up_proj: expected K a multiple of 16, found U8 [3, 33, 10]"},
      {change(stack(), 0, kU8, {32, 10}), "x.gate_up_proj: expected 3 dimensions, found U8 [32, 10]"},
      {change(stack(), 1, kE4m3, {4, 10}),
       "x.gate_up_proj_weight_scale: expected 3 dimensions, found F8_E4M3 [4, 10]"},
  };
  for (const Row& row : rows) CHECK(refusal(row.tensors) == "m.safetensors: " + row.message);
}

TEST_CASE("a module without weights is refused, whatever its other dimensions") {
  constexpr int64_t kHuge = int64_t{1} << 62;
  for (const auto& [codes, scales] : {std::pair<std::vector<int64_t>, std::vector<int64_t>>{{0, 16}, {0, 2}},
                                      {{6, 0}, {6, 0}},
                                      {{0, kHuge}, {0, kHuge / 8}},
                                      {{kHuge, 0}, {kHuge, 0}}}) {
    const auto tensors = change(change(modelopt(), 0, kU8, codes), 1, kE4m3, scales);
    CHECK(
        refusal(tensors).starts_with("m.safetensors: l.q.weight: expected at least one weight, found U8 ["));
  }
  for (const auto& [codes, scales] :
       {std::pair<std::vector<int64_t>, std::vector<int64_t>>{{0, 16, 4}, {0, 2, 4}},
        {{3, 0, 4}, {3, 0, 4}},
        {{0, kHuge, 5}, {0, kHuge, 5}},
        {{0, 5, kHuge}, {0, 5, kHuge}}}) {
    const auto tensors = change(change(stack(), 0, kU8, codes), 1, kE4m3, scales);
    CHECK(refusal(tensors).starts_with(
        "m.safetensors: x.gate_up_proj: expected at least one weight, found U8 ["));
  }
  // Scales without elements may claim any dimension too.
  CHECK(refusal(change(modelopt(), 1, kE4m3, {0, kHuge}))
            .starts_with("m.safetensors: l.q.weight_scale: expected F8_E4M3 [6, 2]"));
  CHECK(refusal(change(stack(), 1, kE4m3, {0, kHuge, 0}))
            .starts_with("m.safetensors: x.gate_up_proj_weight_scale: expected"));
}

TEST_CASE("a tensor is found by its whole name") {
  const Found found = find(modelopt());
  for (size_t i = 0; i < found.tensors.size(); ++i)
    CHECK(find_tensor(found.tensors, found.tensors[i].name) == i);
  for (const char* name : {"", "l.q.weigh", "l.q.weight_scale_", "z", "a"})
    CHECK(!find_tensor(found.tensors, name));
  CHECK(!find_tensor({}, "a"));
}

}  // namespace dialect_test
