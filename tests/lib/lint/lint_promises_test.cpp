#include <doctest/doctest.h>
#include <fmt/format.h>

#include <functional>

#include "lib/lint/lint.h"
#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"
#include "tests/support/scratch.h"

// The promises of a quantization config against the stored tensors, key by key: each key that is wrong is
// named, with both values, and nothing is said of the same key where it is right.

namespace lint_promises_test {

using namespace twofour;
using namespace spoil;

namespace {

const std::string kQ = "quantization_config.", kGroup = kQ + "config_groups.group_0.";

/// "rule: place: message" of each finding above a note, a line each.
std::string findings_of(Base base, const Change& change) {
  const Scratch scratch;
  std::mt19937 random(1);
  Save save = base_checkpoint(base);
  change(save, random);
  write_planted(save, scratch / "checkpoint");
  Progress progress;
  std::string text;
  for (const LintFinding& f : lint(scratch / "checkpoint", {.headers_only = true}, progress).findings) {
    if (f.severity != Severity::kNote)
      text += fmt::format("{}: {}: {}\n", lint_rules()[f.rule].id, f.name, f.message);
  }
  return text;
}

struct Case {
  Base base;
  const char* what;
  Change change;
  std::string finding;  ///< how its one line begins; "": nothing is found
};

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    CAPTURE(std::string(c.what));
    CAPTURE(c.finding);
    const std::string found = findings_of(c.base, c.change);
    if (c.finding.empty()) {
      CHECK(found == "");
    } else {
      CHECK(found.find(c.finding) != found.npos);
    }
  }
}

}  // namespace

TEST_CASE("each key of a group that contradicts its modules is config-format, with what they have") {
  const std::string weights = kGroup + "weights.";
  check({
      {Base::kLlamaCt, "fewer bits", set_key(weights + "num_bits", 8),
       "config-format: " + weights +
           "num_bits: expected 4 (as in model.layers.0.mlp.down_proj (NVFP4) and 11 more)"},
      {Base::kLlamaCt, "no strategy, for which the size of groups counts", erase_key(weights + "strategy"),
       "config-format: " + weights + "strategy: expected tensor_group (as in"},
      {Base::kLlamaCt, "scales of another type", set_key(weights + "scale_dtype", "torch.uint8"),
       "config-format: " + weights + "scale_dtype: expected torch.float8_e4m3fn (as in"},
      {Base::kLlamaCt, "scales of their type", set_key(weights + "scale_dtype", "torch.float8_e4m3fn"), ""},
      {Base::kLlamaCt, "weights that change", set_key(weights + "dynamic", true),
       "config-format: " + weights + "dynamic: expected false (as in"},
      {Base::kLlamaCt, "no weights", set_key(kGroup + "weights", nullptr),
       "config-format: " + kGroup + "weights"},
      {Base::kLlamaCt, "a status before compression", set_key(kQ + "quantization_status", "frozen"),
       "config-format: " + kQ + "quantization_status: expected compressed (as"},
      {Base::kLlamaCt, "groups of another format than the whole", set_key(kQ + "format", "float-quantized"),
       "config-format: " + kQ + "format: expected nvfp4-pack-quantized (groups)"},
      {Base::kLlamaCt, "a mixture of one", set_key(kQ + "format", "mixed-precision"), ""},
      {Base::kLlamaCt, "a format that groups do not say",
       all_of({erase_key(kGroup + "format"), set_key(kQ + "format", "mxfp4-pack-quantized")}),
       "config-format: " + kQ + "format: expected nvfp4-pack-quantized (as in"},
      {Base::kLlamaCt, "2:4 in a form that is not stored",
       set_key(kQ + "sparsity_config", {{"format", "sparse-24-bitmask"}}),
       "config-format: " + kQ + "sparsity_config.format: expected dense"},
      {Base::kQwenRow, "a tensor's scale for those of rows", set_key(kGroup + "weights.strategy", "tensor"),
       "config-format: " + kGroup + "weights.strategy: expected channel (as in"},
  });
}

