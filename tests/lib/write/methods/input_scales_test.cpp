#include "lib/recipe/selection/input_scales.h"
#include "lib/source/checkpoint/configured_quantization.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/lint/lint.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

namespace input_scales_test {

using namespace twofour;

namespace {

/// Multipliers by module; 0: there is no input scale.
using Multipliers = std::map<std::string, float>;

const std::string kLayer = "model.layers.0.", kExperts = kLayer + "mlp.experts.";

void add_scalar(Tensors& to, const std::string& name, float value, const std::vector<int64_t>& shape) {
  std::vector<uint8_t> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  to.push_back({name, DType::kF32, shape, bytes});
}

void add_input_scale(Tensors& to, const std::string& dialect, const std::string& module, float multiplier) {
  if (multiplier == 0) return;
  if (dialect == "modelopt")
    add_scalar(to, module + ".input_scale", multiplier, {});
  else
    add_scalar(to, module + ".input_global_scale", 1 / multiplier, {1});
}

Json config_of(const std::string& dialect, bool with_scales, const char* left = "lm_head") {
  Json entry;
  if (dialect == "modelopt") {
    entry = {{"quant_method", "modelopt"},
             {"quant_algo", with_scales ? "NVFP4" : "W4A16_NVFP4"},
             {"group_size", 16},
             {"ignore", {left}}};
  } else {
    const Json four = {{"num_bits", 4},
                       {"type", "float"},
                       {"strategy", "tensor_group"},
                       {"group_size", 16},
                       {"symmetric", true}};
    Json inputs = four, weights = four;
    inputs["dynamic"] = "local";
    weights["dynamic"] = false;
    entry = {{"quant_method", "compressed-tensors"},
             {"format", "nvfp4-pack-quantized"},
             {"ignore", {left}},
             {"config_groups",
              {{"group_0",
                {{"targets", {"Linear"}},
                 {"weights", weights},
                 {"input_activations", with_scales ? inputs : Json(nullptr)}}}}}};
  }
  return {{"model_type", "qwen3_moe"},
          {"num_hidden_layers", 1},
          {"num_experts", 3},
          {"quantization_config", entry}};
}

/// Three experts and an attention in NVFP4, with these input scales, and a head in BF16.
Tensors nvfp4_tensors(const std::string& dialect, const Multipliers& scales) {
  Tensors t;
  unsigned seed = 5;
  for (const auto& [module, multiplier] : scales) {
    const bool is_down = module.ends_with("down_proj");
    const Nvfp4Matrix m = random_matrix(is_down ? 32 : 48, is_down ? 48 : 32, ++seed);
    dialect == "modelopt" ? add_modelopt(t, module, m) : add_compressed_tensors(t, module, m);
    add_input_scale(t, dialect, module, multiplier);
  }
  add_floats(t, "lm_head", random_floats(32, 32, 2));
  return t;
}

/// Powers of two, so that reciprocals are exact. `spare` has none.
Multipliers source_scales(const std::string& spare = {}) {
  Multipliers all;
  float next = 1.0f / 64;
  for (const char* e : {"0.", "1.", "2."}) {
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) {
      const std::string name = kExperts + e + leaf;
      all[name] = (next *= 2);
    }
  }
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"}) all[kLayer + "self_attn." + leaf] = 0.125f;
  for (auto& [name, scale] : all) {
    if (!spare.empty() && name.find(spare) != name.npos) scale = 0;
  }
  return all;
}

Recipe keep_with(const std::string& dialect, const std::string& words, bool one_a_layer = false) {
  Rule rule;
  rule.to = "keep";
  rule.selection.from_default = false;
  rule.selection.also = parse_patterns({"*"});
  rule.input_scale = words;
  rule.one_input_scale_a_layer = one_a_layer;
  Recipe recipe(rule);
  recipe.dialect = dialect;
  return recipe;
}

Recipe quantize_with(const std::string& dialect, const std::string& words, bool one_a_layer = false) {
  Rule rule;
  rule.to = "quantize";
  rule.dialect = dialect;
  rule.input_scale = words;
  rule.one_input_scale_a_layer = one_a_layer;
  return Recipe(rule);
}

FixedGlobalScales amax_of(const Multipliers& scales) {
  FixedGlobalScales given;
  for (const auto& [name, scale] : scales)
    given.scales.push_back({name, std::bit_cast<uint32_t>(scale * 2688)});
  given.sort();
  return given;
}

/// Converts, proves every byte, and lints what came out.
void convert_with(const Scratch& scratch, const Recipe& recipe, const char* from = "a",
                  const char* to = "b") {
  const Checkpoint source = Checkpoint::open(scratch / from);
  std::filesystem::remove_all(scratch / to);
  Progress progress;
  convert(source, make_plan(source, recipe), scratch / to, {}, progress);
  const ValidateReport report = validate_from(scratch / from, scratch / to);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
  const LintReport found = lint(scratch / to, {}, progress);
  for (const LintFinding& f : found.findings) {
    const std::string id = lint_rules()[f.rule].id;
    const bool about_scales = id == "missing-input-scale" || id == "unequal-input-scales" ||
                              id == "bad-input-scale" || id.starts_with("config-");
    CHECK_MESSAGE(!about_scales, id << ": " << f.where() << ": " << f.message);
  }
}

std::string refusal(const Scratch& scratch, const Recipe& recipe) {
  const Checkpoint source = Checkpoint::open(scratch / "a");
  return message_of([&] { make_plan(source, recipe); });
}

/// What a checkpoint stores, as multipliers; types and shapes are the dialect's.
Multipliers stored_scales(const std::filesystem::path& path, const std::string& dialect,
                          const Multipliers& modules) {
  const bool divides = dialect == "compressed-tensors";
  const ReadTensors tensors = read_tensors(path);
  Multipliers found;
  size_t count = 0;
  for (const auto& [name, scale] : modules) {
    const auto at = tensors.find(name + (divides ? ".input_global_scale" : ".input_scale"));
    found[name] = 0;
    if (at == tensors.end()) continue;
    ++count;
    CHECK(at->second.dtype == DType::kF32);
    CHECK(at->second.shape == (divides ? std::vector<int64_t>{1} : std::vector<int64_t>{}));
    const float value = at->second.as<float>().at(0);
    found[name] = divides ? 1 / value : value;
  }
  for (const auto& [name, tensor] : tensors) {
    if (name.ends_with(".input_scale") || name.ends_with(".input_global_scale")) --count;
  }
  CHECK(count == 0);  // no others
  return found;
}

/// Whether the configuration, of one format, says of activations what the tensors do.
void check_config(const std::filesystem::path& path, const std::string& dialect, const Multipliers& scales) {
  const bool with_scales = scales.begin()->second > 0;
  const auto files = read_tree(path);
  const Json entry = Json::parse(files.at("config.json")).at("quantization_config");
  if (dialect == "modelopt") {
    const char* algorithm = with_scales ? "NVFP4" : "W4A16_NVFP4";
    CHECK(entry.at("quant_algo") == algorithm);
    CHECK(Json::parse(files.at("hf_quant_config.json")).at("quantization").at("quant_algo") == algorithm);
  } else {
    const Json group = entry.at("config_groups").at("group_0");
    CHECK((group.contains("input_activations") && group.at("input_activations").is_object()) == with_scales);
  }
}

/// What engines fuse shares its largest scale.
Multipliers fused(Multipliers scales) {
  const auto share = [&](const std::vector<std::string>& names) {
    float most = 0;
    for (const std::string& name : names) most = std::max(most, scales.at(name));
    for (const std::string& name : names) scales[name] = most;
  };
  for (const char* e : {"0.", "1.", "2."}) share({kExperts + e + "gate_proj", kExperts + e + "up_proj"});
  const std::string attention = kLayer + "self_attn.";
  share({attention + "q_proj", attention + "k_proj", attention + "v_proj"});
  return scales;
}

/// Experts of the layer share the largest of gate and up, and of down.
Multipliers one_a_layer(Multipliers scales) {
  float gate_up = 0, down = 0;
  for (const auto& [name, scale] : scales) {
    if (name.find("experts") == name.npos) continue;
    float& most = name.ends_with("down_proj") ? down : gate_up;
    most = std::max(most, scale);
  }
  for (auto& [name, scale] : scales) {
    if (name.find("experts") != name.npos) scale = name.ends_with("down_proj") ? down : gate_up;
  }
  return scales;
}

Multipliers all_of(float scale) {
  Multipliers all = source_scales();
  for (auto& [name, own] : all) own = scale;
  return all;
}

const char* const kDialects[] = {"modelopt", "compressed-tensors"};

}  // namespace

