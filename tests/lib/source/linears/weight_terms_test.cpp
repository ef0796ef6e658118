#include <doctest/doctest.h>

#include <filesystem>
#include <map>

#include "lib/base/names/block_orders.h"
#include "lib/source/linears/weight_terms.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/message.h"
#include "tests/support/weights/stored_weights.h"

namespace weight_terms_test {

using namespace twofour;

namespace {

TensorData int32s(const std::string& name, std::vector<int64_t> shape, const std::vector<int32_t>& values) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  return {name, DType::kI32, std::move(shape), {bytes, bytes + values.size() * sizeof(int32_t)}};
}

/// Names of the linears that terms are found beside, of an NVFP4 linear "m" with another tensor beside it.
std::string found_with(const TensorData& term) {
  Tensors tensors;
  add_modelopt(tensors, "m", random_matrix(16, 64, 1));
  tensors.push_back(term);
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors);
  std::string names;
  for (const WeightTerm& t : find_weight_terms(access_to(c))) {
    CHECK(c.tensors()[t.tensor].name == term.name);
    CHECK(contains(
        t.problem,
        "expected weights that consist of values and scales only, found this tensor beside " + t.linear));
    names += t.linear;
  }
  return names;
}

std::vector<int32_t> groups_of(int32_t size, int32_t count = 64) {
  std::vector<int32_t> groups;
  for (int32_t i = 0; i < count; ++i) groups.push_back(i / size);
  return groups;
}

}  // namespace

TEST_CASE("tensors beside a linear that change its weights are found") {
  for (const char* suffix :
       {".pre_quant_scale", ".svdquant_lora_a", ".svdquant_lora_b", ".lora_A.weight",
        ".lora_B.default.weight", ".lora_magnitude_vector", ".smooth_scales", ".channel_scales",
        ".pre_quant_scales", ".online_rotation", ".weight_mask", ".weight_orig"}) {
    CAPTURE(suffix);
    CHECK(found_with({"m" + std::string(suffix), DType::kBF16, {1}, {0, 0}}) == "m");
  }
  CHECK(found_with({"m.input_scale_2", DType::kBF16, {2}, {0, 0, 0, 0}}) == "m");
  CHECK(found_with({"m.input_scale_2", DType::kBF16, {1}, {0, 0}}).empty());   // Quark's
  CHECK(found_with({"m_pre_quant_scale", DType::kBF16, {1}, {0, 0}}) == "m");  // as of stacks
  for (const char* other : {"m.bias", "m.k_scale", "m.weight_shape", "mx.lora"})
    CHECK(found_with({other, DType::kBF16, {1}, {0, 0}}).empty());
}

TEST_CASE("a shape beside codes that is not theirs is found with both readings") {
  const auto problems = [](const std::vector<int64_t>& shape, DType type = DType::kI64) {
    Tensors tensors;
    for (const char* dialect : {"m", "c"})
      dialect[0] == 'm' ? add_modelopt(tensors, dialect, random_matrix(16, 64, 1))
                        : add_compressed_tensors(tensors, dialect, random_matrix(16, 64, 1));
    for (const char* name : {"m.weight_shape", "c.weight_shape"}) {
      std::vector<uint8_t> bytes;
      for (const int64_t n : shape)
        for (int b = 0; b < dtype_bits(type); b += 8) bytes.push_back(static_cast<uint8_t>(n >> b));
      tensors.push_back({name, type, {static_cast<int64_t>(shape.size())}, bytes});
    }
    const Scratch scratch;
    std::string all;
    for (const WeightTerm& t : find_weight_terms(access_to(open_checkpoint(scratch, tensors))))
      all += t.linear + ": " + t.problem + "\n";
    return all;
  };
  CHECK(problems({16, 64}).empty());
  CHECK(problems({16, 64}, DType::kI32).empty());
  CHECK(problems({64, 16}) ==
        "c: expected N and K of c.weight_packed, [16, 64], found [64, 16]\n"
        "m: expected N and K of m.weight, [16, 64], found [64, 16]\n");
  CHECK(contains(problems({16, 32}, DType::kI32), "found [16, 32]"));
}