TEST_CASE("methods and algorithms that cannot be those of the tensors are config-format") {
  const auto both = [](const char* algorithm) {
    return set_both(kQ + "quant_algo", "quantization.quant_algo", algorithm);
  };
  check({
      {Base::kLlama, "none", erase_key(kQ + "quant_method"),
       "config-format: " + kQ + "quant_method: expected modelopt (as in"},
      {Base::kLlama, "one that nobody has", set_key(kQ + "quant_method", "modelptq"),
       "config-format: " + kQ + "quant_method: expected modelopt (as in"},
      {Base::kLlamaCt, "ModelOpt's", set_key(kQ + "quant_method", "modelopt"),
       "config-format: " + kQ + "quant_method: expected compressed-tensors (as in"},
      {Base::kDeepSeek, "another one for blocks", set_key(kQ + "quant_method", "mxfp8"),
       "config-format: " + kQ + "quant_method: expected fp8 (as in"},
      {Base::kGptOss, "integers", set_key(kQ + "quant_method", "gptq"),
       "config-format: " + kQ + "quant_method: expected mxfp4 (as in"},
      {Base::kLlama, "an algorithm of no loader", both("NVFP4_X"),
       "config-format: " + kQ + "quant_algo: expected an algorithm that loaders support, found \"NVFP4_X\""},
      {Base::kLlama, "FP8", both("FP8"), "config-format: " + kQ + "quant_algo: expected NVFP4 (as in"},
      {Base::kLlama, "one that scales inputs", both("NVFP4_AWQ"),
       "config-format: " + kQ + "quant_algo: expected an algorithm that scales no inputs"},
      {Base::kDeepSeek, "powers of two", set_key(kQ + "scale_fmt", "ue8m0"), ""},
      {Base::kDeepSeek, "numbers of another type", set_key(kQ + "fmt", "e5m2"),
       "config-format: " + kQ + "fmt: expected e4m3 (as in"},
      {Base::kDeepSeek, "other blocks", set_key(kQ + "weight_block_size", Json::array({64, 64})),
       "config-group-size: " + kQ + "weight_block_size: expected [128, 128] (as in"},
  });
}

TEST_CASE("input scales that are promised and lacking, or stored and not promised, are found") {
  const std::string inputs = kGroup + "input_activations";
  check({
      {Base::kLlamaCt, "none promised", set_key(inputs, nullptr),
       "config-inputs: " + inputs + ": expected inputs with"},
      {Base::kLlamaCt, "new ones for each input promised", set_key(inputs + ".dynamic", true),
       "config-inputs: " + inputs},
      {Base::kLlamaCt, "of 8 bits", set_key(inputs + ".num_bits", 8),
       "config-inputs: " + inputs + ".num_bits: expected 4 (as in"},
      {Base::kLlamaCt, "all lost", drop("model.layers.*.input_global_scale"),
       "missing-input-scale: " + inputs + ": expected an input scale"},
      {Base::kLlamaCt, "all lost and none promised",
       all_of({drop("model.layers.*.input_global_scale"), set_key(inputs, nullptr)}), ""},
      {Base::kLlama, "weights alone promised",
       set_both(kQ + "quant_algo", "quantization.quant_algo", "W4A16_NVFP4"),
       "config-inputs: " + kQ + "quant_algo: expected inputs with stored scales"},
      {Base::kDeepSeek, "stored ones promised", set_key(kQ + "activation_scheme", "static"),
       "missing-input-scale: " + kQ + "activation_scheme"},
      {Base::kLlamaCt, "outputs",
       set_key(kGroup + "output_activations", {{"num_bits", 8}, {"type", "float"}}),
       "config-inputs: " + kGroup + "output_activations: expected null"},
  });
}