TEST_CASE("NVFP4 of either dialect gets the input scales that a rule's words give, in either dialect") {
  const Scratch scratch;
  Multipliers filled = source_scales();  // expert 1 takes the largest of the others
  for (const char* leaf : {"gate_proj", "up_proj"})
    filled[kExperts + "1." + leaf] = filled[kExperts + "2.up_proj"];
  filled[kExperts + "1.down_proj"] = filled[kExperts + "2.down_proj"];
  const Multipliers given = [] {
    Multipliers some = all_of(0);
    float next = 1.0f / 32;
    for (auto& [name, scale] : some) scale = (next *= 2);
    return some;
  }();
  struct Case {
    const char* words;
    bool one;
    const char* spare;
    Multipliers expected;
  };
  const std::vector<Case> cases = {
      {"none", false, "", all_of(0)},
      {"none", false, "experts.1.", all_of(0)},
      {"constant", false, "", all_of(1)},
      {"constant=1.0", false, ".", all_of(1)},
      {"constant=0.25", false, "experts.1.", all_of(0.25f)},
      {"constant=0.25", true, "", all_of(0.25f)},
      {"neighbours", false, "experts.1.", fused(filled)},
      {"neighbours", true, "experts.1.", one_a_layer(fused(filled))},
      {"neighbours", false, "", fused(source_scales())},
      {"given", false, ".", fused(given)},
      {"given", true, "experts.1.", one_a_layer(fused(given))},
      {"", true, "", one_a_layer(fused(source_scales()))},
      {"keep", true, "", one_a_layer(fused(source_scales()))},
  };
  for (const char* from : kDialects) {
    for (const Case& one : cases) {
      const Multipliers before = source_scales(one.spare);
      const bool any = std::string(one.spare) != ".";
      write_checkpoint(scratch / "a", {nvfp4_tensors(from, before)}, config_of(from, any).dump());
      for (const char* to : kDialects) {
        CAPTURE(from);
        CAPTURE(to);
        CAPTURE(one.words);
        CAPTURE(one.spare);
        CAPTURE(one.one);
        Recipe recipe = keep_with(to, one.words, one.one);
        if (std::string(one.words) == "given") recipe.rules[0].input_scales = amax_of(given);
        convert_with(scratch, recipe);
        CHECK(stored_scales(scratch / "b", to, before) == one.expected);
        check_config(scratch / "b", to, one.expected);
        // Weights stay as they are.
        const ReadTensors a = read_tensors(scratch / "a"), b = read_tensors(scratch / "b");
        for (const auto& [name, scale] : before) {
          const auto codes = [&](const ReadTensors& in, const char* dialect) {
            return in.at(name + (dialect == kDialects[0] ? ".weight" : ".weight_packed")).bytes;
          };
          CHECK(codes(a, from) == codes(b, to));
          CHECK(a.at(name + ".weight_scale") == b.at(name + ".weight_scale"));
        }
        std::filesystem::remove_all(scratch / "b");
      }
      std::filesystem::remove_all(scratch / "a");
    }
  }
}