TEST_CASE("zero points change weights where they are not zero") {
  for (const DType type : {DType::kI8, DType::kU8, DType::kI32, DType::kBF16, DType::kF8E4M3}) {
    const auto width = static_cast<size_t>(dtype_bits(type)) / 8;
    TensorData t{"m.weight_zero_point", type, {4}, std::vector<uint8_t>(4 * width)};
    CHECK(found_with(t).empty());
    for (size_t i = 0; i < t.bytes.size(); ++i) {
      t.bytes[i] = 1;
      CHECK(found_with(t) == "m");
      t.bytes[i] = 0;
    }
  }
  // -0 is 0, -128 is not.
  CHECK(found_with({"m.weight_zero_point", DType::kBF16, {1}, {0, 0x80}}).empty());
  CHECK(found_with({"m.weight_zero_point", DType::kI8, {1}, {0x80}}) == "m");
}

TEST_CASE("an order of groups changes weights where it is not the order of inputs") {
  for (const char* suffix : {".weight_g_idx", ".g_idx"}) {
    const std::string name = "m" + std::string(suffix);
    for (const int32_t size : {1, 16, 32, 64}) CHECK(found_with(int32s(name, {64}, groups_of(size))).empty());
    CHECK(found_with(int32s(name, {64}, std::vector<int32_t>(64, -1))).empty());
    std::vector<int32_t> swapped = groups_of(16);
    std::swap(swapped[15], swapped[16]);
    CHECK(found_with(int32s(name, {64}, swapped)) == "m");
    CHECK(found_with(int32s(name, {64}, groups_of(24))) == "m");  // a group that is shorter
    std::vector<int32_t> unset = groups_of(16);
    unset[63] = -1;
    CHECK(found_with(int32s(name, {64}, unset)) == "m");
    CHECK(found_with({name, DType::kF32, {1}, {0, 0, 0, 0}}) == "m");  // no integers
  }
  // Without a look at values nothing is claimed.
  Tensors tensors;
  add_modelopt(tensors, "m", random_matrix(16, 64, 1));
  tensors.push_back(int32s("m.g_idx", {2}, {1, 0}));
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors);
  CHECK(find_weight_terms({.tensors = c.tensors()}).empty());
  CHECK(find_weight_terms(access_to(c)).size() == 1);
}

TEST_CASE("zero points and orders of groups beside INT4 are accounted for, other terms are not") {
  Tensors tensors{{"m.qweight", DType::kI32, {1}, {0, 0, 0, 0}},
                  {"x.weight_packed", DType::kI32, {1}, {0, 0, 0, 0}}};
  for (const char* name : {"m.g_idx", "m.qzeros", "x.weight_g_idx", "x.weight_zero_point"})
    tensors.push_back(int32s(name, {2}, {1, 0}));
  const auto count = [&] {
    const Scratch scratch;
    return find_weight_terms(access_to(open_checkpoint(scratch, tensors))).size();
  };
  CHECK(count() == 0);
  add_bf16(tensors, "m.pre_quant_scale", {1});
  add_bf16(tensors, "x.lora_A.weight", {1, 1});
  CHECK(count() == 2);
}

TEST_CASE("terms of one producer's INT4 beside another's are found") {
  const auto count = [](const char* codes, const char* term) {
    const Tensors tensors{{"m" + std::string(codes), DType::kI32, {1}, {0, 0, 0, 0}},
                          int32s("m" + std::string(term), {2}, {1, 0})};
    const Scratch scratch;
    return find_weight_terms(access_to(open_checkpoint(scratch, tensors))).size();
  };
  for (const char* term : {".qzeros", ".g_idx"}) {
    CHECK(count(".qweight", term) == 0);
    CHECK(count(".weight_packed", term) == 1);
  }
  for (const char* term : {".weight_zero_point", ".weight_g_idx"}) {
    CHECK(count(".weight_packed", term) == 0);
    CHECK(count(".qweight", term) == 1);
  }
}

TEST_CASE("zero points beside weights whose decoder does not know them are found") {
  CHECK(found_with(int32s("m.qzeros", {1}, {0})) == "m");
  Tensors tensors;
  StoredTensor(DType::kI8, {4, 16}, 1).add_to(tensors, "m.weight");
  tensors.push_back(int32s("m.weight_zero_point", {1}, {3}));
  const Scratch scratch;
  CHECK(find_weight_terms(access_to(open_checkpoint(scratch, tensors))).size() == 1);
}

