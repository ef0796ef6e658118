#include "lib/source/dialects/loader_lookup.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "formats/json/access.h"
#include "lib/source/config/configured_quantization.h"
#include "tests/support/message.h"

namespace loader_lookup_test {

using namespace twofour;
using namespace schemes;

namespace {

const std::string kLayer = "model.layers.0.";
const std::string kExperts = kLayer + "mlp.experts";

std::vector<LoadedModule> attention(Scheme format, const std::string& layer = kLayer) {
  std::vector<LoadedModule> modules;
  for (const char* leaf : {"q_proj", "k_proj", "v_proj", "o_proj"})
    modules.push_back({layer + "self_attn." + leaf, format});
  return modules;
}

std::vector<LoadedModule> experts(Scheme format, const std::string& block = kExperts,
                                  std::vector<std::string> leaves = {"gate_proj", "up_proj", "down_proj"}) {
  std::vector<LoadedModule> modules;
  for (const char* e : {"0", "1"}) {
    for (const std::string& leaf : leaves) modules.push_back({block + "." + e + "." + leaf, format});
  }
  return modules;
}

std::vector<LoadedModule> joined(std::vector<std::vector<LoadedModule>> parts) {
  std::vector<LoadedModule> all;
  for (auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// quantized_layers of modules, as ModelOpt writes them.
Json mixed(const std::vector<LoadedModule>& modules) {
  Json layers = Json::object();
  for (const LoadedModule& m : modules) {
    if (m.scheme == kNvfp4) layers[m.name] = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
    if (m.scheme == kFp8Tensor) layers[m.name] = {{"quant_algo", "FP8"}};
  }
  return {{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}};
}

Json single(const char* algorithm, const std::vector<std::string>& ignore) {
  return {{"quant_method", "modelopt"}, {"quant_algo", algorithm}, {"ignore", ignore}};
}

Json group_of(Scheme format, const std::vector<std::string>& targets) {
  const Json fp8_inputs = {{"num_bits", 8}, {"type", "float"}, {"strategy", "token"}};
  const Json nvfp4 = {{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}};
  if (format == kNvfp4) return {{"targets", targets}, {"weights", nvfp4}, {"input_activations", nvfp4}};
  return {{"targets", targets},
          {"weights", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}},
          {"input_activations", fp8_inputs}};
}

Json groups(std::vector<Json> all, const std::vector<std::string>& ignore = {}) {
  Json named = Json::object();
  for (size_t i = 0; i < all.size(); ++i) named["group_" + std::to_string(i)] = all[i];
  return {{"quant_method", "compressed-tensors"},
          {"format", "mixed-precision"},
          {"config_groups", named},
          {"ignore", ignore}};
}

std::string text_of(const std::vector<LookupFinding>& findings, bool limits) {
  std::string text;
  for (const LookupFinding& f : findings) {
    if (f.is_limit == limits) text += f.module + ": " + f.message + "\n";
  }
  return text;
}

/// The faults of a configuration, a line each.
std::string faults(const Json& config, const std::vector<LoadedModule>& modules) {
  return text_of(check_lookups({config}, modules), false);
}
std::string limits(const Json& config, const std::vector<LoadedModule>& modules) {
  return text_of(check_lookups({config}, modules), true);
}
std::string found(const std::string& module, const char* engine, Scheme stored, Scheme read) {
  return module + ": expected " + engine + " to read " + scheme_label(stored) + ", found " +
         scheme_label(read) + "\n";
}
std::string found_by_all(const std::string& module, Scheme stored, Scheme read) {
  return found(module, "vLLM", stored, read) + found(module, "SGLang", stored, read) +
         found(module, "TensorRT-LLM", stored, read);
}

const Scheme kFloats{kFloat}, kFour{kNvfp4}, kEight{kFp8Tensor}, kRows{kFp8Row};

}  // namespace

TEST_CASE("a map that names every module is read alike by all engines") {
  const auto modules = joined({attention(kEight), experts(kFour), {{kLayer + "mlp.gate", kFloats}}});
  CHECK(faults(mixed(modules), modules) == "");
  CHECK(limits(mixed(modules), modules) == "");
}

TEST_CASE("a misspelt or missing key leaves a linear unquantized in every engine") {
  const auto modules = joined({attention(kEight), experts(kFour)});
  Json config = mixed(modules);
  Json& layers = config["quantized_layers"];
  layers.erase(kLayer + "self_attn.o_proj");
  layers[kLayer + "self_attn.o_porj"] = {{"quant_algo", "FP8"}};
  CHECK(faults(config, modules) == found_by_all(kLayer + "self_attn.o_proj", kEight, kFloats));
}

TEST_CASE("an unknown algorithm is unquantized in two engines, and TensorRT-LLM stops") {
  const auto modules = joined({attention(kEight), experts(kFour)});
  Json config = mixed(modules);
  config["quantized_layers"][kLayer + "self_attn.o_proj"]["quant_algo"] = "FP8_TENSOR";
  CHECK(faults(config, modules) == "");
  const std::string all = limits(config, modules);
  CHECK(contains(all, "o_proj: vLLM has no loader for FP8_TENSOR in linears\n"));
  CHECK(contains(all, "o_proj: SGLang has no loader for FP8_TENSOR in linears\n"));
  CHECK(contains(all, "TensorRT-LLM stops at quant_algo FP8_TENSOR\n"));
}

TEST_CASE("TensorRT-LLM reads q_proj alone for all of what is fused, the others what is listed") {
  const auto modules = joined({attention(kEight), experts(kFour)});
  Json config = mixed(modules);
  config["quantized_layers"].erase(kLayer + "self_attn.q_proj");
  CHECK(faults(config, modules) == found(kLayer + "self_attn.q_proj", "TensorRT-LLM", kEight, kFloats));
}

TEST_CASE("an unlisted shard in floats is taken for quantized with the others") {
  auto modules = joined({attention(kEight), experts(kFour)});
  modules[1].scheme = kFloats;  // k_proj
  const std::string all = faults(mixed(modules), modules);
  CHECK(contains(all, found(kLayer + "self_attn.k_proj", "vLLM", kFloats, kEight)));
  CHECK(contains(all, found(kLayer + "self_attn.k_proj", "SGLang", kFloats, kEight)));
}

TEST_CASE("two algorithms within what is fused are refused") {
  const auto modules = joined({attention(kEight), experts(kFour)});
  Json config = mixed(modules);
  config["quantized_layers"][kLayer + "self_attn.v_proj"] = {{"quant_algo", "NVFP4"}};
  const std::string all = faults(config, modules);
  CHECK(contains(all, "expected vLLM to find one quant_algo within model.layers.0.self_attn.qkv_proj"));
  CHECK(contains(all, "expected SGLang to find one quant_algo"));
}

TEST_CASE("experts have the first key below their block, or the block's own") {
  const auto modules = joined({attention(kEight), experts(kFour)});
  Json config = mixed(attention(kEight));
  Json& layers = config["quantized_layers"];
  layers[kExperts] = {{"quant_algo", "NVFP4"}};  // a container
  CHECK(faults(config, modules) == "");
  layers.erase(kExperts);
  layers[kExperts + ".0.gate_proj"] = {{"quant_algo", "FP8"}};
  layers[kExperts + ".0.up_proj"] = {{"quant_algo", "NVFP4"}};
  CHECK(contains(faults(config, modules), found_by_all(kExperts + ".0.gate_proj", kFour, kEight)));
}

TEST_CASE("vLLM takes experts that are not listed for what stands beside them") {
  const std::vector<LoadedModule> shared = {{kLayer + "mlp.shared_expert.down_proj", kFour}};
  const auto modules = joined({attention(kEight), experts(kFloats), shared});
  CHECK(faults(mixed(modules), modules) == found(kExperts + ".0.gate_proj", "vLLM", kFloats, kFour));
  Json config = mixed(modules);
  config["ignore"] = Json::array({kExperts});
  CHECK(faults(config, modules) == "");
}

TEST_CASE("prefixes of language models are tried by two engines") {
  const std::string inner = "model.language_model.layers.0.", outer = "language_model.model.layers.0.";
  const auto modules = joined({attention(kEight, inner), experts(kFour, inner + "mlp.experts")});
  const Json config = mixed(joined({attention(kEight, outer), experts(kFour, outer + "mlp.experts")}));
  const std::string all = faults(config, modules);
  CHECK(all.find("vLLM") == all.npos);
  CHECK(all.find("SGLang") == all.npos);
  CHECK(contains(all, found(inner + "self_attn.o_proj", "TensorRT-LLM", kEight, kFloats)));
}

TEST_CASE("layers for further tokens are found under the names of the files alone") {
  const std::string file = "mtp.layers.0.", renumbered = "mtp.layers.48.";
  const auto modules = joined({attention(kEight), experts(kFour), attention(kEight, file)});
  CHECK(faults(mixed(modules), modules) == "");
  const Json config = mixed(joined({attention(kEight), experts(kFour), attention(kEight, renumbered)}));
  for (const char* engine : {"vLLM", "SGLang", "TensorRT-LLM"})
    CHECK(contains(faults(config, modules), found(file + "self_attn.o_proj", engine, kEight, kFloats)));
}

TEST_CASE("latent attention is one name in each engine") {
  std::vector<LoadedModule> latent;
  for (const char* leaf : {"q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj"})
    latent.push_back({kLayer + "self_attn." + leaf, kEight});
  CHECK(faults(mixed(joined({latent, experts(kFour)})), joined({latent, experts(kFour)})) == "");
  for (LoadedModule& m : latent) m.scheme = kFloats;
  std::vector<std::string> names;
  for (const LoadedModule& m : latent) names.push_back(m.name);
  CHECK(faults(single("NVFP4", names), joined({latent, experts(kFour)})) == "");
}

TEST_CASE("an empty map is refused by vLLM") {
  CHECK(contains(faults(mixed({}), attention(kEight)), "expected modules, which vLLM requires, found none"));
}

TEST_CASE("blocks of two sizes are refused by vLLM") {
  Json config = mixed(experts(kFour));
  config["quantized_layers"]["a.b"] = {{"quant_algo", "FP8_PB_WO"}, {"group_size", 128}};
  config["quantized_layers"]["a.c"] = {{"quant_algo", "FP8_PB_WO"}, {"group_size", 32}};
  CHECK(contains(faults(config, experts(kFour)),
                 "expected one size of FP8 blocks, which vLLM requires, found 2"));
}

TEST_CASE("one format: names and blocks of experts are excluded alike by all engines") {
  const auto modules =
      joined({attention(kFloats), experts(kFour), experts(kFloats, "model.layers.1.mlp.experts")});
  std::vector<std::string> ignore = {"lm_head", "model.layers.1.mlp.experts*"};
  for (const LoadedModule& m : attention(kFloats)) ignore.push_back(m.name);
  CHECK(faults(single("NVFP4", ignore), modules) == "");
}

TEST_CASE("vLLM compares globs with the name of what it fuses") {
  const auto modules = joined({attention(kFloats), experts(kFour)});
  const Json parts = single("NVFP4", {"*.q_proj", "*.k_proj", "*.v_proj", "*.o_proj"});
  const std::string all = faults(parts, modules);
  CHECK(contains(all, found(kLayer + "self_attn.q_proj", "vLLM", kFloats, kFour)));
  CHECK(all.find("TensorRT-LLM") == all.npos);
  CHECK(faults(single("NVFP4", {"*.self_attn.*"}), modules) == "");
}

TEST_CASE("vLLM looks for names within names, so that layer 1 excludes layer 10") {
  const auto modules =
      joined({experts(kFloats, "model.layers.1.mlp.experts"), experts(kFour, "model.layers.10.mlp.experts")});
  const std::string all = faults(single("NVFP4", {"model.layers.1"}), modules);
  CHECK(contains(all, found("model.layers.10.mlp.experts.0.gate_proj", "vLLM", kFour, kFloats)));
  CHECK(all.find("TensorRT-LLM") == all.npos);
}

TEST_CASE("SGLang excludes by any part of a path") {
  const auto modules = joined({attention(kFloats), experts(kFour)});
  Json config = single("NVFP4", {"model.layers.0.self_attn*", "mlp"});
  const std::string all = faults(config, modules);
  CHECK(contains(all, found(kExperts + ".0.gate_proj", "SGLang", kFour, kFloats)));
}

TEST_CASE("a part of what is fused excluded is refused by two engines") {
  const auto modules = joined({attention(kFloats), experts(kFour)});
  const Json config = single("NVFP4", {kLayer + "self_attn.q_proj", kLayer + "self_attn.o_proj"});
  const std::string all = faults(config, modules);
  CHECK(contains(all, "expected vLLM to find all of model.layers.0.self_attn.qkv_proj excluded or none"));
  CHECK(contains(all, "expected SGLang to find all of model.layers.0.self_attn.qkv_proj excluded or none"));
}

TEST_CASE("NVFP4 without input scales is not the weights alone") {
  const auto modules = experts({kNvfp4WeightOnly});
  CHECK(faults(single("NVFP4", {}), modules) ==
        found_by_all(kExperts + ".0.gate_proj", {kNvfp4WeightOnly}, kFour));
  CHECK(faults(single("W4A16_NVFP4", {}), modules) == "");
}

TEST_CASE("TensorRT-LLM reads hf_quant_config.json, the others config.json") {
  const auto modules = experts(kFour);
  const Json file = {{"quantization", {{"quant_algo", "NVFP4"}, {"exclude_modules", {kExperts + "*"}}}}};
  const auto findings = check_lookups({single("NVFP4", {}), file}, modules);
  CHECK(text_of(findings, false) == found(kExperts + ".0.gate_proj", "TensorRT-LLM", kFour, kFloats));
}

TEST_CASE("groups: the first target that matches wins, but in TensorRT-LLM that of the first text") {
  const auto modules = joined({attention(kRows), experts(kFour)});
  const Json eight = group_of(kRows, {"re:.*self_attn\\..*"}),
             four = group_of(kFour, {"re:.*mlp\\.experts\\..*"});
  CHECK(faults(groups({eight, four}), modules) == "");
  CHECK(faults(groups({four, eight}), modules) == "");  // none overlap
  const Json all = group_of(kRows, {"re:.*_proj$"});
  CHECK(
      contains(faults(groups({all, four}), modules), found_by_all(kExperts + ".0.gate_proj", kFour, kRows)));
  // In the right order for two engines; "re:.*_proj$" sorts before "re:.*mlp".
  CHECK(faults(groups({four, all}), modules) ==
        found(kExperts + ".0.gate_proj", "TensorRT-LLM", kFour, kRows));
}

TEST_CASE("groups: engines ask for gate, up and down, whatever files call them") {
  const auto modules = experts(kFour, kExperts, {"w1", "w2", "w3"});
  const Json files = group_of(kFour, {"re:.*experts\\.\\d+\\.w[123]$"});
  const std::string all = faults(groups({files}), modules);
  CHECK(contains(all, "expected a target or an entry of ignore for model.layers.0.mlp.experts.0.gate_proj"));
  CHECK(all.find("vLLM") == all.npos);
  const Json both = group_of(kFour, {"re:.*experts\\.\\d+\\.(?:w[123]|gate_proj|up_proj|down_proj)$"});
  CHECK(faults(groups({both}), modules) == "");
}

TEST_CASE("groups: gate, up and down of one format") {
  const auto modules = experts(kFour);
  const Json two =
      groups({group_of(kFour, {"re:.*(?:gate|up)_proj$"}), group_of(kRows, {"re:.*down_proj$"})});
  const std::string all = faults(two, modules);
  CHECK(
      contains(all, "expected vLLM to find one format for gate, up and down of model.layers.0.mlp.experts"));
  CHECK(contains(all, "expected SGLang to find one format"));
}

TEST_CASE("groups: SGLang asks for the class before the parts of what is fused") {
  const auto modules = joined({attention(kRows), experts(kFour)});
  std::vector<std::string> names;
  for (const LoadedModule& m : attention(kRows)) names.push_back(m.name);
  const Json config = groups({group_of(kRows, names), group_of(kFour, {"Linear"})});
  CHECK(faults(config, modules) == found(kLayer + "self_attn.q_proj", "SGLang", kRows, kFour));
  CHECK(contains(limits(config, modules), "TensorRT-LLM stops at the target Linear of several groups"));
}

TEST_CASE("groups: an unquantized linear is ignored or stops SGLang") {
  const auto modules = joined({attention(kFloats), experts(kFour)});
  const Json four = group_of(kFour, {"re:.*experts.*"});
  CHECK(contains(faults(groups({four}), modules), "without which SGLang stops"));
  CHECK(faults(groups({four}, {"re:.*self_attn.*"}), modules) == "");
}

TEST_CASE("groups: a head is reached by its name alone") {
  const std::vector<LoadedModule> modules = joined({experts(kFour), {{"lm_head", kFloats}}});
  CHECK(faults(groups({group_of(kFour, {"Linear"})}), modules) == "");
  const auto quantized = joined({experts(kFour), {{"lm_head", kFour}}});
  CHECK(faults(groups({group_of(kFour, {"Linear"})}), quantized) ==
        found("lm_head", "vLLM", kFour, kFloats) + found("lm_head", "SGLang", kFour, kFloats));
  CHECK(faults(groups({group_of(kFour, {"Linear", "re:.*lm_head$"})}), quantized) == "");
}

TEST_CASE("lists of the fp8 method are names") {
  const Scheme block{fp8_blocks(128, 128)};
  const auto modules = joined({attention(kFloats), experts(block)});
  const auto config = [](const std::vector<std::string>& listed) {
    return Json{{"quant_method", "fp8"},
                {"activation_scheme", "dynamic"},
                {"weight_block_size", {128, 128}},
                {"modules_to_not_convert", listed}};
  };
  std::vector<std::string> names;
  for (const LoadedModule& m : attention(kFloats)) names.push_back(m.name);
  CHECK(faults(config(names), modules) == "");
  const std::string globs = faults(config({"*self_attn*"}), modules);
  CHECK(contains(globs, found(kLayer + "self_attn.q_proj", "vLLM", kFloats, block)));
  CHECK(globs.find("TensorRT-LLM") == globs.npos);
  // SGLang takes parts of paths, vLLM whole ones.
  const std::string parts = faults(config({"self_attn"}), modules);
  CHECK(contains(parts, found(kLayer + "self_attn.q_proj", "vLLM", kFloats, block)));
  CHECK(parts.find("SGLang") == parts.npos);
}

TEST_CASE("blocks of another size than the configuration's are read wrongly") {
  const Json config = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {32, 32}}};
  const std::vector<LoadedModule> modules = {{kLayer + "mlp.down_proj", {fp8_blocks(128, 128)}}};
  CHECK(contains(faults(config, modules),
                 "to read FP8 by blocks of 128 x 128, found FP8 by blocks of 32 x 32"));
  CHECK(contains(limits(config, modules), "TensorRT-LLM stops at FP8 blocks of another size"));
}