TEST_CASE("keep leaves input scales as they are, gate and up unequal too, and so does no word") {
  for (const std::string words : {"", "keep"}) {
    for (const std::string dialect : kDialects) {
      const Scratch scratch;
      Multipliers scales = source_scales();
      scales[kExperts + "2.gate_proj"] = 1.0f / 3;
      write_checkpoint(scratch / "a", {nvfp4_tensors(dialect, scales)}, config_of(dialect, true).dump());
      const Checkpoint source = Checkpoint::open(scratch / "a");
      Progress progress;
      convert(source, make_plan(source, keep_with("source", words)), scratch / "b", {}, progress);
      CHECK(validate_from(scratch / "a", scratch / "b").differences.empty());
      CHECK(read_tensors(scratch / "a") == read_tensors(scratch / "b"));
    }
  }
}

TEST_CASE("modules that have the scale that they are to get keep its very bits") {
  // 1 / (1 / x) is another number for some x.
  float odd = 3;
  while (1 / (1 / odd) == odd) odd = std::nextafter(odd, 4.0f);
  const Scratch scratch;
  Multipliers scales = source_scales("experts.1.");
  Tensors tensors = nvfp4_tensors("compressed-tensors", scales);
  for (TensorData& t : tensors) {
    if (t.name.ends_with(".input_global_scale")) std::memcpy(t.bytes.data(), &odd, sizeof(odd));
  }
  write_checkpoint(scratch / "a", {tensors}, config_of("compressed-tensors", true).dump());
  convert_with(scratch, keep_with("compressed-tensors", "neighbours"));
  const ReadTensors b = read_tensors(scratch / "b");
  CHECK(b.at(kExperts + "0.up_proj.input_global_scale").as<float>()[0] == odd);
  CHECK(b.at(kExperts + "1.up_proj.input_global_scale").as<float>()[0] == 1 / (1 / odd));
}