TEST_CASE(
    "parts of codes that are not there make a module incomplete, once, and not in a part of a checkpoint") {
  const Tensors tensors{int32s("m.g_idx", {2}, {1, 0}), int32s("m.qzeros", {2}, {1, 0}),
                        int32s("x.weight_g_idx", {2}, {1, 0})};
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors);
  TensorAccess access = access_to(c);
  const std::vector<WeightTerm> found = find_weight_terms(access);
  REQUIRE(found.size() == 2);
  CHECK(found[0].linear == "m");
  CHECK(found[1].linear == "x");
  for (const WeightTerm& term : found) {
    CHECK(!term.weight);
    CHECK(std::string(term.rule) == "incomplete-module");
  }
  access.is_part = true;
  CHECK(find_weight_terms(access).empty());
}

namespace {

/// What is found of a term in a checkpoint of BF16 experts and a vision tower: where it counts, "-" for
/// nothing, and whether commands that read `read` refuse it.
struct Lost {
  std::string scope;
  bool of_experts, of_tower;
};
Lost lost(const std::string& term) {
  Tensors tensors;
  const std::string block = "model.layers.0.mlp.experts";
  add_bf16(tensors, block + ".0.down_proj.weight", {4, 4});
  add_bf16(tensors, "vision.blocks.0.fc1.weight", {4, 4});
  add_bf16(tensors, term, {4});
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors);
  const auto found = find_weight_terms(access_to(c));
  const auto refuses = [&](const std::string& part) {
    Problems problems;
    refuse_changed_weights(
        c, [&](size_t i) { return c.tensors()[i].name.find(part) != std::string::npos; }, {}, problems);
    return !problems.empty();
  };
  const std::string scope = found.empty() ? "-" : found[0].scope.value_or(found[0].linear);
  return {scope, refuses(".down_proj.weight"), refuses("fc1")};
}

}  // namespace

TEST_CASE("a term of no linear counts for what is below the nearest module or block that is there") {
  const std::string block = "model.layers.0.mlp.experts", expert = block + ".0.down_proj";
  const std::map<std::string, std::string> terms = {
      // By a quantizer, and without it.
      {expert + ".pre_quant_scale", expert},
      {expert + "._pre_quant_scale", expert},
      {expert + ".input_quantizer._pre_quant_scale", expert},
      {expert + ".weight_quantizer.svdquant_lora_b", expert},
      {expert + ".base_layer.smooth_factor", expert},
      {expert + "_channel_scale", expert},
      {expert + ".oft_r.default.weight", expert},
      // Of all experts.
      {block + ".down_proj.pre_quant_scale", block},
      {block + ".down_proj_input_quantizer._pre_quant_scale", block},
      {block + ".input_quantizer.pre_quant_scale", block},
      {block + ".w2_lora_A.weight", block},
      {block + ".7.down_proj.weight_perm", block},
      {"model.layers.0.mlp.input_quantizer._pre_quant_scale", "model.layers.0.mlp"},
      {"model.layers.0.mlp.act_fn.scales", "model.layers.0.mlp"},
      // Under another prefix, or of the file as a whole.
      {"module." + expert + ".smooth_scale", ""},
      {"base_model.model." + expert + ".lora_B.weight", ""},
      {"model.layers.1.mlp.down_proj.hadamard", ""},
      {"scaled_fp8", ""}};
  for (const auto& [term, scope] : terms) {
    CAPTURE(term);
    const Lost found = lost(term);
    CHECK(found.scope == scope);
    CHECK(found.of_experts);
    CHECK(found.of_tower == scope.empty());
  }
  CHECK(lost("vision.blocks.0.mlp.pre_quant_scale").of_tower);
  CHECK(!lost("vision.blocks.0.mlp.pre_quant_scale").of_experts);
  // Names that end alike and are no terms.
  for (const char* name :
       {"model.layers.0.mlp.experts.0.down_proj.scale", "model.layers.0.attn.kv_lora_norm.weight",
        "model.scales", "vision.blocks.0.norm.scale",
        "model.layers.0.mlp.experts.0.down_proj.weight_quantizer._amax", "vision.compressor.weight"})
    CHECK(lost(name).scope == "-");
}

