#include <doctest/doctest.h>

#include "lib/checkpoint/weight_terms.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/message.h"
#include "tests/support/stored_weights.h"

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
  for (const char* suffix : {".pre_quant_scale", ".svdquant_lora_a", ".svdquant_lora_b", ".lora_A.weight",
                             ".lora_B.default.weight", ".lora_magnitude_vector"}) {
    CAPTURE(suffix);
    CHECK(found_with({"m" + std::string(suffix), DType::kBF16, {1}, {0, 0}}) == "m");
  }
  CHECK(found_with({"m.input_scale_2", DType::kBF16, {2}, {0, 0, 0, 0}}) == "m");
  CHECK(found_with({"m.input_scale_2", DType::kBF16, {1}, {0, 0}}).empty());   // Quark's
  CHECK(found_with({"m_pre_quant_scale", DType::kBF16, {1}, {0, 0}}) == "m");  // as of stacks
  for (const char* other : {"m.bias", "m.k_scale", "m.weight_shape", "n.pre_quant_scale", "mx.lora"})
    CHECK(found_with({other, DType::kBF16, {1}, {0, 0}}).empty());
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
  // Terms that need no codes say nothing of missing ones.
  const Scratch other;
  Tensors terms;
  add_bf16(terms, "m.pre_quant_scale", {1});
  CHECK(find_weight_terms(access_to(open_checkpoint(other, terms))).empty());
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
}

TEST_CASE("transforms in a configuration are found unless they are empty") {
  const auto term = [](const char* text) { return find_config_term(parse_json("config", text)); };
  for (const char* text :
       {"null", "{}", "5", R"({"transform_config": null})", R"({"transform_config": {}})",
        R"({"transform_config": {"config_groups": {}}})", R"({"base": {"transform_config": {}}})"})
    CHECK(!term(text));
  constexpr const char* kHadamard = R"({"config_groups": {"R1": {"type": "hadamard"}}})";
  for (const std::string& text : {std::string(R"({"transform_config": )") + kHadamard + "}",
                                  std::string(R"({"base": {"transform_config": )") + kHadamard + "}}"}) {
    const auto found = term(text.c_str());
    REQUIRE(found);
    CHECK(contains(*found, "transform_config: expected none, found {\"config_groups\":{\"R1\":"));
  }
}

}  // namespace weight_terms_test
