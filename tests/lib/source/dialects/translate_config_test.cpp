#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lib/source/dialects/loader_lookup.h"
#include "lib/source/dialects/output_dialect.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace translate_config_test {

using namespace twofour;

namespace {

const std::string kLayer = "model.layers.0.";
using Names = std::vector<std::string>;

/// A checkpoint with attention in floats and NVFP4 experts under that entry.
Checkpoint with_entry(const Scratch& scratch, const Json& entry) {
  Tensors t;
  add_experts(t, kLayer + "mlp.experts", random_experts(2, 32, 64));
  for (const char* leaf : {"q_proj", "k_proj", "v_proj", "o_proj"})
    add_bf16(t, kLayer + "self_attn." + leaf + ".weight", {64, 64});
  add_bf16(t, kLayer + "mlp.gate.weight", {2, 64});
  add_bf16(t, "lm_head.weight", {32, 64});
  write_checkpoint(scratch / "a", {t}, Json{{"quantization_config", entry}}.dump());
  return Checkpoint::open(scratch / "a");
}

Json modelopt_entry(const Names& ignore) {
  return {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", ignore}};
}

Json groups_entry(const Names& targets, const Names& ignore) {
  return {{"quant_method", "compressed-tensors"},
          {"config_groups", {{"group_0", {{"targets", targets}, {"weights", {{"num_bits", 4}}}}}}},
          {"ignore", ignore}};
}

Names translated(const Json& entry, const char* to) {
  const Scratch scratch;
  return translate_config(with_entry(scratch, entry), output_dialect(to, true)).unquantized;
}

bool has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TEST_CASE("globs become expressions and names stay") {
  const Names found =
      translated(modelopt_entry({"lm_head", "*.self_attn*", "*.mlp.gate"}), "compressed-tensors");
  CHECK(found.size() == 3);
  CHECK(found[0] == "lm_head");
  CHECK(found[2].starts_with("re:"));
}

TEST_CASE("expressions become globs, but names where vLLM would not find a part of what it fuses") {
  const Json wide = groups_entry({"Linear"}, {"lm_head", "re:.*self_attn.*", "re:.*mlp\\.gate$"});
  CHECK(translated(wide, "modelopt") == Names{"lm_head", "*self_attn*", "*mlp.gate"});
  const Names parts = translated(groups_entry({"Linear"}, {"re:.*self_attn\\.[qkv]_proj$", "re:.*\\.q_proj$",
                                                           "re:.*o_proj$", "re:.*gate$", "lm_head"}),
                                 "modelopt");
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"}) CHECK(has(parts, kLayer + "self_attn." + leaf));
  CHECK(!has(parts, "*.q_proj"));
  CHECK(has(parts, "*o_proj"));
}

TEST_CASE("a quantized module is not on the list of those that are not") {
  const Names found = translated(
      modelopt_entry({"lm_head", kLayer + "mlp.experts.0.up_proj", "*.self_attn*"}), "compressed-tensors");
  CHECK(found.size() == 2);
  CHECK(found[0] == "lm_head");
}

TEST_CASE("what a list of quantized modules leaves out is named") {
  Json entry = modelopt_entry({});
  entry["quantized_layers"] = {{kLayer + "mlp.experts", {{"quant_algo", "NVFP4"}}}};
  const Names found = translated(entry, "compressed-tensors");
  for (const char* name : {"self_attn.q_proj", "self_attn.o_proj", "mlp.gate"})
    CHECK(has(found, kLayer + name));
  CHECK(has(found, "lm_head"));
  CHECK(!has(found, kLayer + "mlp.experts.0.gate_proj"));
}

TEST_CASE("groups with other targets than all linears name the rest, too") {
  CHECK(has(translated(groups_entry({"re:.*experts.*"}, {"lm_head"}), "modelopt"),
            kLayer + "self_attn.o_proj"));
}

TEST_CASE("what the other dialect has no words for is refused") {
  Json entry = modelopt_entry({"lm_head"});
  entry["quant_algo"] = "W4A8_NVFP4_FP8";
  CHECK(contains(message_of([&] { translated(entry, "compressed-tensors"); }),
                 "expected NVFP4 or W4A16_NVFP4, which both dialects have, found W4A8_NVFP4_FP8"));
}

TEST_CASE("engines read a translated list as the source's was meant") {
  const Scratch scratch;
  const Checkpoint source = with_entry(
      scratch, groups_entry({"Linear"}, {"lm_head", "re:.*\\.[qkv]_proj$", "re:.*o_proj$", "re:.*gate$"}));
  const OutputDialect& to = output_dialect("modelopt", true);
  Scheme scheme;
  scheme.format = WeightFormat::kNvfp4;
  scheme.has_input_scale = true;
  std::vector<LoadedModule> modules = {{kLayer + "mlp.experts.0.gate_proj", {schemes::kNvfp4}}};
  for (const char* leaf : {"q_proj", "k_proj", "v_proj", "o_proj"})
    modules.push_back({kLayer + "self_attn." + leaf, {}});
  const LoadedConfig config = loaded_config(source.config(), to.config(translate_config(source, to), scheme));
  for (const LookupFinding& f : check_lookups(config, modules))
    CHECK_MESSAGE(f.is_limit, f.module, f.message);
}

}  // namespace translate_config_test