TEST_CASE(
    "an order beside the modules of a block counts for the block, if it is not the order that is stored") {
  const std::string block = "model.layers.3.mlp";
  const auto found = [&](const TensorData& order) {
    Tensors tensors;
    for (int e = 0; e < 3; ++e)
      add_modelopt(tensors, block + ".experts." + std::to_string(e) + ".down_proj", random_matrix(16, 64, 1));
    add_bf16(tensors, block + ".gate.weight", {3, 64});
    add_bf16(tensors, "model.layers.3.input_layernorm.weight", {64});
    add_bf16(tensors, "model.visual.blocks.0.attn.qkv.weight", {64, 64});
    tensors.push_back(order);
    const Scratch scratch;
    const Checkpoint c = open_checkpoint(scratch, tensors);
    std::string scopes;
    for (const WeightTerm& t : find_weight_terms(access_to(c))) {
      CHECK(c.tensors()[t.tensor].name == order.name);
      CHECK(std::string(t.rule) == "weight-term");
      CHECK(t.concerns(block + ".experts.1.down_proj") == (t.scope != "model.visual.blocks.0.attn"));
      CHECK(!t.concerns("model.layers.30.mlp.experts.1.down_proj"));
      scopes += t.scope.value_or("-") + " ";
    }
    return scopes;
  };
  const std::vector<int32_t> turned{2, 0, 1}, kept{0, 1, 2};
  for (const char* name : {".expert_perm", ".order", ".experts.idx", ".gate.map"}) {
    CAPTURE(name);
    const std::string above = std::string(name).starts_with(".experts") ? block + ".experts " : block + " ";
    CHECK(found(int32s(block + name, {3}, turned)) == above);
    CHECK(found(int32s(block + name, {3}, kept)).empty());
    // Sizes, offsets and factors are no orders, unless the name says so.
    for (const std::vector<int32_t>& numbers : {std::vector{3, 1, 2}, {0, 0, 1}, {-1, 0, 1}, {7, 8, 9}})
      CHECK(found(int32s(block + name, {3}, numbers)).empty() == !names_order(name + 1));
  }
  // Numbers of other types are orders by their names alone.
  CHECK(found({block + ".expert_perm", DType::kF32, {1}, {0, 0, 0, 0}}) == block + " ");
  CHECK(found({block + ".hadamard_rotation", DType::kBF16, {2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}}) == block + " ");
  CHECK(found({block + ".alpha", DType::kF32, {1}, {0, 0, 0, 0}}).empty());
  // Buffers of towers, counters, masks, and what is below no block.
  CHECK(found(int32s("model.visual.blocks.0.attn.relative_position_index", {3}, turned)).empty());
  CHECK(found(int32s("model.visual.blocks.0.attn.window_perm", {3}, turned)) ==
        "model.visual.blocks.0.attn ");
  CHECK(found(int32s("model.layers.3.input_layernorm.steps", {3}, turned)).empty());
  CHECK(found(int32s(block + ".steps", {}, {7})).empty());
  CHECK(found(int32s(block + ".gate.tid2eid", {3}, turned)).empty());
  CHECK(found({block + ".mask", DType::kBool, {3}, {1, 0, 1}}).empty());
  CHECK(found(int32s("d2t", {3}, turned)).empty());
}

TEST_CASE("many terms of no linear take no longer than their number") {
  Tensors tensors;
  for (int i = 0; i < 20000; ++i)
    add_bf16(tensors, "base_model.model.layers." + std::to_string(i) + ".q_proj.lora_A.weight", {1});
  add_bf16(tensors, "m.weight", {4, 4});
  const Scratch scratch;
  CHECK(find_weight_terms(access_to(open_checkpoint(scratch, tensors))).size() == 20000);
}

