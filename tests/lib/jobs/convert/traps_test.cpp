#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "formats/e8m0.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/lint/lint.h"
#include "lib/recipe/artifact/recipe_file.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/dialects/loader_lookup.h"
#include "tests/support/edits.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

// Faults of mixed checkpoints, mostly without a message. Each trap is set here.

namespace traps_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kLayer = "model.layers.0.", kExperts = kLayer + "mlp.experts";

TensorData f32(const std::string& name, std::vector<float> values, std::vector<int64_t> shape = {}) {
  return {name, DType::kF32, std::move(shape), float_bytes_as(DType::kF32, values)};
}

/// NVFP4 experts without input scales, attention in FP8 per tensor with them, a head and a router in BF16.
Tensors mixed_tensors() {
  Tensors t;
  add_experts(t, kExperts, random_experts(2, 32, 64));
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"}) {
    const std::string name = kLayer + "self_attn." + leaf;
    fp8_weights({48, 64}, 4).add_to(t, name + ".weight");
    t.push_back(f32(name + ".weight_scale", {1}));
    t.push_back(f32(name + ".input_scale", {0.5f}));
  }
  add_floats(t, kLayer + "mlp.gate", random_floats(2, 64, 5));
  add_floats(t, "lm_head", random_floats(32, 64, 6));
  return t;
}

/// The whole list of what is quantized.
Json mixed_layers() {
  Json layers = Json::object();
  for (const char* e : {".0.", ".1."}) {
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"})
      layers[kExperts + e + leaf] = {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}};
  }
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"})
    layers[kLayer + "self_attn." + leaf] = {{"quant_algo", "FP8"}};
  return layers;
}

Json mixed_config(const Json& layers) {
  return {{"model_type", "qwen3_moe"},
          {"num_hidden_layers", 1},
          {"num_experts", 2},
          {"quantization_config",
           {{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}}}};
}

Rule rule_of(const std::string& to, const std::vector<std::string>& matches) {
  Rule rule;
  rule.to = to;
  rule.selection.from_default = matches.empty();
  if (!matches.empty()) rule.selection.also = parse_patterns(matches);
  return rule;
}

/// The head to FP8, so that the configuration is written anew.
Rule fp8_head() {
  Rule rule = rule_of("fp8", {"lm_head"});
  rule.granularity = "tensor";
  return rule;
}

Recipe in_dialect(const std::string& dialect, std::vector<Rule> rules) {
  Recipe recipe;
  recipe.dialect = dialect;
  recipe.rules = std::move(rules);
  return recipe;
}

/// Writes the source "a" anew, converts it to "b" and proves every byte.
void convert_new(const Scratch& scratch, const Tensors& tensors, const Json& config, const Recipe& recipe) {
  fs::remove_all(scratch / "a");
  fs::remove_all(scratch / "b");
  write_checkpoint(scratch / "a", {tensors}, config.dump());
  const Checkpoint source = Checkpoint::open(scratch / "a");
  Progress progress;
  convert(source, make_plan(source, recipe), scratch / "b", {}, progress);
  const ValidateReport report = validate_from(scratch / "a", scratch / "b");
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
}

std::string refusal(const Scratch& scratch, const Tensors& tensors, const Json& config,
                    const Recipe& recipe) {
  fs::remove_all(scratch / "a");
  write_checkpoint(scratch / "a", {tensors}, config.dump());
  return message_of([&] { make_plan(Checkpoint::open(scratch / "a"), recipe); });
}

Json entry_of(const Scratch& scratch) { return json_at(scratch / "b/config.json").at("quantization_config"); }
Json file_of(const Scratch& scratch) {
  return json_at(scratch / "b/hf_quant_config.json").at("quantization");
}

/// "ID where" of each warning and error.
std::set<std::string> lint_ids(const fs::path& path) {
  Progress progress;
  std::set<std::string> ids;
  for (const LintFinding& f : lint(path, {}, progress).findings) ids.insert(lint_rules()[f.rule].id);
  return ids;
}