TEST_CASE("scales of 0, as calibration leaves them, are missing ones to neighbours") {
  for (const std::string dialect : kDialects) {
    const Scratch scratch;
    Tensors tensors = nvfp4_tensors(dialect, source_scales("experts.1.down_proj"));
    if (dialect == "modelopt")
      add_scalar(tensors, kExperts + "1.down_proj.input_scale", 0, {});
    else
      add_scalar(tensors, kExperts + "1.down_proj.input_global_scale", INFINITY, {1});
    write_checkpoint(scratch / "a", {tensors}, config_of(dialect, true).dump());
    convert_with(scratch, keep_with("source", "neighbours"));
    CHECK(stored_scales(scratch / "b", dialect, source_scales()).at(kExperts + "1.down_proj") ==
          source_scales().at(kExperts + "2.down_proj"));
  }
}

TEST_CASE("what words cannot give is refused by name") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {nvfp4_tensors("modelopt", source_scales("down_proj"))},
                   config_of("modelopt", true).dump());
  SUBCASE("neighbours without any in the layer") {
    const std::string message = refusal(scratch, keep_with("modelopt", "neighbours"));
    CHECK(contains(message, kExperts + "0.down_proj: expected an input scale in its projection of the layer "
                                       "(--input-scale neighbours), found none"));
  }
  SUBCASE("a module that the file lacks") {
    Multipliers some = all_of(1);
    some.erase(kExperts + "2.up_proj");
    Recipe recipe = keep_with("modelopt", "given");
    recipe.rules[0].input_scales = amax_of(some);
    CHECK(contains(refusal(scratch, recipe), kExperts + "2.up_proj: expected " + kExperts +
                                                 "2.up_proj.amax in the file of input scales, found none"));
  }
  SUBCASE("a module that the source lacks") {
    Multipliers more = all_of(1);
    more[kExperts + "3.up_proj"] = 1;
    Recipe recipe = keep_with("modelopt", "given");
    recipe.rules[0].input_scales = amax_of(more);
    CHECK(contains(refusal(scratch, recipe),
                   kExperts + "3.up_proj.amax in the file of input scales: expected a linear of "));
  }
  SUBCASE("a linear that no rule takes may be in the file") {
    Multipliers more = all_of(1);
    more["lm_head"] = 1;
    Recipe recipe = keep_with("modelopt", "given");
    recipe.rules[0].input_scales = amax_of(more);
    CHECK(refusal(scratch, recipe).empty());
  }
  SUBCASE("words that no option has") {
    for (const char* words :
         {"constants", "constant:1", "constant=", "constant=0", "constant=-1", "constant=nan", "constant=inf",
          "constant=1e-45", "constant=1x", "from", "all"}) {
      CAPTURE(words);
      CHECK(contains(message_of([&] { keep_with("modelopt", words); }), "expected "));
    }
  }
  SUBCASE("one scale a layer of none") {
    CHECK(contains(refusal(scratch, keep_with("modelopt", "none", true)),
                   "--one-input-scale-a-layer: expected input scales, found --input-scale none"));
    CHECK(contains(refusal(scratch, keep_with("modelopt", "neighbours")), "found none"));
  }
}

TEST_CASE(
    "input scales that are no numbers are refused where words look at them, and do not matter elsewhere") {
  const Scratch scratch;
  for (const float bad : {-1.0f, std::numeric_limits<float>::quiet_NaN(), -0.5f}) {
    Tensors tensors = nvfp4_tensors("modelopt", source_scales("experts.1.down_proj"));
    add_scalar(tensors, kExperts + "1.down_proj.input_scale", bad, {});
    write_checkpoint(scratch / "a", {tensors}, config_of("modelopt", true).dump());
    CHECK(contains(refusal(scratch, keep_with("modelopt", "neighbours")),
                   "1.down_proj.input_scale: expected a positive finite input scale, found "));
    for (const char* words : {"none", "constant=0.5"}) {
      CAPTURE(words);
      convert_with(scratch, keep_with("modelopt", words));
    }
    std::filesystem::remove_all(scratch / "a");
  }
  Tensors tensors = nvfp4_tensors("modelopt", source_scales("experts.1.down_proj"));
  add_scalar(tensors, kExperts + "1.down_proj.input_scale", 1, {});
  tensors.back().dtype = DType::kBF16;
  tensors.back().bytes.resize(2);
  write_checkpoint(scratch / "a", {tensors}, config_of("modelopt", true).dump());
  CHECK(contains(refusal(scratch, keep_with("modelopt", "neighbours")),
                 "1.down_proj.input_scale: expected F32 [] or [1], found BF16 []"));
}