TEST_CASE("scales that are left of codes make a module incomplete, those of norms and towers do not") {
  const auto found = [](const TensorData& t, const char* config) {
    const Scratch scratch;
    const auto terms = find_weight_terms(access_to(open_checkpoint(scratch, {t}, config)));
    return !terms.empty() && std::string(terms[0].rule) == "incomplete-module";
  };
  const auto zeros = [](const char* name, DType type, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return TensorData{name, type, std::move(shape),
                      std::vector<uint8_t>(static_cast<size_t>(count * dtype_bits(type) / 8))};
  };
  constexpr const char *kNone = "{}", *kFp8 = R"({"quantization_config": {"quant_method": "fp8"}})";
  for (const char* config : {kNone, kFp8}) {
    CAPTURE(config);
    CHECK(found(zeros("l.0.up_proj.scales", DType::kF16, {4, 8}), config));
    CHECK(found(zeros("l.0.up_proj.scale", DType::kF8E8M0, {4, 8}), config));
    CHECK(found(zeros("l.0.up_proj.scale_inv", DType::kF32, {4, 8}), config));
    CHECK(found(zeros("model.layers.0.mlp.experts.down_proj_scales", DType::kU8, {4, 8, 2}), config));
    CHECK(found(zeros("model.layers.0.mlp.experts.down_proj_scale_inv", DType::kF32, {4, 1, 1}), config));
    CHECK(found(zeros("l.0.up_proj.scale", DType::kF32, {4, 8}), config) == (config == kFp8));
    CHECK(!found(zeros("l.0.attn.q_norm.scale", DType::kF32, {8}), config));
    CHECK(!found(zeros("l.0.layer_norm.scale", DType::kBF16, {1, 8}), config));
    CHECK(!found(zeros("vision.blocks.0.scale", DType::kBF16, {8}), config));
    CHECK(!found(zeros("router.per_expert_scale", DType::kBF16, {4, 8}), config));
    CHECK(!found(zeros("act.scales", DType::kBF16, {8}), config));
  }
}

TEST_CASE("a piece of a table may have its scale beside the table") {
  Tensors tensors{{"t.shard_0.weight", DType::kF8E4M3, {2, 2}, {1, 2, 3, 4}}};
  add_bf16(tensors, "t.weight_scale", {1});
  add_bf16(tensors, "u.weight_scale", {1});
  const Scratch scratch;
  const std::vector<WeightTerm> found = find_weight_terms(access_to(open_checkpoint(scratch, tensors)));
  REQUIRE(found.size() == 1);
  CHECK(found[0].linear == "u");
}

TEST_CASE("experts in one matrix are found with the counts that the config gives") {
  for (const char* suffix : {".weight", ".weight_packed", ""}) {
    CAPTURE(suffix);
    Tensors tensors;
    const std::string block = "model.layers.0.mlp.experts.";
    tensors.push_back(
        {block + "gate_up_proj" + suffix, DType::kBF16, {24, 8}, std::vector<uint8_t>(24 * 16)});
    tensors.push_back({block + "0.up_proj" + suffix, DType::kBF16, {24, 8}, std::vector<uint8_t>(24 * 16)});
    const Scratch scratch;
    const auto found = find_weight_terms(
        access_to(open_checkpoint(scratch, tensors, R"({"num_experts": 4, "model_type": "qwen3_moe"})")));
    REQUIRE(found.size() == 1);
    CHECK(contains(found[0].problem, "[4, 6, 8], 4 experts"));
    CHECK(found[0].linear == block + "gate_up_proj");
  }
}

TEST_CASE("experts in one matrix are found under names of any family, if the count fits") {
  const auto found = [](const std::string& name, DType type, const char* config, int64_t rows = 24) {
    const Tensors tensors{{name, type, {rows, 8}, std::vector<uint8_t>(static_cast<size_t>(rows) * 16)}};
    Tensors sized = tensors;
    sized[0].bytes.resize(static_cast<size_t>(rows * 8 * dtype_bits(type) / 8));
    const Scratch scratch;
    const auto terms = find_weight_terms(access_to(open_checkpoint(scratch, sized, config)));
    return !terms.empty() && std::string(terms[0].rule) == "module-shape";
  };
  constexpr const char *kFour = R"({"num_local_experts": 4})", *kNone = "{}";
  for (const char* name : {"l.0.experts.w13.weight", "l.0.experts.w2.weight", "l.0.ffn.experts.mlp.w1.weight",
                           "l.0.experts.w13.weight_packed", "l.0.experts.mlp.v1.qweight"}) {
    CAPTURE(name);
    CHECK(found(name, DType::kI32, kFour));
    CHECK(!found(name, DType::kI32, kNone));
  }
  CHECK(found("l.0.experts.w13", DType::kU8, kFour));
  CHECK(!found("l.0.experts.w13", DType::kBF16, kFour));  // a parameter that no command reads
  CHECK(!found("l.0.experts.w13.weight", DType::kBF16, kFour, 23));
  CHECK(!found("l.0.experts.0.w1.weight", DType::kBF16, kFour));
  CHECK(!found("l.0.shared_experts.w1.weight", DType::kBF16, kFour));
  CHECK(!found("l.0.experts.gate.weight", DType::kBF16, kFour));
}