/// The layer of linears that vLLM reads by that configuration.
std::string read_by_vllm(const Json& config, const std::vector<std::string>& linears) {
  const LoadedConfig loaded{config};
  std::vector<LoadedModule> modules;
  for (const std::string& name : linears) modules.push_back({name, {}});
  const std::vector<EngineLayer> layers = engine_layers(modules);
  REQUIRE(layers.size() == 1);
  return scheme_label(engines()[0].read(loaded, modules)->find(layers[0]).scheme);
}

}  // namespace

TEST_CASE("trap 1: what a list of mixed formats leaves out, misspells or calls by an unknown name") {
  const Scratch scratch;
  const std::string lost = kExperts + ".1.up_proj";
  std::vector<Json> lists(4, mixed_layers());
  lists[1].erase(lost);
  lists[2].erase(lost);
  lists[2][kExperts + ".1.up_porj"] = mixed_layers()[lost];
  lists[3][lost]["quant_algo"] = "NVFP5";
  for (const Json& list : lists) {
    CAPTURE(list.dump());
    if (list.contains(lost) && list.at(lost).at("quant_algo") == "NVFP5") {
      // Another format may be stored in codes of this type.
      contains(refusal(scratch, mixed_tensors(), mixed_config(list), in_dialect("modelopt", {fp8_head()})),
               "expected an algorithm of NVFP4 (as the codes are stored), found \"NVFP5\"");
      continue;
    }
    // Headers say what is quantized, if the list says nothing: all of it is written and named again.
    convert_new(scratch, mixed_tensors(), mixed_config(list), in_dialect("modelopt", {fp8_head()}));
    Json expected = mixed_layers();
    expected["lm_head"] = {{"quant_algo", "FP8"}};
    Json found = entry_of(scratch).at("quantized_layers");
    for (auto& [name, one] : found.items()) CHECK(one.at("quant_algo") == expected.at(name).at("quant_algo"));
    CHECK(found.size() == expected.size());
    const bool is_sound = &list == lists.data();
    CHECK(lint_ids(scratch / "a").contains("config-dtype") == !is_sound);
    CHECK(!lint_ids(scratch / "b").contains("config-dtype"));
  }
  // And what is written is read back by the loaders' rules.
  const Json nvfp4 = {{"quant_algo", "NVFP4"}, {"group_size", 16}}, fp8 = {{"quant_algo", "FP8"}};
  const std::string o = kLayer + "self_attn.o_proj";
  const Checkpoint source = Checkpoint::open(scratch / "a");
  const WrittenModel model{.entries = {nvfp4}, .modules = {{o, 0}}, .source = &source};
  const auto conflicts = [&](const Json& layers) {
    return find_lookup_conflicts(model, {mixed_config(layers).at("quantization_config")});
  };
  CHECK(conflicts({{o, nvfp4}}).empty());
  const std::string expected = o + ": expected ";
  CHECK(conflicts({{kLayer + "self_attn.o_porj", nvfp4}}) ==
        std::vector<std::string>{expected + "vLLM to read NVFP4, found unquantized",
                                 expected + "SGLang to read NVFP4, found unquantized",
                                 expected + "TensorRT-LLM to read NVFP4, found unquantized"});
  // SGLang refuses a mixed list without NVFP4, whatever it says.
  CHECK(conflicts({{o, fp8}}) ==
        std::vector<std::string>{expected + "vLLM to read NVFP4, found FP8 with a scale a tensor",
                                 expected + "TensorRT-LLM to read NVFP4, found FP8 with a scale a tensor"});
}

TEST_CASE("trap 2: patterns where loaders take exact names") {
  const Scratch scratch;
  const Json nvfp4 = {{"quant_algo", "NVFP4"}};
  for (const char* pattern : {"model.layers.*.self_attn.o_proj", "re:.*o_proj", "*"}) {
    CAPTURE(pattern);
    const Json config = mixed_config({{pattern, nvfp4}}).at("quantization_config");
    CHECK(read_by_vllm(config, {kLayer + "self_attn.o_proj"}) == "unquantized");
  }
  convert_new(scratch, mixed_tensors(), mixed_config(mixed_layers()), in_dialect("modelopt", {fp8_head()}));
  for (const auto& list :
       {entry_of(scratch).at("quantized_layers"), file_of(scratch).at("quantized_layers")}) {
    for (const auto& [name, one] : list.items()) {
      CAPTURE(name);
      CHECK(name.find_first_of("*?[:^$\\") == name.npos);
    }
  }
  // Other lists have globs in ModelOpt's dialect, and regular expressions in compressed-tensors' alone.
  convert_new(scratch, mixed_tensors(), mixed_config(mixed_layers()),
              in_dialect("compressed-tensors", {rule_of("keep", {"*"})}));
  bool has_regex = false;
  const Json groups = entry_of(scratch).at("config_groups");
  for (const auto& [name, group] : groups.items()) {
    for (const Json& target : group.at("targets")) {
      const auto text = target.get<std::string>();
      has_regex = has_regex || text.starts_with("re:");
      CHECK((text.starts_with("re:") || text.find('*') == text.npos));
    }
  }
  CHECK(has_regex);
}