TEST_CASE("what configs say of the KV cache is held against its scales, and against each other") {
  const std::string scheme = kQ + "kv_cache_scheme";
  const auto drop_scales = all_of({drop("model.layers.*.k_scale"), drop("model.layers.*.v_scale")});
  check({
      {Base::kLlamaKv, "scales without a promise",
       all_of({erase_key(scheme), set_hf("quantization.kv_cache_quant_algo", nullptr)}),
       "config-cache: model.layers.0.self_attn.k_proj.k_scale: expected"},
      {Base::kLlamaKv, "a promise without scales, for which ModelOpt takes 1", drop_scales, ""},
      {Base::kLlamaKvCt, "the same of compressed-tensors", drop_scales,
       "config-cache: " + scheme + ": expected k_scale and v_scale"},
      {Base::kLlamaKv, "two algorithms", set_hf("quantization.kv_cache_quant_algo", "NVFP4"),
       "config-cache: quantization.kv_cache_quant_algo: expected the value of"},
      {Base::kLlamaKv, "a key that config.json lacks, which is looked up in the other file",
       erase_key(scheme), ""},
      {Base::kLlamaKvCt, "of 4 bits", set_key(scheme + ".num_bits", 4),
       "config-cache: " + scheme + ".num_bits"},
      {Base::kLlamaKvCt, "not symmetric", set_key(scheme + ".symmetric", false),
       "config-cache: " + scheme + ".symmetric"},
      {Base::kLlamaKvCt, "a scale a channel", set_key(scheme + ".strategy", "channel"),
       "config-cache: " + scheme + ".strategy"},
      {Base::kLlamaKvCt, "a scale a head", set_key(scheme + ".strategy", "attn_head"), ""},
  });
}

TEST_CASE("names in configs that nothing has, and tensors beside codes that nothing reads, are found") {
  const auto layers = [](const std::string& name) {
    return set_both(kQ + "quantized_layers." + name, "quantization.quantized_layers." + name,
                    {{"quant_algo", "FP8"}});
  };
  check({
      {Base::kQwenMixed, "an entry of a module that there is not", layers("visual_proj"),
       "unused-pattern: visual_proj: expected a module of that name (as in quantized_layers)"},
      {Base::kQwenMixed, "an entry of an algorithm that nobody has",
       [](Save& s, auto&) {
         for (const char* file : {"config.json", "hf_quant_config.json"}) {
           s.edit(file, [&](Json& j) {
             Json& entry = j.contains("quantization") ? j["quantization"] : j["quantization_config"];
             for (auto&& [name, layer] : entry["quantized_layers"].items())
               if (name.ends_with("o_proj")) layer["quant_algo"] = "FP9";
           });
         }
       },
       "config-format: "},
      {Base::kQwenRow, "a group that targets nothing",
       set_key(kQ + "config_groups.group_1.targets", Json::array({"re:.*feed_forward.*"})),
       "unused-pattern: re:.*feed_forward.*: expected to match a module that config_groups.group_1"},
      {Base::kMixtral, "a glob", ignore_also({"*.block_sparse_moe.gate"}),
       "unused-pattern: *.block_sparse_moe.gate: expected a name or, after re:"},
      {Base::kLlama, "offsets", add_bf16("model.layers.1.mlp.down_proj.weight_offset", {256}),
       "weight-term: model.layers.1.mlp.down_proj.weight_offset: expected weights that consist of values and "
       "scales only"},
      {Base::kLlama, "a bias", add_bf16("model.layers.1.mlp.down_proj.bias", {256}), "tensor-unknown: "},
      {Base::kDeepSeek, "FP8 without a scale", drop("model.layers.2.self_attn.o_proj.weight_scale_inv"),
       "incomplete-module: model.layers.2.self_attn.o_proj: expected .weight_scale_inv"},
      {Base::kGptOss, "no config", erase_key("quantization_config"),
       "no-quantization-config: quantization_config: expected it for 6 MXFP4 modules"},
      {Base::kGptOss, "experts of a layer in floats",
       all_of({drop_below("model.layers.1.mlp.experts.down_proj_blocks"),
               drop_below("model.layers.1.mlp.experts.down_proj_scales"),
               add_bf16("model.layers.1.mlp.experts.down_proj", {4, 192, 192})}),
       "config-dtype: model.layers.1.mlp.experts.down_proj: expected codes"},
  });
}

}  // namespace lint_promises_test
