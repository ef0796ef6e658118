#include <doctest/doctest.h>

#include <string>

#include "lib/look/diff/gate.h"
#include "tests/support/diff_of.h"

namespace configs_test {

using namespace twofour;

namespace {

const char* const kBase = R"({"model_type": "glm4_moe", "rope_theta": 500000, "rms_norm_eps": 1e-6,
  "norm_topk_prob": true, "routed_scaling_factor": 2.5, "num_experts_per_tok": 8, "hidden_act": "silu",
  "sliding_window": 4096, "layer_types": ["full_attention", "sliding_attention"], "query_pre_attn_scalar": 256,
  "rope_interleave": true, "rope_scaling": null, "torch_dtype": "bfloat16",
  "vision_config": {"depth": 27, "id": {"patch": [14, 14]}}})";

/// Compares two checkpoints of one tensor with these configs.
DiffResult compared(const Json& a, const Json& b, const DiffOptions& options = {}) {
  const Scratch scratch;
  Tensors tensors;
  add_bf16(tensors, "model.norm.weight", {8});
  write_checkpoint(scratch / "a", {tensors}, a.dump());
  write_checkpoint(scratch / "b", {tensors}, b.dump());
  return diff_of(scratch / "a", scratch / "b", options);
}

DiffResult with(const char* key, const Json& value) {
  Json other = Json::parse(kBase);
  other[key] = value;
  return compared(Json::parse(kBase), other);
}

bool fails(const DiffResult& r) { return default_diff_gate().count(r) > 0; }

}  // namespace

TEST_CASE("each key that changes what a model computes is a difference") {
  const std::pair<const char*, Json> changes[] = {
      {"rope_theta", 10000},
      {"rms_norm_eps", 1e-5},
      {"norm_topk_prob", false},
      {"routed_scaling_factor", 1},
      {"num_experts_per_tok", 4},
      {"hidden_act", "gelu"},
      {"sliding_window", nullptr},
      {"layer_types", Json::array({"full_attention", "full_attention"})},
      {"query_pre_attn_scalar", 128},
      {"rope_interleave", false},
      {"a_factor_of_a_new_family", 0.5},
      {"vision_config", {{"depth", 27}, {"id", {{"patch", Json::array({14, 16})}}}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}};
  for (const auto& [key, value] : changes) {
    CAPTURE(key);
    const DiffResult r = with(key, value);
    REQUIRE(r.config.size() == 1);
    CHECK(r.config[0].file == "config.json");
    CHECK(r.config[0].key.starts_with(key));
    CHECK(r.config[0].counts);
    CHECK(fails(r));
    CHECK(parse_diff_gate({"config"}).count(r) == 1);
    CHECK(parse_diff_gate({"different"}).count(r) == 0);
  }
  CHECK(with("layer_types", Json::array({"full_attention", "full_attention"})).config[0].key ==
        "layer_types[1]");
  CHECK(with("vision_config", {{"depth", 26}, {"id", {{"patch", Json::array({14, 14})}}}}).config[0].key ==
        "vision_config.depth");
}

TEST_CASE("other keys are listed") {
  const std::pair<const char*, Json> changes[] = {
      {"transformers_version", "5.17.0"}, {"use_cache", false},       {"_name_or_path", "x"},
      {"initializer_range", 0.1},         {"torch_dtype", "float32"}, {"attention_chunk_size", nullptr}};
  for (const auto& [key, value] : changes) {
    CAPTURE(key);
    const DiffResult r = with(key, value);
    REQUIRE(r.config.size() == 1);
    CHECK(!r.config[0].counts);
    CHECK(!fails(r));
  }
}

TEST_CASE("numbers are compared as numbers, and rope settings in either spelling") {
  CHECK(with("rope_theta", 500000.0).config.empty());
  Json later = Json::parse(kBase);
  later.erase("rope_theta");
  later.erase("rope_scaling");
  later["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  CHECK(compared(Json::parse(kBase), later).config.empty());
  later["rope_parameters"]["rope_theta"] = 1e6;
  const DiffResult r = compared(Json::parse(kBase), later);
  REQUIRE(r.config.size() == 1);
  CHECK(r.config[0].key == "rope_parameters.rope_theta");
  CHECK(r.config[0].counts);
}

TEST_CASE("a key that is missing counts unless the other is null") {
  Json without = Json::parse(kBase);
  without.erase("norm_topk_prob");
  CHECK(fails(compared(Json::parse(kBase), without)));
  without = Json::parse(kBase);
  without.erase("rope_scaling");
  CHECK(!fails(compared(Json::parse(kBase), without)));
}

TEST_CASE("configs are left out on request, and with a selection of modules") {
  Json other = Json::parse(kBase);
  other["rope_theta"] = 1;
  CHECK(compared(Json::parse(kBase), other, {.configs = false}).config.empty());
  CHECK(compared(Json::parse(kBase), other, {.include = {NamePattern("*.norm.*")}}).config.empty());
}

TEST_CASE("what configs state of a module of the same format is a difference, of another one is not") {
  const Scratch scratch;
  Tensors nvfp4, floats;
  add_modelopt(nvfp4, "model.layers.0.mlp.down_proj", random_matrix(16, 32, 1));
  add_bf16(floats, "model.layers.0.mlp.down_proj.weight", {16, 32});
  const std::string configured =
      R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": [)";
  write_checkpoint(scratch / "a", {nvfp4}, configured + "]}}");
  write_checkpoint(scratch / "b", {nvfp4}, configured + R"("*down_proj"]}})");
  write_checkpoint(scratch / "c", {floats}, "{}");
  const DiffResult same = diff_of(scratch / "a", scratch / "b"),
                   other = diff_of(scratch / "a", scratch / "c");
  REQUIRE(same.config.size() == 1);
  CHECK(same.config[0].key == "quantization of model.layers.0.mlp.down_proj");
  CHECK(same.config[0].counts);
  CHECK(fails(same));
  REQUIRE(other.config.size() == 1);
  CHECK(!other.config[0].counts);
}

}  // namespace configs_test