TEST_CASE("trap 3: several formats within what engines fuse, and within the experts of a layer") {
  const Scratch scratch;
  const auto refused = [&](const char* module) {
    return refusal(scratch, mixed_tensors(), mixed_config(mixed_layers()),
                   in_dialect("modelopt", {rule_of("bf16", {module})}));
  };
  CHECK(contains(refused("*.self_attn.k_proj"), "because loaders give linears that they fuse one format"));
  CHECK(contains(refused("*.experts.1.gate_proj"), "because loaders give the experts of a layer one format"));
  CHECK(contains(refused("*.down_proj"), "because loaders give the experts of a layer one format"));
  // All shards are listed, and share a global scale.
  Tensors t;
  unsigned seed = 1;
  for (const char* name :
       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"}) {
    add_floats(t, kLayer + name, random_floats(32, 64, seed, 0.01f * static_cast<float>(seed)));
    ++seed;
  }
  convert_new(scratch, t, {{"model_type", "llama"}}, Recipe(rule_of("quantize", {})));
  const ReadTensors b = read_tensors(scratch / "b");
  const auto global = [&](const char* name) { return b.at(kLayer + name + ".weight_scale_2").bytes; };
  CHECK(global("self_attn.q_proj") == global("self_attn.k_proj"));
  CHECK(global("self_attn.q_proj") == global("self_attn.v_proj"));
  CHECK(global("mlp.gate_proj") == global("mlp.up_proj"));
  CHECK(global("mlp.gate_proj") != global("self_attn.q_proj"));
}

TEST_CASE("trap 4: two files that describe one checkpoint to different engines") {
  const Scratch scratch;
  Json stale = mixed_layers();
  stale.erase(kExperts + ".0.gate_proj");
  fs::create_directories(scratch / "a");
  const Json file = {
      {"quantization",
       {{"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", stale}, {"exclude_modules", Json::array()}}}};
  write_checkpoint(scratch / "a", {mixed_tensors()}, mixed_config(mixed_layers()).dump());
  put_text(scratch / "a/hf_quant_config.json", file.dump());
  const auto found = lint_ids(scratch / "a");
  CHECK(found.contains("config-disagrees"));
  const Checkpoint source = Checkpoint::open(scratch / "a");
  Progress progress;
  convert(source, make_plan(source, in_dialect("modelopt", {fp8_head()})), scratch / "b", {}, progress);
  CHECK(entry_of(scratch).at("quantized_layers") == file_of(scratch).at("quantized_layers"));
  CHECK(entry_of(scratch).at("quantized_layers").size() == mixed_layers().size() + 1);
  CHECK(entry_of(scratch).at("quant_algo") == file_of(scratch).at("quant_algo"));
  CHECK(entry_of(scratch).at("ignore") == file_of(scratch).at("exclude_modules"));
  CHECK(!lint_ids(scratch / "b").contains("config-disagrees"));

  // Of one format, whose lists count.
  convert_new(scratch, mixed_tensors(), mixed_config(mixed_layers()),
              in_dialect("modelopt", {rule_of("bf16", {"*.self_attn.*"})}));
  CHECK(entry_of(scratch).at("ignore") == file_of(scratch).at("exclude_modules"));
  CHECK(!entry_of(scratch).at("ignore").empty());
  CHECK(!entry_of(scratch).contains("exclude_modules"));
  CHECK(!file_of(scratch).contains("ignore"));
}