TEST_CASE("a rule with input scales that keeps no NVFP4, and stacks, are refused") {
  const Scratch scratch;
  Tensors t;
  add_floats(t, kLayer + "mlp.down_proj", random_floats(32, 32, 2));
  write_checkpoint(scratch / "a", {t}, config_of("modelopt", true).dump());
  CHECK(contains(refusal(scratch, keep_with("source", "none")),
                 "--input-scale: expected NVFP4 among the modules that stay, found none"));
  Tensors stack;
  const ExpertSet set = random_experts(2, 32, 64);
  std::vector<Nvfp4Matrix> both;
  for (size_t e = 0; e < 2; ++e) both.push_back(stack_rows(set.gate[e], set.up[e]));
  add_stack(stack, kLayer + "mlp.experts.gate_up_proj", both, false, {});
  add_stack(stack, kLayer + "mlp.experts.down_proj", set.down, false, {});
  Json config = config_of("modelopt", false);
  config["model_type"] = "llama4_text";
  write_checkpoint(scratch / "s", {stack}, config.dump());
  const Checkpoint source = Checkpoint::open(scratch / "s");
  CHECK(contains(message_of([&] { make_plan(source, keep_with("source", "constant")); }), "found a stack"));
}

namespace {

/// Linears of `dtype` in place of NVFP4: floats, or FP8 with a scale a tensor and the input scales (amax /
/// 448).
Tensors other_tensors(DType dtype, const Multipliers& scales) {
  Tensors t;
  unsigned seed = 40;
  for (const auto& [module, multiplier] : scales) {
    const bool is_down = module.ends_with("down_proj");
    const int64_t n = is_down ? 32 : 48, k = is_down ? 48 : 32;
    if (dtype == DType::kBF16) {
      add_floats(t, module, random_floats(n, k, ++seed));
      continue;
    }
    fp8_weights({n, k}, ++seed).add_to(t, module + ".weight");
    add_scalar(t, module + ".weight_scale", 0.5f, {});
    if (multiplier > 0) add_scalar(t, module + ".input_scale", multiplier * 6, {});
  }
  add_floats(t, "lm_head", random_floats(32, 32, 2));
  return t;
}

Json fp8_config() {
  Json config = config_of("modelopt", true);
  config["quantization_config"]["quant_algo"] = "FP8";
  return config;
}

}  // namespace

TEST_CASE("quantize writes the input scales that its words give, from floats and from FP8") {
  const Scratch scratch;
  Multipliers filled = source_scales();
  for (const char* leaf : {"gate_proj", "up_proj"})
    filled[kExperts + "1." + leaf] = filled[kExperts + "2.up_proj"];
  filled[kExperts + "1.down_proj"] = filled[kExperts + "2.down_proj"];
  struct Case {
    DType dtype;
    const char* words;
    bool one;
    Multipliers expected;
  };
  const std::vector<Case> cases = {
      {DType::kBF16, "", false, all_of(0)},
      {DType::kBF16, "none", false, all_of(0)},
      {DType::kBF16, "constant", false, all_of(1)},
      {DType::kBF16, "constant=0.5", true, all_of(0.5f)},
      {DType::kBF16, "given", false, fused(source_scales())},
      {DType::kBF16, "given", true, one_a_layer(fused(source_scales()))},
      {DType::kF8E4M3, "", false, all_of(0)},
      {DType::kF8E4M3, "none", false, all_of(0)},
      {DType::kF8E4M3, "keep", false, fused(source_scales())},
      {DType::kF8E4M3, "keep", true, one_a_layer(fused(source_scales()))},
      {DType::kF8E4M3, "constant=0.5", false, all_of(0.5f)},
      {DType::kF8E4M3, "given", false, fused(source_scales())},
      {DType::kF8E4M3, "neighbours", false, fused(filled)},
      {DType::kF8E4M3, "neighbours", true, one_a_layer(fused(filled))},
  };
  for (const Case& one : cases) {
    const bool is_fp8 = one.dtype == DType::kF8E4M3;
    const Multipliers before = source_scales(std::string(one.words) == "neighbours" ? "experts.1." : "");
    Json config = fp8_config();
    if (!is_fp8) config.erase("quantization_config");
    write_checkpoint(scratch / "a", {other_tensors(one.dtype, before)}, config.dump());
    for (const std::string to : kDialects) {
      CAPTURE(is_fp8);
      CAPTURE(to);
      const std::string words = one.words;
      CAPTURE(words);
      CAPTURE(one.one);
      Recipe recipe = quantize_with(to, words, one.one);
      if (words == "given") recipe.rules[0].input_scales = amax_of(source_scales());
      convert_with(scratch, recipe);
      CHECK(stored_scales(scratch / "b", to, before) == one.expected);
      check_config(scratch / "b", to, one.expected);
    }
    std::filesystem::remove_all(scratch / "a");
  }
}