TEST_CASE("DeepSeek-V4: experts by config.json in vLLM, by their type elsewhere") {
  const Scheme block{fp8_blocks(128, 128)}, mx{kMxfp4};
  const std::string main = "layers.0.ffn.experts", draft = "mtp.0.ffn.experts";
  const std::vector<std::string> leaves = {"w1", "w2", "w3"};
  const std::vector<LoadedModule> linears = {{"layers.0.attn.wq_a", block}, {"layers.0.ffn.gate", kFloats}};
  LoadedConfig config{{{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}}};
  config.deepseek_v4 = true;
  config.expert_dtype = "fp4";
  const auto released = joined({linears, experts(mx, main, leaves), experts(mx, draft, leaves)});
  CHECK(text_of(check_lookups(config, released), false) == "");
  CHECK(text_of(check_lookups(config, released), true) == "");

  config.quantization_config["moe_quant_algo"] = "NVFP4";
  config.quantization_config["quant_algo"] = "MIXED_PRECISION";
  config.quantization_config["group_size"] = 16;
  config.quantization_config["ignore"] = Json::array({"*.attn.*", "mtp.*"});
  const auto nvidia = joined({linears, experts(kFour, main, leaves), experts(mx, draft, leaves)});
  CHECK(text_of(check_lookups(config, nvidia), false) == "");
  CHECK(contains(text_of(check_lookups(config, nvidia), true),
                 "vLLM reads the experts of drafts as NVFP4, like all others"));
  // An NVFP4 draft that the list excludes.
  const auto cast = joined({linears, experts(kFour, main, leaves), experts(kFour, draft, leaves)});
  CHECK(text_of(check_lookups(config, cast), false) == found(draft + ".0.w1", "SGLang", kFour, mx));
  // Experts that stayed MXFP4 under words of NVFP4.
  CHECK(contains(text_of(check_lookups(config, released), false), found(main + ".0.w1", "vLLM", mx, kFour)));

  config.quantization_config.erase("moe_quant_algo");
  const auto eight = joined({linears, experts(block, main, leaves)});
  CHECK(contains(text_of(check_lookups(config, eight), false), found(main + ".0.w1", "vLLM", block, mx)));
  config.expert_dtype = "fp8";
  CHECK(text_of(check_lookups(config, eight), false) == "");
  config.expert_dtype = "int8";
  CHECK(contains(text_of(check_lookups(config, eight), false),
                 "expected fp4 or fp8, which vLLM supports, found int8"));
}