TEST_CASE("a scale of another dialect beside codes with their own is a term") {
  const char* const others[] = {"m.weight_scale_inv", "m.scales", "m.scale"};
  for (const char* other : others) CHECK(found_with({other, DType::kF32, {1}, {0, 0, 0, 1}}) == "m");
}

TEST_CASE("a header's words on codes count for the modules that it names, or for all") {
  const auto found = [](const std::map<std::string, std::string>& metadata) {
    Tensors tensors;
    add_modelopt(tensors, "a", random_matrix(16, 64, 1));
    add_modelopt(tensors, "b", random_matrix(16, 64, 2));
    const Scratch scratch;
    write_safetensors(scratch / "model.safetensors", tensors, metadata);
    const Checkpoint c = Checkpoint::open(scratch / "model.safetensors");
    std::string names;
    for (const WeightTerm& t : find_weight_terms(access_to(c))) {
      CHECK(t.is_in_header);
      names += t.linear;
    }
    Problems problems;
    refuse_changed_weights(
        c, [](size_t) { return false; }, {}, problems);
    CHECK(problems.empty() == names.empty());
    if (names.empty()) refuse_described_codes(c);
    if (!names.empty()) CHECK_THROWS_AS(refuse_described_codes(c), Error);
    return names;
  };
  CHECK(found({{"format", "pt"}, {"total_size", "12"}, {"author", "x"}}).empty());
  CHECK(found({{"_quantization_metadata", R"({"layers": {"b": {"format": "nvfp4"}}})"}}) == "b");
  CHECK(found({{"_quantization_metadata", R"({"layers": {"c": {}}})"}}).empty());
  CHECK(found({{"quantization_config", "{}"}}) == "ab");
  CHECK(found({{"Quant", "int4"}}) == "ab");
  CHECK(found({{"quantization", std::string(100000, '[')}}) == "ab");
  // Any entry counts, under any such key, and by more than the names as files have them.
  CHECK(found({{"comfy_metadata", R"({"layers": {"a": {}}})"}}) == "a");
  CHECK(found({{"_quant_a", R"({"layers": {}})"}, {"_quantization_metadata", R"({"layers": {"b": {}}})"}}) ==
        "b");
  CHECK(found({{"_quantization_metadata", R"({"layers": {"a.weight": {}, "model.b": {}}})"}}) == "ab");
  CHECK(found({{"_quantization_metadata", R"({"layers": {}, "default": {"format": "nvfp4"}})"}}) == "ab");
  CHECK(found({{"_quantization_metadata", R"({"layers": {"*": {}}})"}}) == "ab");
  CHECK(found({{"_quantization_metadata", R"({"format_version": "1.0", "layers": {}})"}}).empty());
  CHECK(found({{"config", R"({"quantization_config": {"method": "svdquant"}})"}}) == "ab");
  CHECK(found({{"b.weight", R"({"_type": "NVFP4Tensor"})"}}) == "ab");
  for (const char* key : {"quantized_by", "quantization_date", "dequantized_from", "quantizer_version"})
    CHECK(found({{key, "someone"}}).empty());
}

TEST_CASE("a header's words count for modules of other files") {
  Tensors codes, others;
  add_modelopt(codes, "model.a", random_matrix(16, 64, 1));
  add_bf16(others, "model.norm.weight", {4});
  const auto found = [&](const std::string& value) {
    const Scratch scratch;
    std::filesystem::create_directory(scratch / "c");
    write_safetensors(scratch / "c" / "model-00001.safetensors", codes, {});
    write_safetensors(scratch / "c" / "model-00002.safetensors", others, {{"_quantization_metadata", value}});
    return find_weight_terms(access_to(Checkpoint::open(scratch / "c"))).size();
  };
  CHECK(found(R"({"layers": {"model.a": {"format": "nvfp4"}}})") == 1);
  CHECK(found(R"({"layers": {"a": {"format": "nvfp4"}}})") == 1);
  CHECK(found(R"({"layers": {"model.b": {"format": "nvfp4"}}})") == 0);
  CHECK(found("nvfp4") == 0);  // of that file
}

}  // namespace weight_terms_test
