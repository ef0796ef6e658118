#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "lib/lint/lint.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/diff_of.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"

/// The meaning of a stored weight: everything that changes it is refused, never read as if it were not there.
namespace meaning_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";
constexpr const char* kNvfp4Targets[] = {"v7", "v7-packed", "g8", "prune", "bf16", "nvfp4", "fp8"};

OneRule recipe_to(const std::string& to) {
  OneRule recipe;
  recipe.to = to;
  if (to == "prune") recipe.pattern = "2:4";
  return recipe;
}

/// The messages of every way to convert NVFP4; "" if one goes through.
std::vector<std::string> refusals(const Tensors& tensors, const std::string& config = "{}") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors}, config);
  std::vector<std::string> messages;
  for (const char* layout : kNvfp4Targets) {
    messages.push_back(message_of([&] { convert(scratch / "src", scratch / layout, recipe_to(layout)); }));
    CHECK(messages.back().empty() == fs::exists(scratch / layout));
  }
  return messages;
}

/// Ids of the rules that find something in a checkpoint.
std::set<std::string> linted(const fs::path& path) {
  Progress progress;
  std::set<std::string> ids;
  for (const LintFinding& f : lint(path, {}, progress).findings) ids.insert(lint_rules()[f.rule].id);
  return ids;
}

Tensors experts_with(const std::string& suffix, DType dtype, std::vector<int64_t> shape,
                     std::vector<uint8_t> bytes) {
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(2, 16, 32));
  tensors.push_back({kBlock + ".1.up_proj" + suffix, dtype, std::move(shape), std::move(bytes)});
  return tensors;
}

}  // namespace

TEST_CASE("terms beside weights are refused by every way to convert them, and found by lint") {
  const auto check = [](const Tensors& tensors) {
    const std::string& name = tensors.back().name;
    CAPTURE(name);
    for (const std::string& message : refusals(tensors))
      CHECK(contains(message, name + ": expected weights that consist of"));
    const Scratch scratch;
    write_checkpoint(scratch / "src", {tensors});
    CHECK(linted(scratch / "src").count("weight-term") == 1);
    // Neither are they compared as if the term were not there.
    CHECK(findings_of(diff_of(scratch / "src", scratch / "src").findings, "compared-as-stored").size() == 2);
  };
  for (const char* suffix :
       {".pre_quant_scale", ".svdquant_lora_a", ".svdquant_lora_b", ".lora_A.weight", ".input_scale_2"})
    check(experts_with(suffix, DType::kBF16, {32}, std::vector<uint8_t>(64, 0x3F)));
  check(experts_with(".weight_zero_point", DType::kI8, {16, 2}, std::vector<uint8_t>(32, 1)));
  std::vector<uint8_t> order(32);
  for (size_t i = 0; i < 32; ++i) order[i] = i % 2;
  check(experts_with(".weight_g_idx", DType::kI8, {32}, order));
  check(experts_with(".g_idx", DType::kI8, {32}, order));
}