TEST_CASE("trap 5: scales of FP8 under any name, rank and type, whatever the algorithm's string says") {
  struct Spelled {
    const char* suffix;
    DType type;
    std::vector<int64_t> shape;
  };
  const Spelled all[] = {
      {".weight_scale_inv", DType::kF32, {1, 2}},   {".weight_scale_inv", DType::kBF16, {1, 2}},
      {".weight_scale", DType::kF32, {1, 1, 2, 1}}, {".scale", DType::kF8E8M0, {1, 2}},
      {".weight_scale", DType::kU8, {64, 8}},       {".weight_scale_inv", DType::kU8, {64, 8}},
      {".weight_scale", DType::kBF16, {64, 1}},     {".weight_scale", DType::kF32, {64}}};
  for (const Spelled& one : all) {
    for (const char* algorithm :
         {"FP8", "FP8_PB_WO", "FP8_BLOCK_SCALES", "MXFP8", "FP8_PER_CHANNEL_PER_TOKEN"}) {
      CAPTURE(one.suffix);
      CAPTURE(algorithm);
      const Scratch scratch;
      const std::string name = kLayer + "self_attn.o_proj";
      const StoredTensor weights = fp8_weights({64, 256}, 7),
                         scales = scales_for_bf16(one.type, one.shape, 8);
      Tensors t;
      weights.add_to(t, name + ".weight");
      scales.add_to(t, name + one.suffix);
      convert_new(scratch, t, mixed_config({{name, {{"quant_algo", algorithm}}}}),
                  Recipe(rule_of("bf16", {})));
      const auto values = read_tensors(scratch / "b").at(name + ".weight").as<uint16_t>();
      const bool by_row =
          one.shape[0] == 64 && one.shape.size() < 3 && (one.shape.size() == 1 || one.shape[1] == 1);
      const bool mx = one.shape.size() == 2 && one.shape[1] == 8;
      size_t wrong = 0;
      for (int64_t i = 0; i < 64 * 256; ++i) {
        const int64_t n = i / 256, k = i % 256, at = by_row ? n : mx ? n * 8 + k / 32 : k / 128;
        const auto exact = static_cast<float>(weights.number(i) * scales.number(at));
        wrong += values[static_cast<size_t>(i)] != bf16_from_float(exact);
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("trap 6: NVFP4 without input scales is declared as weight-only, or has them") {
  const Scratch scratch;
  Tensors t;
  add_experts(t, kExperts, random_experts(2, 32, 64));
  Json config = mixed_config(Json::object());
  config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", 16}};
  write_checkpoint(scratch / "a", {t}, config.dump());
  CHECK(lint_ids(scratch / "a").contains("missing-input-scale"));
  for (const char* words : {"none", "constant"}) {
    Rule rule = rule_of("keep", {"*"});
    rule.input_scale = words;
    convert_new(scratch, t, config, in_dialect("modelopt", {rule}));
    const bool none = std::string(words) == "none";
    CHECK(entry_of(scratch).at("quant_algo") == (none ? "W4A16_NVFP4" : "NVFP4"));
    CHECK(file_of(scratch).at("quant_algo") == (none ? "W4A16_NVFP4" : "NVFP4"));
    CHECK(read_tensors(scratch / "b").contains(kExperts + ".1.up_proj.input_scale") == !none);
    CHECK(!lint_ids(scratch / "b").contains("missing-input-scale"));
  }
  // Quantized linears, too, have none unless asked.
  Tensors floats;
  add_floats(floats, kLayer + "mlp.down_proj", random_floats(32, 64, 3));
  convert_new(scratch, floats, {{"model_type", "llama"}}, Recipe(rule_of("quantize", {})));
  CHECK(entry_of(scratch).at("quant_algo") == "W4A16_NVFP4");
  convert_new(scratch, t, config, in_dialect("compressed-tensors", {rule_of("keep", {"*"})}));
  CHECK(!entry_of(scratch).at("config_groups").at("group_0").value("input_activations", Json()).is_object());
}

TEST_CASE("trap 7: in compressed-tensors the order of groups decides, and experts ask by gate, up and down") {
  const Json four = {{"weights", {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}}},
                     {"targets", {"re:.*experts.*"}}},
             eight = {{"weights", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}},
                      {"targets", {"re:.*proj$"}}};
  const auto read = [](const Json& first, const Json& second) {
    return read_by_vllm({{"quant_method", "compressed-tensors"},
                         {"config_groups", {{"group_0", first}, {"group_1", second}}}},
                        {kExperts + ".0.gate_proj", kExperts + ".0.up_proj", kExperts + ".0.down_proj"});
  };
  CHECK(read(four, eight) == "NVFP4 without input scales");
  CHECK(read(eight, four) == "FP8 with a scale a row");
  Json down = four;
  down["targets"] = {"re:.*down_proj$"};
  CHECK(contains(message_of([&] { read(down, eight); }), "one format for gate, up and down"));
  Json w = four;
  w["targets"] = {"re:.*experts.*w[123]$"};
  CHECK(read(w, w) == "unquantized");

  // Files that say w1, w2 and w3 get targets that match what loaders ask for.
  const Scratch scratch;
  const std::string block = kLayer + "block_sparse_moe.experts";
  Tensors t;
  unsigned seed = 1;
  for (const char* e : {".0.", ".1."}) {
    for (const char* leaf : {"w1", "w2", "w3"})
      add_modelopt(t, block + e + leaf, random_matrix(32, 32, ++seed));
  }
  fp8_weights({48, 64}, 4).add_to(t, kLayer + "self_attn.o_proj.weight");
  t.push_back(f32(kLayer + "self_attn.o_proj.weight_scale", {1}));
  Json config = mixed_config({{kLayer + "self_attn.o_proj", {{"quant_algo", "FP8"}}}});
  config["model_type"] = "mixtral";
  convert_new(scratch, t, config, in_dialect("compressed-tensors", {rule_of("keep", {"*"})}));
  const SourceGroups lookup(entry_of(scratch));
  for (const char* leaf : {".0.gate_proj", ".0.up_proj", ".0.down_proj", ".0.w1", ".0.w2", ".0.w3"})
    CHECK(lookup.find(block + leaf).at("format") == "nvfp4-pack-quantized");
  CHECK(lookup.find(kLayer + "self_attn.o_proj").at("format") == "float-quantized");
}

namespace {

/// DeepSeek-V4 as released: experts of a layer and of the draft in MXFP4, attention in block FP8.
Tensors v4_tensors() {
  Tensors t;
  unsigned seed = 30;
  for (const char* block : {"layers.0.", "mtp.0."}) {
    for (const char* e : {"0.", "1."}) {
      for (const char* leaf : {"w1", "w2", "w3"}) {
        const std::string name = std::string(block) + "ffn.experts." + e + leaf;
        StoredTensor(DType::kI8, {64, 32}, ++seed).add_to(t, name + ".weight");
        t.push_back({name + ".scale", DType::kF8E8M0, {64, 2}, std::vector<uint8_t>(128, 120)});
      }
    }
    fp8_weights({128, 128}, ++seed).add_to(t, std::string(block) + "attn.wo_b.weight");
    t.push_back({std::string(block) + "attn.wo_b.scale", DType::kF8E8M0, {1, 1}, {120}});
  }
  return t;
}

Json v4_config() {
  return {{"model_type", "deepseek_v4"},
          {"num_hidden_layers", 1},
          {"num_nextn_predict_layers", 1},
          {"n_routed_experts", 2},
          {"expert_dtype", "fp4"},
          {"quantization_config",
           {{"quant_method", "fp8"},
            {"activation_scheme", "dynamic"},
            {"fmt", "e4m3"},
            {"scale_fmt", "ue8m0"},
            {"weight_block_size", {128, 128}}}}};
}

}  // namespace

TEST_CASE("trap 8: DeepSeek-V4 with NVFP4 experts stays fp8 and fp4 by name, drafts are cast or listed") {
  const Scratch scratch;
  for (const bool drafts : {false, true}) {
    CAPTURE(drafts);
    const Recipe shipped = read_recipe("recipe", find_shipped_recipe("deepseek-v4-nvfp4")->text);
    const Recipe all(rule_of("quantize", {"layers.*.experts.*", "mtp.*.experts.*"}));
    convert_new(scratch, v4_tensors(), v4_config(), drafts ? all : shipped);
    const Json config = json_at(scratch / "b/config.json"), entry = config.at("quantization_config");
    CHECK(config.at("expert_dtype") == "fp4");
    CHECK(entry.at("quant_method") == "fp8");
    CHECK(entry.at("weight_block_size") == Json({128, 128}));
    CHECK(entry.at("moe_quant_algo") == "NVFP4");
    const auto has_mtp = [](const Json& list) {
      return std::find(list.begin(), list.end(), "mtp.*") != list.end();
    };
    CHECK(has_mtp(entry.at("ignore")) == !drafts);
    CHECK(has_mtp(file_of(scratch).at("exclude_modules")) == !drafts);
    CHECK(entry.at("quantized_layers").contains("mtp.0.ffn.experts") == drafts);
    const ReadTensors a = read_tensors(scratch / "a"), b = read_tensors(scratch / "b");
    for (const auto& [name, tensor] : a) {
      CAPTURE(name);
      const bool cast = name.find("experts") != name.npos && (drafts || !name.starts_with("mtp."));
      if (!cast) CHECK(b.at(name) == tensor);
    }
    CHECK(b.at("layers.0.ffn.experts.1.w2.weight").dtype == DType::kU8);
    CHECK(b.at("mtp.0.ffn.experts.1.w2.weight").dtype == (drafts ? DType::kU8 : DType::kI8));
    CHECK(!b.contains("layers.0.ffn.experts.1.w2.scale"));
  }
}

TEST_CASE("trap 9: lossless has its limits: 17 octaves, 14 octaves, significands of 1, 1.25 and 1.5") {
  const std::string name = "model.layers.0.mlp.down_proj";
  const auto mxfp4 = [&](uint8_t low, uint8_t high) {
    Tensors t;
    t.push_back({name + ".weight", DType::kU8, {1, 32}, std::vector<uint8_t>(32, 0x17)});  // 6 and 0.5
    t.push_back({name + ".weight_scale", DType::kU8, {1, 2}, {low, high}});
    return t;
  };
  const auto nvfp4 = [&](uint8_t scale) {
    Nvfp4Matrix m{1, 32, std::vector<uint8_t>(16, 0x57), {scale, 0x38}, 0.25f};  // 6 and 3
    Tensors t;
    add_modelopt(t, name, m);
    return t;
  };
  const Json config = {
      {"quantization_config", {{"quant_method", "modelopt"}, {"quant_algo", "W4A16_NVFP4"}}}};
  const Scratch scratch;
  const auto is_exact = [&](const Tensors& t, const char* to) {
    Rule rule = rule_of(to, {});
    rule.dialect = "compressed-tensors";
    rule.exact = "strict";
    if (std::string(to) == "fp8") {
      rule.granularity = "block";
      rule.odd_blocks = "write";
    }
    fs::remove_all(scratch / "a");
    fs::remove_all(scratch / "b");
    write_checkpoint(scratch / "a", {t}, config.dump());
    const std::string message = message_of([&] {
      const Checkpoint source = Checkpoint::open(scratch / "a");
      Progress progress;
      convert(source, make_plan(source, Recipe(rule)), scratch / "b", {}, progress);
    });
    if (!message.empty()) CHECK(contains(message, "without loss (--exact strict)"));
    return message.empty();
  };
  CHECK(is_exact(mxfp4(103, 120), "quantize"));
  CHECK(!is_exact(mxfp4(102, 120), "quantize"));
  CHECK(is_exact(mxfp4(106, 120), "fp8"));
  CHECK(!is_exact(mxfp4(105, 120), "fp8"));
  CHECK(is_exact(mxfp4(1, 250), "mxfp8"));
  // 0x38 is 1, then 1.125 to 1.875.
  const bool expected[] = {true, false, true, false, true, false, false, false};
  for (uint8_t i = 0; i < 8; ++i) {
    CAPTURE(i);
    CHECK(is_exact(nvfp4(static_cast<uint8_t>(0x38 + i)), "fp8") == expected[i]);
  }
}

TEST_CASE("trap 10: experts and draft layers that go leave no tensor, row, count or entry behind") {
  const Scratch scratch;
  Tensors t;
  const std::string bias = kLayer + "mlp.gate.e_score_correction_bias";
  const ExpertSet set = random_experts(4, 32, 64);
  add_experts(t, kExperts, set);
  add_experts(t, "model.layers.1.mlp.experts", random_experts(4, 32, 64, 2));  // the draft
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    add_floats(t, std::string(layer) + "mlp.gate", random_floats(4, 64, 5));
    t.push_back(f32(std::string(layer) + "mlp.gate.e_score_correction_bias", {1, 2, 3, 4}, {4}));
  }
  add_bf16(t, "model.layers.1.eh_proj.weight", {64, 128});
  add_bf16(t, "model.norm.weight", {64});
  Json layers = Json::object();
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* e : {"0", "1", "2", "3"}) {
      for (const char* leaf : {"gate_proj", "up_proj", "down_proj"})
        layers[fmt::format("{}mlp.experts.{}.{}", layer, e, leaf)] = {{"quant_algo", "W4A16_NVFP4"},
                                                                      {"group_size", 16}};
    }
  }
  Json config = mixed_config(layers);
  config["num_experts"] = 4;
  config["num_experts_per_tok"] = 2;
  config["num_nextn_predict_layers"] = 1;
  config["hidden_size"] = 64;
  config["layer_types"] = {"full_attention", "full_attention"};
  write_checkpoint(scratch / "a", {t}, config.dump());
  const auto check_listed = [&](const fs::path& out, size_t count) {
    const Json entry = json_at(out / "config.json").at("quantization_config").at("quantized_layers");
    CHECK(entry.size() == count);
    const ReadTensors tensors = read_tensors(out);
    for (const auto& [name, one] : entry.items()) CHECK(tensors.contains(name + ".weight_scale_2"));
    size_t quantized = 0;
    for (const auto& [name, one] : tensors) quantized += name.ends_with(".weight_scale_2");
    CHECK(quantized == count);
    const fs::path index = out / "model.safetensors.index.json";
    if (!fs::exists(index)) return;
    const Json map = json_at(index).at("weight_map");
    CHECK(map.size() == tensors.size());
    for (const auto& [name, file] : map.items()) CHECK(tensors.contains(name));
  };

  const Edit experts{.kind = Edit::Kind::kDropExperts,
                     .experts = {{kExperts, {1, 3}}, {"model.layers.1.mlp.experts", {0, 2}}}};
  write_edited(scratch / "a", {}, experts, scratch / "b");
  check_listed(scratch / "b", 12);
  const ReadTensors b = read_tensors(scratch / "b");
  CHECK(b.at(kExperts + ".1.up_proj.weight").bytes == set.up[3].codes);
  CHECK(!b.contains(kExperts + ".3.up_proj.weight"));
  CHECK(b.at(kLayer + "mlp.gate.weight").shape == std::vector<int64_t>{2, 64});
  CHECK(b.at(bias).as<float>() == std::vector<float>{2, 4});
  CHECK(json_at(scratch / "b/config.json").at("num_experts") == 2);
  CHECK(differences_of_edit(scratch / "b", scratch / "a") == "");

  write_edited(scratch / "a", {}, drop_of({"model.layers.1.*"}), scratch / "c");
  check_listed(scratch / "c", 12);
  for (const auto& [name, one] : read_tensors(scratch / "c")) CHECK(!name.starts_with("model.layers.1."));
  CHECK(json_at(scratch / "c/config.json").at("num_nextn_predict_layers") == 0);
  CHECK(json_at(scratch / "c/config.json").at("layer_types").size() == 1);
  CHECK(differences_of_edit(scratch / "c", scratch / "a") == "");

  // Layers that pick experts by a table of tokens cannot lose any.
  Tensors hashed = t;
  hashed.push_back({kLayer + "mlp.gate.tid2eid", DType::kI64, {4, 2}, std::vector<uint8_t>(64)});
  write_checkpoint(scratch / "h", {hashed}, config.dump());
  CHECK(contains(message_of([&] { write_edited(scratch / "h", {}, experts, scratch / "d"); }),
                 "tid2eid: expected experts that a router chooses, found a hash layer"));
  CHECK(!fs::exists(scratch / "d"));
}

}  // namespace traps_test