TEST_CASE("quantize refuses words that floats, or half of what engines fuse, cannot give") {
  const Scratch scratch;
  Json config = config_of("modelopt", true);
  config.erase("quantization_config");
  write_checkpoint(scratch / "a", {other_tensors(DType::kBF16, source_scales())}, config.dump());
  CHECK(contains(refusal(scratch, quantize_with("modelopt", "neighbours")),
                 "expected an input scale in its projection of the layer"));
  CHECK(contains(refusal(scratch, quantize_with("modelopt", "", true)),
                 "--one-input-scale-a-layer: expected --input-scale beside it, found none"));
  CHECK(contains(refusal(scratch, quantize_with("modelopt", "none", true)),
                 "--one-input-scale-a-layer: expected input scales, found --input-scale none"));
  std::filesystem::remove_all(scratch / "a");
  write_checkpoint(scratch / "a", {other_tensors(DType::kF8E4M3, source_scales("experts.1.up_proj"))},
                   fp8_config().dump());
  for (const auto& [dialect, found] :
       {std::pair{"modelopt", "W4A16_NVFP4"},
        {"compressed-tensors", "nvfp4-pack-quantized (tensor_group, only weights)"}}) {
    const std::string message = refusal(scratch, quantize_with(dialect, "keep"));
    CHECK(contains(message, kExperts + "1.up_proj: expected "));
    CHECK(contains(message, std::string("found ") + found));
  }
}