TEST_CASE("terms beside weights of every other format are refused, too") {
  const auto with = [](const std::string& format, const std::string& suffix) {
    Tensors tensors;
    const std::string m = "model.layers.0.mlp.up_proj";
    if (format == "fp8") {
      tensors.push_back({m + ".weight", DType::kF8E4M3, {32, 64}, std::vector<uint8_t>(32 * 64, 0x38)});
      tensors.push_back({m + ".weight_scale", DType::kF32, {}, {0, 0, 0x80, 0x3F}});
    } else if (format == "mxfp4") {
      tensors.push_back({m + ".weight_packed", DType::kU8, {32, 32}, std::vector<uint8_t>(32 * 32, 0x22)});
      tensors.push_back({m + ".weight_scale", DType::kU8, {32, 2}, std::vector<uint8_t>(64, 127)});
    } else {
      tensors.push_back({m + ".weight_packed", DType::kI32, {32, 8}, std::vector<uint8_t>(32 * 8 * 4, 0x99)});
      tensors.push_back({m + ".weight_scale", DType::kF32, {32, 1}, std::vector<uint8_t>(128, 0x3C)});
    }
    tensors.push_back({m + suffix, DType::kI32, {32}, std::vector<uint8_t>(128, 1)});
    return tensors;
  };
  for (const std::string format : {"fp8", "mxfp4", "int4"}) {
    for (const char* suffix :
         {".pre_quant_scale", ".svdquant_lora_a", ".svdquant_lora_b", ".lora_A.weight", ".input_scale_2",
          ".qzeros", ".g_idx", ".weight_zero_point", ".weight_g_idx"}) {
      if (format == "int4" && std::string_view(suffix).starts_with(".weight")) continue;  // of its decoder
      CAPTURE(format);
      CAPTURE(suffix);
      const Scratch scratch;
      write_checkpoint(scratch / "src", {with(format, suffix)});
      for (const char* to : {"bf16", "quantize", "fp8", "g8"}) {
        OneRule recipe = recipe_to(to);
        if (to == std::string("fp8")) recipe.dialect = "compressed-tensors";
        if (format == "fp8" && to == std::string("fp8")) continue;  // nothing to do
        CHECK(contains(message_of([&] { convert(scratch / "src", scratch / "out", recipe); }),
                       std::string(suffix) + ": expected weights that consist of"));
        CHECK(!fs::exists(scratch / "out"));
      }
    }
  }
}

TEST_CASE("zero points of zero and groups in order change nothing, and nothing is said") {
  std::vector<uint8_t> order(32);
  for (size_t i = 0; i < 32; ++i) order[i] = static_cast<uint8_t>(i / 16);
  for (const Tensors& tensors :
       {experts_with(".weight_g_idx", DType::kI8, {32}, order),
        experts_with(".weight_zero_point", DType::kI8, {16}, std::vector<uint8_t>(16))}) {
    const Scratch scratch;
    write_checkpoint(scratch / "src", {tensors});
    convert(scratch / "src", scratch / "v7", recipe_to("v7"));
    CHECK(read_tensors(scratch / "v7").count(tensors.back().name) == 1);
    CHECK(linted(scratch / "src").count("weight-term") == 0);
  }
}

TEST_CASE("a term beside a linear that passes through refuses nothing") {
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(2, 16, 32));
  add_modelopt(tensors, "model.layers.0.self_attn.o_proj", random_matrix(16, 32, 1));
  add_bf16(tensors, "model.layers.0.self_attn.o_proj.pre_quant_scale", {32});
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  convert(scratch / "src", scratch / "v7", recipe_to("v7"));
  CHECK(contains(message_of([&] { convert(scratch / "src", scratch / "bf16", recipe_to("bf16")); }),
                 "o_proj.pre_quant_scale: expected weights that consist of"));
}

TEST_CASE("transforms in the configuration are refused by every way to convert, and found by lint") {
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(2, 16, 32));
  const std::string config =
      R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4",
          "transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}}})";
  for (const std::string& message : refusals(tensors, config))
    CHECK(contains(message, "config.json: quantization_config.transform_config: expected none, found"));
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors}, config);
  CHECK(linted(scratch / "src").count("weight-term") == 1);
}

TEST_CASE("weights to quantize are refused beside terms, too") {
  Tensors tensors = dense_model();
  add_bf16(tensors, "model.layers.1.mlp.up_proj.lora_A.weight", {4, 48});
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  for (const char* layout : {"quantize", "fp8"}) {
    CHECK(contains(message_of([&] { convert(scratch / "src", scratch / "out", recipe_to(layout)); }),
                   "up_proj.lora_A.weight: expected weights that consist of values and scales only"));
  }
}

