#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"

// Promises of configs about formats against the stored tensors: clauses 2.1 to 2.13.

namespace twofour {
namespace {

using namespace spoil;
using enum Base;
constexpr Expect kFault = Expect::kFault, kHarmless = Expect::kHarmless;

const std::string kQ = "quantization_config.", kGroup = kQ + "config_groups.group_0.",
                  kGroup1 = kQ + "config_groups.group_1.";

/// Edits `quantized_layers` of kQwenMixed or kNemotron in both files.
Change edit_layers(std::function<void(Json&)> change) {
  return [=](Save& s, auto&) {
    s.edit("config.json", [&](Json& j) { change(j["quantization_config"]["quantized_layers"]); });
    s.edit("hf_quant_config.json", [&](Json& j) { change(j["quantization"]["quantized_layers"]); });
  };
}

std::vector<Planted> methods() {
  return {
      {"2.1", kTiny, kFault, "compressed-tensors over ModelOpt's tensors",
       "the loader waits for weight_packed and finds none", "quant_method",
       all_of({set_key(kQ + "quant_method", "compressed-tensors"),
               set_key(kQ + "format", "nvfp4-pack-quantized")})},
      {"2.1", kMixtral, kFault, "fp8 over NVFP4", "codes are read as FP8",
       "quant_method | engine-lookup experts", set_key(kQ + "quant_method", "fp8")},
      {"2.1", kLlamaCt, kFault, "no method", "transformers refuses the config, others skip it",
       "quant_method", erase_key(kQ + "quant_method")},
      {"2.1", kMoe, kFault, "FP8 for NVFP4 in both files", "packed codes are read as FP8 numbers",
       "quant_algo | config-dtype experts", set_both(kQ + "quant_algo", "quantization.quant_algo", "FP8")},
      {"2.1", kQwenMixed, kFault, "one algorithm over mixed formats", "FP8 attention is read as NVFP4",
       "quant_algo | engine-lookup self_attn",
       set_both(kQ + "quant_algo", "quantization.quant_algo", "NVFP4")},
      {"2.1", kGptOss, kFault, "fp8 over MXFP4 stacks", "experts are looked for under other names",
       "quant_method", set_key(kQ + "quant_method", "fp8")},
      {"2.1", kTiny, kHarmless, "another version of the producer", "no loader decides by it", "",
       set_key(kQ + "producer.version", "0.47.0")},
      {"2.2", kMixtral, kFault, "format of floats", "vLLM builds FP8 parameters", "format",
       all_of({set_key(kQ + "format", "float-quantized"), set_key(kGroup + "format", "float-quantized")})},
      {"2.2", kMixtral, kFault, "8 bits", "a scheme for FP8 is chosen", "num_bits",
       set_key(kGroup + "weights.num_bits", 8)},
      {"2.2", kLlamaCt, kFault, "integers", "codes are read as INT4", "type | engine-lookup INT4",
       set_key(kGroup + "weights.type", "int")},
      {"2.2", kLlamaCt, kFault, "not symmetric", "zero points are looked for", "symmetric",
       set_key(kGroup + "weights.symmetric", false)},
      {"2.2", kQwenRow, kFault, "a scale a tensor where rows have one", "one scale is kept for all rows",
       "strategy | engine-lookup self_attn", set_key(kGroup + "weights.strategy", "tensor")},
      {"2.2", kDeepSeek, kFault, "E5M2 for E4M3", "bits are read as another format", "fmt",
       set_key(kQ + "fmt", "e5m2")},
      {"2.2", kMixtral, kHarmless, "another observer and version", "they say how scales were found", "",
       all_of({set_key(kGroup + "weights.observer", "mse"), set_key(kQ + "version", "0.19.0")})},
      {"2.2", kLlamaCt, kHarmless, "keys with null left out", "null is the default", "",
       all_of({erase_key(kQ + "global_compression_ratio"), erase_key(kGroup + "output_activations")})},
      {"2.3", kTiny, kFault, "32 for 16 in both files", "each scale is applied to twice the weights",
       "group_size", all_of({set_both(kGroup + "weights.group_size", "quantization.group_size", 32)})},
      {"2.3", kLlamaCt, kFault, "32 for 16", "half as many scales are allocated", "group_size",
       set_key(kGroup + "weights.group_size", 32)},
      {"2.3", kDeepSeek, kFault, "blocks of 64", "four times the scales are allocated", "weight_block_size",
       set_key(kQ + "weight_block_size", Json::array({64, 64}))},
      {"2.3", kDeepSeek, kFault, "no blocks", "one scale a tensor is looked for",
       "weight_block_size | engine-lookup", erase_key(kQ + "weight_block_size")},
      {"2.3", kGptOss, kFault, "scales of a stack for twice as many weights",
       "half as many are read as there should be", "layers.1.mlp.experts.down_proj_scales",
       edit_tensors("model.layers.1.mlp.experts.down_proj_scales",
                    [](TensorData& t) {
                      t.shape.back() /= 2;
                      t.bytes.resize(t.bytes.size() / 2);
                    })},
      {"2.3", kQwenMixed, kFault, "32 for the head alone", "its scales are allocated by 32",
       "group_size lm_head", edit_layers([](Json& layers) { layers["lm_head"]["group_size"] = 32; })},
      {"2.3", kQwenRow, kHarmless, "no group size where rows have a scale", "null is the default", "",
       erase_key(kGroup + "weights.group_size")},
  };
}

std::vector<Planted> targets() {
  Json linears = Json::array();
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    for (const char* m : {"self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
      linears.push_back(prefix + m);
  }
  return {
      {"2.4", kMixtral, kFault, "a class that there is not", "nothing is quantized for the loader",
       "targets | engine-lookup", set_key(kGroup + "targets", Json::array({"Conv2d"}))},
      {"2.4", kLlamaCt, kFault, "MLPs alone", "o_proj is taken for unquantized", "o_proj",
       set_key(kGroup + "targets", Json::array({"re:.*mlp.*"}))},
      {"2.4", kQwenRow, kFault, "down_proj forgotten", "down_proj is taken for unquantized", "down_proj",
       set_key(kGroup1 + "targets", Json::array({"re:.*mlp\\.(gate|up)_proj$"}))},
      {"2.4", kQwenRow, kFault, "the first group takes all", "the first match wins: MLPs are read as FP8",
       "mlp", edit_key(kGroup + "targets", [](Json& t) { t.push_back("re:.*_proj$"); })},
      {"2.4", kMixtral, kFault, "none", "nothing is quantized for the loader", "targets | engine-lookup",
       set_key(kGroup + "targets", Json::array())},
      {"2.4", kLlamaCt, kHarmless, "each linear by its name", "the same modules are matched", "",
       set_key(kGroup + "targets", linears)},
      {"2.5", kMoe, kFault, "the head left out", "vLLM builds a quantized head", "lm_head",
       ignore_no_more("lm_head")},
      {"2.5", kMixtral, kFault, "routers left out", "vLLM builds quantized routers", "gate",
       ignore_no_more("gate")},
      {"2.5", kMixtral, kFault, "a quantized linear",
       "o_proj is built unquantized, and its codes find no place", "layers.1.self_attn.o_proj",
       ignore_also({"model.layers.1.self_attn.o_proj"})},
      {"2.5", kTiny, kFault, "everything", "every module is built unquantized", "experts",
       ignore_also({"*"})},
      {"2.5", kQwenRow, kFault, "the draft left out", "vLLM builds a quantized draft", "mtp",
       ignore_no_more("mtp")},
      {"2.5", kLlamaCt, kFault, "the prefix of another model class", "attention is built quantized",
       "self_attn",
       [](Save& s, auto&) {
         s.edit("config.json", [](Json& j) {
           for (Json& name : j["quantization_config"]["ignore"]) {
             if (name != "lm_head") name = "language_model." + name.get<std::string>();
           }
         });
       }},
      {"2.5", kLlamaCt, kHarmless, "each name twice", "a list is a set", "",
       [](Save& s, auto&) {
         s.edit("config.json", [](Json& j) {
           Json& list = j["quantization_config"]["ignore"];
           const Json copy = list;
           for (const Json& name : copy) list.push_back(name);
         });
       }},
  };
}

std::vector<Planted> activations() {
  return {
      {"2.6", kLlamaKv, kFault, "stored and not promised", "the cache stays BF16 and the scales are dropped",
       "k_scale | kv_cache | v_scale",
       all_of({set_hf("quantization.kv_cache_quant_algo", nullptr), erase_key(kQ + "kv_cache_scheme")})},
      {"2.6", kLlamaKvCt, kFault, "stored and not promised",
       "the cache stays BF16 and the scales are dropped", "k_scale | kv_cache | v_scale",
       set_key(kQ + "kv_cache_scheme", nullptr)},
      {"2.6", kLlamaKvCt, kFault, "promised, static, and absent",
       "1 is taken for every scale: values saturate", "kv_cache | k_scale",
       all_of({drop("model.layers.*.k_scale"), drop("model.layers.*.v_scale")})},
      {"2.6", kLlamaKv, kFault, "promised by one file alone", "engines differ in the cache", "kv_cache",
       set_hf("quantization.kv_cache_quant_algo", nullptr)},
      {"2.6", kLlamaKvCt, kFault, "integers", "scales of FP8 are taken for those of INT8", "kv_cache_scheme",
       set_key(kQ + "kv_cache_scheme.type", "int")},
      {"2.6", kLlamaKvCt, kHarmless, "another observer", "it says how scales were found", "",
       set_key(kQ + "kv_cache_scheme.observer", "static_minmax")},
      {"2.7", kMixtral, kFault, "promised none, and stored",
       "the kernel for BF16 inputs has no parameter for them", "input_activations | input_global_scale",
       set_key(kGroup + "input_activations", nullptr)},
      {"2.7", kMoe, kFault, "promised, and none stored", "input scales are uninitialized memory",
       "input_scale | missing-input-scale", drop("model.layers.*.input_scale")},
      {"2.7", kQwenMixed, kFault, "one of FP8 attention lost", "its inputs are scaled at random",
       "layers.3.self_attn.o_proj", drop("model.language_model.layers.3.self_attn.o_proj.input_scale")},
      {"2.7", kDeepSeek, kFault, "static, and none stored", "a static scheme looks for input scales",
       "activation_scheme | input_scale", set_key(kQ + "activation_scheme", "static")},
      {"2.7", kQwenRow, kFault, "8 bits for NVFP4 inputs",
       "no engine has FP8 inputs with NVFP4 weights by this scheme", "input_activations",
       set_key(kGroup1 + "input_activations.num_bits", 8)},
      {"2.7", kQwenRow, kHarmless, "another observer", "it says how scales were found", "",
       set_key(kGroup1 + "input_activations.observer", "minmax")},
  };
}

std::vector<Planted> mixed() {
  const std::string layer = "model.language_model.layers.3.";
  return {
      {"2.8", kQwenMixed, kFault, "one linear left out", "FP8 bytes are read as BF16 weights",
       "layers.3.self_attn.o_proj", edit_layers([=](Json& l) { l.erase(layer + "self_attn.o_proj"); })},
      {"2.8", kQwenMixed, kFault, "one linear misspelt", "FP8 bytes are read as BF16 weights",
       "layers.3.self_attn.o_proj", edit_layers([=](Json& l) {
         l[layer + "self_attn.o_prj"] = l[layer + "self_attn.o_proj"];
         l.erase(layer + "self_attn.o_proj");
       })},
      {"2.8", kQwenMixed, kFault, "experts of a layer as FP8", "codes are read as FP8 numbers",
       "layers.3.mlp.experts", edit_layers([=](Json& l) {
         l[layer + "mlp.experts"] = {{"quant_algo", "FP8"}};
       })},
      {"2.8", kQwenMixed, kFault, "no list", "mixed precision without layers quantizes nothing",
       "quantized_layers",
       [](Save& s, auto&) {
         s.edit("config.json", [](Json& j) { j["quantization_config"].erase("quantized_layers"); });
         s.edit("hf_quant_config.json", [](Json& j) { j["quantization"].erase("quantized_layers"); });
       }},
      {"2.8", kQwenRow, kFault, "one group lost", "MLPs are taken for unquantized", "mlp",
       erase_key(kQ + "config_groups.group_1")},
      {"2.8", kQwenMixed, kHarmless, "entries in another order", "they are looked up by name", "",
       edit_layers([](Json& l) {
         Json turned = Json::object();
         std::vector<std::string> keys;
         for (const auto& [key, value] : l.items()) keys.push_back(key);
         for (auto key = keys.rbegin(); key != keys.rend(); ++key) turned[*key] = l[*key];
         l = turned;
       })},
      {"2.9", kLlamaCt, kFault, "a linear in BF16", "the loader waits for its codes",
       "layers.1.self_attn.o_proj", dequantize("model.layers.1.self_attn.o_proj")},
      {"2.9", kMoe, kFault, "an expert's matrix in BF16", "it fits into no fused tensor of codes",
       "layers.1.mlp.experts", dequantize("model.layers.1.mlp.experts.5.down_proj")},
      {"2.9", kDeepSeek, kFault, "a module without scales", "FP8 numbers are taken without their scales",
       "layers.1.self_attn.o_proj", drop("model.layers.1.self_attn.o_proj.weight_scale_inv")},
      {"2.9", kQwenMixed, kFault, "FP8 promised, BF16 stored", "BF16 halves are read as FP8",
       "layers.7.self_attn.o_proj",
       all_of({drop_below("model.language_model.layers.7.self_attn.o_proj."),
               add_bf16("model.language_model.layers.7.self_attn.o_proj.weight", {256, 256})})},
      {"2.9", kLlama, kFault, "a module without block scales", "codes are taken without their scales",
       "layers.2.mlp.up_proj", drop("model.layers.2.mlp.up_proj.weight_scale")},
      {"2.10", kLlama, kFault, "a linear quantized that lists leave out", "codes are read as BF16 weights",
       "layers.1.mlp.down_proj", ignore_also({"model.layers.1.mlp.down_proj"})},
      {"2.10", kDeepSeek, kFault, "a linear quantized that the list leaves out",
       "FP8 numbers are read as BF16", "layers.2.self_attn.o_proj",
       set_key(kQ + "modules_to_not_convert", Json::array({"model.layers.2.self_attn.o_proj"}))},
      {"2.10", kMixtral, kFault, "no config of it", "codes are read as weights", "quantization_config",
       erase_key("quantization_config")},
      {"2.10", kGptOss, kFault, "no config of it", "transformers looks for BF16 stacks",
       "quantization_config", erase_key("quantization_config")},
      {"2.10", kDeepSeek, kFault, "no config of it", "FP8 numbers are read as weights", "quantization_config",
       erase_key("quantization_config")},
  };
}

std::vector<Planted> lookups() {
  const auto quantize_q = add_copy("model.layers.1.self_attn.o_proj.", "model.layers.1.self_attn.q_proj.");
  return {
      {"2.11", kLlamaCt, kFault, "one part of what engines fuse quantized",
       "vLLM stops: q, k and v must agree", "layers.1.self_attn",
       all_of({drop("model.layers.1.self_attn.q_proj.weight"), quantize_q,
               ignore_no_more("layers.1.self_attn.q_proj")})},
      {"2.11", kMixtral, kFault, "a glob where only regular expressions are read",
       "the glob matches nothing, and routers are built quantized", "gate",
       all_of({ignore_no_more("gate"), ignore_also({"*.block_sparse_moe.gate"})})},
      {"2.11", kLlamaCt, kFault, "an expression that begins in the middle of names",
       "expressions are matched from the start of a name", "self_attn",
       all_of({ignore_no_more("self_attn"), ignore_also({"re:self_attn\\.(q|k|v)_proj$"})})},
      {"2.11", kMoe, kFault, "a misspelt name", "one projection is built quantized, and fused with others",
       "layers.1.self_attn.q_pro",
       all_of(
           {ignore_no_more("layers.1.self_attn.q_proj"), ignore_also({"model.layers.1.self_attn.q_prj"})})},
      {"2.11", kMoe, kFault, "an expression where globs are read", "ModelOpt's lists have no expressions",
       "self_attn", all_of({ignore_no_more("self_attn"), ignore_also({"re:.*self_attn\\.[qkv]_proj$"})})},
      {"2.11", kMoe, kHarmless, "names for a glob", "they match the same modules", "",
       all_of({ignore_no_more("mlp.gate"),
               ignore_also({"model.layers.0.mlp.gate", "model.layers.1.mlp.gate", "model.layers.2.mlp.gate",
                            "model.layers.3.mlp.gate"})})},
      {"2.12", kMoe, kFault, "a module left out by one alone", "one engine builds a quantized projection",
       "hf_quant_config.json | layers.0.self_attn.q_proj",
       [](Save& s, auto&) {
         s.edit("hf_quant_config.json", [](Json& j) {
           Json kept = Json::array();
           for (const Json& name : j["quantization"]["exclude_modules"]) {
             if (name != "model.layers.0.self_attn.q_proj") kept.push_back(name);
           }
           j["quantization"]["exclude_modules"] = kept;
         });
       }},
      {"2.12", kLlama, kFault, "two algorithms", "engines read different formats", "quant_algo",
       set_hf("quantization.quant_algo", "W4A16_NVFP4")},
      {"2.12", kTiny, kFault, "two group sizes", "engines apply scales to different groups", "group_size",
       set_hf("quantization.group_size", 32)},
      {"2.12", kQwenMixed, kFault, "two formats of one linear", "engines read different formats",
       "layers.3.self_attn.o_proj",
       set_hf("quantization.quantized_layers", {{"model.language_model.layers.3.self_attn.o_proj",
                                                 {{"quant_algo", "NVFP4"}, {"group_size", 16}}}})},
      {"2.12", kMoe, kHarmless, "another producer named by one", "no loader decides by it", "",
       set_hf("producer.version", "0.46.1")},
      {"2.13", kLlamaCt, kFault, "transforms in the config",
       "weights are rotated, and no engine rotates inputs", "transform_config",
       set_key(kQ + "transform_config",
               {{"config_groups", {{"R1", {{"type", "hadamard"}, {"apply", Json::array()}}}}}})},
      {"2.13", kLlama, kFault, "inputs are scaled first",
       "an engine that drops it computes with other inputs", "pre_quant_scale",
       add_bf16("model.layers.1.mlp.down_proj.pre_quant_scale", {512})},
      {"2.13", kMixtral, kFault, "zero points", "zero points are not subtracted", "weight_zero_point",
       [](Save& s, auto&) {
         s.add({"model.layers.1.self_attn.o_proj.weight_zero_point",
                DType::kI8,
                {256, 16},
                std::vector<uint8_t>(4096, 3)});
       }},
      {"2.13", kLlamaCt, kFault, "an order of groups in the config", "columns belong to other scales",
       "actorder", set_key(kGroup + "weights.actorder", "group")},
      {"2.13", kLlama, kFault, "AWQ in the config, no scales of it", "inputs were to be scaled and are not",
       "quant_algo | pre_quant_scale", set_both(kQ + "quant_algo", "quantization.quant_algo", "NVFP4_AWQ")},
      {"2.13", kLlama, kFault, "low ranks beside codes", "their product is not added", "svdquant_lora_a",
       all_of({add_bf16("model.layers.1.mlp.up_proj.svdquant_lora_a", {16, 256}),
               add_bf16("model.layers.1.mlp.up_proj.svdquant_lora_b", {512, 16})})},
      {"2.13", kLlamaCt, kHarmless, "empty transforms and sparsity", "they say that there are none", "",
       all_of({set_key(kQ + "transform_config", Json::object({})),
               set_key(kQ + "sparsity_config", Json::object({}))})},
      {"2.13", kLlamaCt, kHarmless, "an order of weights", "weights were only visited in another order", "",
       set_key(kGroup + "weights.actorder", "weight")},
  };
}

}  // namespace

std::vector<Planted> planted_formats() {
  std::vector<Planted> all;
  for (const auto& part : {methods(), targets(), activations(), mixed(), lookups()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace twofour