TEST_CASE("a mixed source: rules of their own for what stays NVFP4, becomes it, and stays FP8") {
  // Expert 0 to 2 in FP8, attention in NVFP4 without input scales, an MLP beside it that has them.
  const Scratch scratch;
  const std::string attention = kLayer + "self_attn.", shared = kLayer + "mlp.shared_expert.";
  Tensors t = other_tensors(DType::kF8E4M3, source_scales("self_attn"));
  std::erase_if(t, [](const TensorData& one) { return one.name.find("self_attn") != one.name.npos; });
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"})
    add_modelopt(t, attention + leaf, random_matrix(48, 32, 3));
  for (const char* leaf : {"gate_proj", "up_proj"}) {
    add_modelopt(t, shared + leaf, random_matrix(48, 32, 4));
    add_input_scale(t, "modelopt", shared + leaf, 0.125f);
  }
  fp8_weights({32, 48}, 9).add_to(t, shared + "down_proj.weight");
  add_scalar(t, shared + "down_proj.weight_scale", 0.5f, {});
  add_scalar(t, shared + "down_proj.input_scale", 0.75f, {});
  Json layers = Json::object();
  for (const auto& [name, scale] : source_scales()) {
    if (scale > 0 && name.find("experts") != name.npos) layers[name] = {{"quant_algo", "FP8"}};
  }
  layers[shared + "down_proj"] = {{"quant_algo", "FP8"}};
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"})
    layers[attention + leaf] = {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}};
  for (const char* leaf : {"gate_proj", "up_proj"})
    layers[shared + leaf] = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
  Json config = config_of("modelopt", true);
  config["quantization_config"] = {
      {"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}};
  write_checkpoint(scratch / "a", {t}, config.dump());

  const auto rule = [](const char* to, const char* match, const char* words) {
    Rule one;
    one.to = to;
    one.selection.from_default = false;
    one.selection.also = parse_patterns({match});
    one.input_scale = words;
    return one;
  };
  Multipliers modules;
  for (const auto& [name, scale] : source_scales()) modules[name] = 0;
  for (const char* leaf : {"gate_proj", "up_proj"}) modules[shared + leaf] = 0;
  for (const std::string to : kDialects) {
    CAPTURE(to);
    const bool ct = to == "compressed-tensors";
    const auto scale_of = [&](const std::string& module) {
      const ReadTensors b = read_tensors(scratch / "b");
      const auto at = b.find(module + (ct ? ".input_global_scale" : ".input_scale"));
      const float stored = at == b.end() ? 0 : at->second.as<float>()[0];
      return ct && stored > 0 ? 1 / stored : stored;
    };
    Recipe recipe;
    recipe.dialect = to;
    recipe.rules = {rule("quantize", "*.experts.*", "keep"), rule("keep", "*.self_attn.*", "constant=0.5"),
                    rule("keep", "*.shared_expert.*", "none")};
    convert_with(scratch, recipe);
    for (const auto& [name, scale] : fused(source_scales())) {
      CAPTURE(name);
      CHECK(scale_of(name) == (name.find("experts") == name.npos ? 0.5f : scale));
    }
    CHECK(scale_of(shared + "up_proj") == 0);
    CHECK(read_tensors(scratch / "b").at(shared + "down_proj.input_scale").as<float>()[0] == 0.75f);
    const Json entry = Json::parse(read_tree(scratch / "b").at("config.json")).at("quantization_config");
    if (ct) {
      const SourceGroups lookup(entry);
      CHECK(lookup.find(attention + "q_proj").at("input_activations").is_object());
      CHECK(!lookup.find(shared + "up_proj").value("input_activations", Json()).is_object());
    } else {
      const Json& listed = entry.at("quantized_layers");
      CHECK(listed.at(attention + "q_proj").at("quant_algo") == "NVFP4");
      CHECK(listed.at(shared + "up_proj").at("quant_algo") == "W4A16_NVFP4");
      CHECK(listed.at(kExperts + "1.up_proj").at("quant_algo") == "NVFP4");
      CHECK(listed.at(shared + "down_proj").at("quant_algo") == "FP8");
    }

    // What is to be NVFP4 and is so already keeps the input scale that it has, and gets one where it lacks
    // one.
    recipe.rules = {rule("keep", "lm_head", ""), rule("quantize", "*", "constant=0.5")};
    convert_with(scratch, recipe);
    CHECK(scale_of(shared + "up_proj") == 0.125f);
    CHECK(scale_of(attention + "k_proj") == 0.5f);
    CHECK(scale_of(kExperts + "2.down_proj") == 0.5f);
  }
}

TEST_CASE("neighbours are all linears of the layer, in whatever format they are and stay") {
  // Experts 0 and 1 in FP8 with input scales; 2 in BF16, which alone is quantized with them.
  const Scratch scratch;
  const Multipliers scales = source_scales();
  Tensors t = other_tensors(DType::kF8E4M3, scales), floats = other_tensors(DType::kBF16, scales);
  const auto is_two = [](const TensorData& one) { return one.name.find("experts.2.") != one.name.npos; };
  std::erase_if(t, is_two);
  for (const TensorData& one : floats) {
    if (is_two(one)) t.push_back(one);
  }
  write_checkpoint(scratch / "a", {t}, fp8_config().dump());
  Recipe recipe = quantize_with("modelopt", "neighbours");
  recipe.rules[0].selection.include = parse_patterns({"*.experts.*"});
  convert_with(scratch, recipe);
  const ReadTensors b = read_tensors(scratch / "b");
  CHECK(b.at(kExperts + "2.down_proj.input_scale").as<float>()[0] == scales.at(kExperts + "1.down_proj"));
  CHECK(b.at(kExperts + "2.gate_proj.input_scale").as<float>()[0] == scales.at(kExperts + "1.up_proj"));
}

namespace {

const std::string kV4 = "layers.0.ffn.experts.";

/// DeepSeek-V4's own form: two layers, experts 0 and 1 in MXFP4 and attention in block FP8.
Tensors v4_tensors() {
  Tensors t;
  unsigned seed = 60;
  for (const char* layer : {"layers.0.", "layers.1."}) {
    for (const char* e : {"0.", "1."}) {
      for (const char* leaf : {"w1", "w2", "w3"}) {
        const std::string name = std::string(layer) + "ffn.experts." + e + leaf;
        StoredTensor(DType::kI8, {64, 32}, ++seed).add_to(t, name + ".weight");
        StoredTensor scales(DType::kF8E8M0, {64, 2}, ++seed, 8);
        for (uint8_t& byte : scales.bytes) byte += 118;
        scales.add_to(t, name + ".scale");
      }
    }
    fp8_weights({128, 128}, ++seed).add_to(t, std::string(layer) + "attn.wo_b.weight");
    t.push_back({std::string(layer) + "attn.wo_b.scale", DType::kF8E8M0, {1, 1}, {120}});
    add_bf16(t, std::string(layer) + "ffn.gate.weight", {2, 64}, ++seed);
  }
  return t;
}

Json v4_config() {
  return {{"model_type", "deepseek_v4"},
          {"num_hidden_layers", 2},
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

TEST_CASE("DeepSeek-V4's own form: constant by default, and never none") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {v4_tensors()}, v4_config().dump());
  Multipliers modules;
  for (const TensorData& t : v4_tensors()) {
    if (t.dtype == DType::kI8) modules[t.name.substr(0, t.name.size() - 7)] = 0;
  }
  const auto every = [&](float scale) {
    Multipliers all = modules;
    for (auto& [name, own] : all) own = scale;
    return all;
  };
  for (const auto& [words, scale] : {std::pair{"", 1.0f}, {"constant=0.25", 0.25f}, {"given", 0.5f}}) {
    CAPTURE(words);
    Recipe recipe = quantize_with("", words);
    recipe.rules[0].selection.include = parse_patterns({"*.experts.*"});
    if (std::string(words) == "given") recipe.rules[0].input_scales = amax_of(every(0.5f));
    convert_with(scratch, recipe);
    CHECK(stored_scales(scratch / "b", "modelopt", modules) == every(scale));
    const Json entry = Json::parse(read_tree(scratch / "b").at("config.json")).at("quantization_config");
    CHECK(entry.at("quant_method") == "fp8");
    CHECK(entry.at("moe_quant_algo") == "NVFP4");
  }
  CHECK(contains(
      refusal(scratch, quantize_with("deepseek-v4", "none")),
      "--input-scale none: expected input scales in DeepSeek-V4's form, because its loaders read them"));
  CHECK(contains(refusal(scratch, quantize_with("deepseek-v4", "neighbours")),
                 "expected an input scale in its projection of the layer"));

  // What is in that form and NVFP4 already.
  Recipe recipe = quantize_with("", "");
  recipe.rules[0].selection.include = parse_patterns({"*.experts.*"});
  convert_with(scratch, recipe, "a", "n");
  std::filesystem::remove(scratch / "n" / "twofour.json");
  const auto kept = [&](const char* words) {
    const Checkpoint source = Checkpoint::open(scratch / "n");
    return message_of([&] { make_plan(source, keep_with("source", words)); });
  };
  CHECK(contains(kept("none"), "--input-scale none: expected input scales in DeepSeek-V4's form"));
  convert_with(scratch, keep_with("source", "constant=0.5"), "n", "b");
  CHECK(stored_scales(scratch / "b", "modelopt", modules) == every(0.5f));
}

TEST_CASE("DeepSeek-V4's own form: a layer that has input scales keeps and shares them, another gets 1") {
  const Scratch scratch;
  Tensors t = v4_tensors();
  // FP8 experts with static activations in layer 0, expert 1's w2 without.
  std::erase_if(t, [](const TensorData& one) { return one.name.starts_with(kV4); });
  for (const char* e : {"0.", "1."}) {
    for (const char* leaf : {"w1", "w2", "w3"}) {
      const std::string name = kV4 + e + leaf;
      fp8_weights({64, 64}, 80).add_to(t, name + ".weight");
      t.push_back({name + ".scale", DType::kF8E8M0, {1, 1}, {120}});
      if (name != kV4 + "1.w2") add_scalar(t, name + ".input_scale", 1.5f, {});
    }
  }
  write_checkpoint(scratch / "a", {t}, v4_config().dump());
  Recipe recipe = quantize_with("", "");
  recipe.rules[0].selection.include = parse_patterns({"*.experts.*"});
  convert_with(scratch, recipe);
  const ReadTensors b = read_tensors(scratch / "b");
  CHECK(b.at(kV4 + "0.w1.input_scale").as<float>()[0] == 0.25f);
  CHECK(b.at(kV4 + "1.w2.input_scale").as<float>()[0] == 0.25f);
  CHECK(b.at("layers.1.ffn.experts.0.w2.input_scale").as<float>()[0] == 1);
}

}  // namespace input_scales_test