TEST_CASE("stacks whose order of gate and up is not certain are refused by who takes them apart") {
  const auto check = [](const std::string& how, const char* config, bool drop_bias,
                        const std::string& expected) {
    CAPTURE(how);
    CAPTURE(config);
    Tensors tensors = experts_stored_as(how, kBlock, 2, 16, 32);
    if (drop_bias) std::erase_if(tensors, [](const TensorData& t) { return t.name.ends_with("_bias"); });
    const Scratch scratch;
    write_checkpoint(scratch / "src", {tensors}, config);
    for (const char* layout : {"v7", "v7-packed", "g8", "prune", "fp8"}) {
      CAPTURE(layout);
      CHECK(contains(message_of([&] { convert(scratch / "src", scratch / "out", recipe_to(layout)); }),
                     expected));
    }
    CHECK(linted(scratch / "src").count("gate-up-order") == 1);
    // Held against its like as it is stored.
    const DiffResult same = diff_of(scratch / "src", scratch / "src");
    CHECK(findings_of(same.findings, "compared-as-stored").size() == 2);
  };
  // A gpt-oss stack that lost its bias, and a stack in halves that got one.
  check("stack, interleaved", R"({"model_type": "gpt_oss"})", true, "expected gate_up_proj_bias beside it");
  check("stack, interleaved, k outer", R"({"model_type": "gpt_oss"})", true,
        "expected gate_up_proj_bias beside it");
  check("stack, interleaved", R"({"model_type": "llama4"})", false, "expected no bias beside it");
  check("stack", "{}", false, "expected a model_type in config.json");
  check("stack", R"({"model_type": "other"})", false, "found \"other\"");
  check("stack, interleaved", R"({"model_type": "other"})", false, "found \"other\"");

  // What says it is taken apart.
  for (const auto& [how, config] : {std::pair{"stack, interleaved", R"({"model_type": "gpt_oss"})"},
                                    {"stack, interleaved", "{}"},
                                    {"stack", R"({"model_type": "llama4"})"},
                                    {"stack", R"({"text_config": {"model_type": "qwen3_5_moe_text"}})"}}) {
    const Scratch scratch;
    write_checkpoint(scratch / "src", {experts_stored_as(how, kBlock, 2, 16, 32)}, config);
    convert(scratch / "src", scratch / "out", recipe_to("v7"));
    CHECK(linted(scratch / "src").count("gate-up-order") == 0);
  }
}

TEST_CASE("floats in stacks whose order is not certain are not quantized") {
  Tensors tensors;
  add_float_stack(tensors, kBlock + ".gate_up_proj", {random_floats(64, 48, 1), random_floats(64, 48, 2)},
                  false);
  add_float_stack(tensors, kBlock + ".down_proj", {random_floats(48, 32, 3), random_floats(48, 32, 4)},
                  false);
  for (const char* config : {"{}", R"({"model_type": "gpt_oss"})"}) {
    const Scratch scratch;
    write_checkpoint(scratch / "src", {tensors}, config);
    for (const char* layout : {"quantize", "fp8"}) {
      CHECK(contains(message_of([&] { convert(scratch / "src", scratch / "out", recipe_to(layout)); }),
                     "model.safetensors: " + kBlock + ".gate_up_proj: expected "));
    }
  }
}

TEST_CASE("counts and switches that are not valid are refused before anything is written") {
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(2, 16, 32));
  for (const auto& [setting, message] :
       {std::pair{R"("num_experts": "2")",
                  "num_experts: expected a whole number that is not negative, found \"2\""},
        {R"("num_local_experts": 2.5)",
         "num_local_experts: expected a whole number that is not negative, found 2.5"},
        {R"("num_experts_per_tok": -1)",
         "num_experts_per_tok: expected a whole number that is not negative, found -1"},
        {R"("norm_topk_prob": NaN)", "norm_topk_prob: expected true or false, found NaN"},
        {R"("norm_topk_prob": "true")", "norm_topk_prob: expected true or false, found \"true\""},
        {R"("text_config": {"n_routed_experts": [2, "2"]})", "n_routed_experts: expected a whole number"}}) {
    for (const std::string& found : refusals(tensors, fmt::format("{{{}}}", setting)))
      CHECK(contains(found, std::string("config.json: ") + message));
    const Scratch scratch;
    write_checkpoint(scratch / "src", {tensors}, fmt::format("{{{}}}", setting));
    CHECK(linted(scratch / "src").count("odd-setting") == 1);
  }
  const Scratch scratch;
  write_checkpoint(
      scratch / "src", {tensors},
      R"({"num_experts": 2, "norm_topk_prob": null, "moe_num_experts": [2, 2], "hidden_size": 32})");
  convert(scratch / "src", scratch / "v7", recipe_to("v7"));
}