TEST_CASE("what is no configuration of ours is not asked about, and nonsense crashes nothing") {
  const auto modules = joined({attention(kEight), experts(kFour)});
  for (const Json& config :
       {Json(), Json::object(), Json{{"quant_method", "awq"}}, Json{{"quant_method", 3}},
        Json{{"quant_method", "compressed-tensors"}, {"config_groups", {1, 2}}},
        Json{{"quant_method", "compressed-tensors"}, {"config_groups", {{"a", 1}}}},
        Json{{"quant_method", "modelopt"}, {"quant_algo", 4}, {"ignore", "x"}},
        Json{{"quant_method", "modelopt"},
             {"quant_algo", "MIXED_PRECISION"},
             {"quantized_layers", {{"a", 1}}}},
        Json{{"quant_method", "fp8"}, {"weight_block_size", "x"}, {"ignored_layers", {1, "re:("}}},
        Json{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"re:(", "[", "a(b", "*"}}}}) {
    CAPTURE(config.dump());
    check_lookups({config}, modules);
    check_lookups({config, config}, modules);
    check_lookups({config, nullptr, true, "fp4"}, modules);
  }
}

TEST_CASE("a source's own group comes without targets and with its format") {
  Json config = groups({group_of(kRows, {"re:.*self_attn.*"}), group_of(kFour, {"Linear"})}, {"lm_head"});
  const SourceGroups source(config);
  const Json entry = source.find(kLayer + "self_attn.q_proj");
  CHECK(entry.at("format") == "mixed-precision");
  CHECK(!entry.contains("targets"));
  CHECK(entry.at("weights").at("strategy") == "channel");
  CHECK(source.find(kLayer + "mlp.down_proj").at("weights").at("num_bits") == 4);
  CHECK(source.find("lm_head").is_null());
}

}  // namespace loader_lookup_test