TEST_CASE("what stays beside new weights is written with its own format") {
  Tensors tensors;
  const float one = 1;
  const auto* bytes = reinterpret_cast<const uint8_t*>(&one);
  for (int i = 0; i < 30; ++i) {
    const std::string module = fmt::format("model.layers.{}.mlp.down_proj", i);
    add_modelopt(tensors, module, random_matrix(16, 32, 1));
    tensors.push_back({module + ".input_scale", DType::kF32, {}, {bytes, bytes + 4}});
  }
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  const std::string quantized =
      message_of([&] { convert(scratch / "src", scratch / "out", recipe_to("quantize")); });
  CHECK(contains(quantized, "expected linears to quantize, found NVFP4 alone among 30"));
  OneRule some = recipe_to("fp8");
  some.selection.include = parse_patterns({"model.layers.3.*"});
  convert(scratch / "src", scratch / "out", some);
  const Json groups = Json::parse(read_tree(scratch / "out").at("config.json")).at("quantization_config");
  CHECK(groups.at("format") == "mixed-precision");
  CHECK(groups.at("config_groups").size() == 2);
}

TEST_CASE(
    "words of another JSON type, and promises without their tensors, are refused by every way to convert") {
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(2, 16, 32));
  const std::pair<const char*, const char*> words[] = {
      {R"("quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": "16")",
       R"(config.json: quantization_config.group_size: expected a whole number, found "16")"},
      {R"("quant_method": "modelopt", "quant_algo": "NVFP4", "has_zero_point": 1)",
       "config.json: quantization_config.has_zero_point: expected true or false, found 1"},
      {R"("quant_method": "modelopt", "quant_algo": "NVFP4", "has_zero_point": true)",
       "quantization_config.has_zero_point: expected false, because no module has zero points, found true"},
      {R"("quant_method": "modelopt", "quant_algo": "NVFP4", "pre_quant_scale": true)",
       "quantization_config.pre_quant_scale: expected false, because no module has one, found true"}};
  for (const auto& [entry, expected] : words) {
    CAPTURE(entry);
    const std::string config = std::string(R"({"quantization_config": {)") + entry + "}}";
    for (const std::string& message : refusals(tensors, config)) CHECK(contains(message, expected));
    const Scratch scratch;
    write_checkpoint(scratch / "src", {tensors}, config);
    CHECK(linted(scratch / "src").contains("config-format"));
    CHECK(findings_of(diff_of(scratch / "src", scratch / "src").findings, "compared-as-stored").size() == 2);
  }
}

TEST_CASE("lint names scales beside floats, and holds one file against its folder's configs") {
  Tensors tensors;
  add_bf16(tensors, "model.layers.0.self_attn.k_proj.weight", {16, 32});
  add_bf16(tensors, "model.layers.0.self_attn.k_proj.weight_scale", {16, 1});
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors},
                   R"({"quantization_config": {"quant_method": "gptq", "sym": 1}})");
  Progress progress;
  const auto has = [&](const fs::path& path, const char* rule, const std::string& words) {
    const auto found = lint(path, {}, progress).findings;
    return std::any_of(found.begin(), found.end(), [&](const LintFinding& f) {
      return std::string_view(lint_rules()[f.rule].id) == rule && f.message.find(words) != std::string::npos;
    });
  };
  const std::string message =
      message_of([&] { convert(scratch / "src", scratch / "out", recipe_to("fp8")); });
  const std::string words =
      "expected F8_E4M3 because of model.layers.0.self_attn.k_proj.weight_scale beside it, found BF16 [16, "
      "32]";
  CHECK(contains(message, words));
  for (const char* path : {"src", "src/model.safetensors"}) {
    CHECK(has(scratch / path, "module-shape", words));
    CHECK(has(scratch / path, "config-format", "expected true or false, found 1"));
  }
  tensors.pop_back();
  write_checkpoint(scratch / "floats", {tensors},
                   R"({"quantization_config": {"quant_method": "modelopt", "has_zero_point": true}})");
  CHECK(has(scratch / "floats", "incomplete-module", "no module has zero points"));
}

}  // namespace meaning_test
