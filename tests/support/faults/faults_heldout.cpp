#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"

// Changes that rules are held against and not written by: clauses 1 and 2. See faults_heldout_weights.cpp.

namespace twofour {
namespace {

using namespace spoil;
using enum Base;
constexpr Expect kFault = Expect::kFault, kHarmless = Expect::kHarmless;

const std::string kQ = "quantization_config.", kGroup = kQ + "config_groups.group_0.",
                  kGroup1 = kQ + "config_groups.group_1.";

std::vector<Planted> sizes() {
  return {
      {"1.1", kMixtral, kFault, "left out", "mixtral's default is 4096: the load fails", "hidden_size",
       erase_key("hidden_size")},
      {"1.1", kLlamaCt, kFault, "of an 8B model", "every parameter has another shape", "hidden_size",
       set_key("hidden_size", 4096)},
      {"1.2", kNemotron, kFault, "a wider latent",
       "experts and their projections are allocated twice as wide", "moe_latent_size",
       set_key("moe_latent_size", 256)},
      {"1.2", kDeepSeek, kFault, "two shared experts where one is stored",
       "the shared expert is allocated twice as wide", "n_shared_experts", set_key("n_shared_experts", 2)},
      {"1.2", kGptOss, kFault, "of the published model", "stacks are allocated fifteen times as wide",
       "intermediate_size", set_key("intermediate_size", 2880)},
      {"1.2", kNemotron, kHarmless, "of dense layers that the pattern has none of", "no layer has this width",
       "", set_key("intermediate_size", 512)},
      {"1.3", kGptOss, kFault, "left out", "the default is 201088 rows", "vocab_size",
       erase_key("vocab_size")},
      {"1.3", kLlama, kFault, "an end token beyond it", "no token ends a text", "eos_token_id",
       set_key("eos_token_id", 99999)},
      {"1.3", kDeepSeek, kFault, "a draft's embedding with fewer rows",
       "the draft embeds tokens past its end", "layers.5.embed_tokens",
       resize_rows("model.layers.5.embed_tokens.weight", 200)},
      {"1.4", kMixtral, kFault, "a gap in their numbers",
       "layer 2 stays uninitialized and layer 3 is dropped", "layers.3 | layers.2 | layers-missing",
       rename("model.layers.2.", "model.layers.3.")},
      {"1.4", kNemotron, kFault, "kinds in another order",
       "layers are built of tensors that the files do not have", "hybrid_override_pattern | layers.0",
       set_key("hybrid_override_pattern", "EMMEME")},
      {"1.4", kTiny, kFault, "none", "the model is an embedding and a head", "num_hidden_layers",
       set_key("num_hidden_layers", 0)},
      {"1.4", kQwenRow, kHarmless, "no interval beside the list", "the list of kinds decides", "",
       erase_key("text_config.full_attention_interval")},
      {"1.5", kMoe, kFault, "half the heads, twice as wide",
       "projections fit; norms of heads do not, and heads mix", "head_dim | q_norm",
       all_of(
           {set_key("num_attention_heads", 2), set_key("num_key_value_heads", 1), set_key("head_dim", 128)})},
      {"1.5", kLlama, kFault, "three key heads for four", "4 heads cannot be parted by 3",
       "num_key_value_heads", set_key("num_key_value_heads", 3)},
      {"1.5", kQwenMixed, kFault, "twice the heads of linear attention",
       "in_proj_z and out_proj are allocated otherwise", "linear_num_value_heads",
       set_key("text_config.linear_num_value_heads", 16)},
      {"1.5", kDeepSeek, kFault, "twice the rotary width", "q_b_proj and kv_a_proj are allocated otherwise",
       "qk_rope_head_dim", set_key("qk_rope_head_dim", 64)},
      {"1.6", kGptOss, kFault, "one lost in the stack of down_proj", "expert 3 has no down_proj",
       "layers.1 down_proj",
       all_of({resize_rows("model.layers.1.mlp.experts.down_proj_blocks", 3),
               resize_rows("model.layers.1.mlp.experts.down_proj_scales", 3)})},
      {"1.6", kTiny, kFault, "counted from one", "expert 0 stays uninitialized, expert 8 is dropped",
       "layers.1.mlp.experts", rename("model.layers.1.mlp.experts.0.", "model.layers.1.mlp.experts.8.")},
      {"1.6", kDeepSeek, kFault, "one of the draft lost", "the draft has an uninitialized expert",
       "layers.5.mlp.experts", drop_below("model.layers.5.mlp.experts.2.")},
      {"1.6", kMoe, kFault, "the last one lost in the last layer", "it stays uninitialized",
       "layers.3.mlp.experts", drop_below("model.layers.3.mlp.experts.15.")},
      {"1.7", kMixtral, kFault, "more than experts", "topk over fewer experts fails", "num_experts_per_tok",
       set_key("num_experts_per_tok", 9)},
      {"1.7", kDeepSeek, kFault, "more than the chosen groups hold", "experts that were masked are chosen",
       "num_experts_per_tok | topk_group | n_group", set_key("num_experts_per_tok", 3)},
      {"1.7", kNemotron, kFault, "no expert", "no expert runs", "num_experts_per_tok",
       set_key("num_experts_per_tok", 0)},
      {"1.8", kDeepSeek, kFault, "more than layers", "no layer is built with experts",
       "first_k_dense_replace", set_key("first_k_dense_replace", 9)},
      {"1.8", kTiny, kFault, "all layers dense", "no layer is built with experts", "mlp_only_layers",
       set_key("mlp_only_layers", Json::array({0, 1, 2}))},
      {"1.9", kNemotron, kFault, "counted and lost", "the draft stays uninitialized", "mtp",
       drop_below("mtp.")},
      {"1.9", kQwenRow, kFault, "two counted, one stored", "the second draft stays uninitialized",
       "mtp_num_hidden_layers | mtp", set_key("text_config.mtp_num_hidden_layers", 2)},
      {"1.9", kQwenMixed, kFault, "a norm of half the width", "it does not multiply with hidden states",
       "mtp", resize_rows("mtp.norm.weight", 128)},
      {"1.14", kDeepSeek, kFault, "a count of layers in quotes", "comparing a number with text fails",
       "first_k_dense_replace", set_key("first_k_dense_replace", "3")},
      {"1.14", kMixtral, kFault, "key heads by null", "null is the default: as many as query heads",
       "num_key_value_heads", set_key("num_key_value_heads", nullptr)},
      {"1.14", kQwenMixed, kFault, "half an expert", "an allocation of a fraction fails", "num_experts",
       set_key("text_config.num_experts", 4.5)},
      {"1.14", kLlama, kFault, "a base of rotation that is NaN", "every position is NaN", "rope_theta",
       set_key("rope_theta", Json::raw_number("NaN"))},
  };
}

std::vector<Planted> tensors_of_families() {
  return {
      {"1.10", kNemotron, kFault, "stored for convolutions and switched off", "biases are dropped",
       "use_conv_bias | conv1d", set_key("use_conv_bias", false)},
      {"1.10", kGptOss, kFault, "half as long", "it does not add to keys", "layers.2.self_attn.k_proj",
       resize_rows("model.layers.2.self_attn.k_proj.bias", 32)},
      {"1.10", kDeepSeek, kFault, "promised and not stored", "parameters for biases are never filled",
       "attention_bias", set_key("attention_bias", true)},
      {"1.11", kDeepSeek, kFault, "transposed", "it does not multiply with hidden states",
       "layers.3.mlp.gate",
       edit_tensors("model.layers.3.mlp.gate.weight",
                    [](TensorData& t) { std::swap(t.shape[0], t.shape[1]); })},
      {"1.11", kQwenMixed, kFault, "a gate of the shared expert with four rows",
       "one number is expected for a token", "layers.1.mlp.shared_expert_gate",
       resize_rows("model.language_model.layers.1.mlp.shared_expert_gate.weight", 4)},
      {"1.11", kMoe, kFault, "a row too many in all", "tokens go to an expert that does not exist",
       "mlp.gate", resize_rows("model.layers.*.mlp.gate.weight", 17)},
      {"1.12", kQwenMixed, kFault, "of one linear attention lost", "it stays at ones",
       "layers.2.linear_attn.norm", drop("model.language_model.layers.2.linear_attn.norm.weight")},
      {"1.12", kLlama, kFault, "of zeros", "the layer's attention sees zeros", "layers.1.input_layernorm",
       set_floats("model.layers.1.input_layernorm.weight", 0)},
      {"1.12", kQwenRow, kFault, "of queries, half as wide", "it does not multiply with heads", "q_norm",
       resize_rows("model.language_model.layers.3.self_attn.q_norm.weight", 32)},
      {"1.13", kDeepSeek, kFault, "the embedding lost", "nothing is embedded", "embed_tokens",
       drop("model.embed_tokens.weight")},
      {"1.13", kLlamaCt, kFault, "a head with its dimensions exchanged",
       "it does not multiply with hidden states", "lm_head",
       edit_tensors("lm_head.weight", [](TensorData& t) { std::swap(t.shape[0], t.shape[1]); })},
      {"1.13", kTiny, kFault, "tied, with another head stored",
       "engines take the embedding and drop the head", "lm_head | tie_word_embeddings",
       all_of({add_copy("model.embed_tokens", "lm_head"),
               map_floats("lm_head.weight", [](float x) { return -x; })})},
      {"1.15", kMixtral, kFault, "names of a parallel wrapper", "no parameter has these names", "module.",
       rename("model.", "module.model.")},
      {"1.15", kLlamaCt, kFault, "names of an adapter's wrapper", "no parameter has these names",
       "base_model", rename("model.", "base_model.model.model.")},
      {"1.15", kMoe, kFault, "an optimizer's moments", "no parameter has this name", "exp_avg",
       add_bf16("model.layers.0.self_attn.q_proj.weight.exp_avg", {256, 256})},
      {"1.15", kMixtral, kHarmless, "frequencies of the model", "loaders skip rotary_emb.inv_freq", "",
       add_f32("model.rotary_emb.inv_freq", 1, {1})},
      {"1.16", kQwenRow, kFault, "a convolution of linear attention lost", "it stays uninitialized",
       "layers.1 conv1d", drop("model.language_model.layers.1.linear_attn.conv1d.weight")},
      {"1.16", kDeepSeek, kFault, "a projection of queries lost", "it stays uninitialized",
       "layers.2.self_attn.q_b_proj", drop_below("model.layers.2.self_attn.q_b_proj.")},
      {"1.16", kNemotron, kFault, "a projection into the latent lost", "experts see random inputs",
       "layers.3 fc1_latent_proj", drop("backbone.layers.3.mixer.fc1_latent_proj.weight")},
      {"1.16", kMixtral, kFault, "values of one layer lost", "the projection stays uninitialized",
       "layers.0.self_attn.v_proj", drop("model.layers.0.self_attn.v_proj.weight")},
      {"1.17", kUnknown, kFault, "fewer layers than stored", "the last layer is dropped",
       "num_hidden_layers | layers.2", set_key("num_hidden_layers", 2)},
      {"1.17", kUnknown, kFault, "up of one layer with half the rows", "it does not multiply with gate",
       "layers.2.mlp",
       all_of({resize_rows("model.layers.2.mlp.up_proj.weight", 256),
               resize_rows("model.layers.2.mlp.up_proj.weight_scale", 256)})},
      {"1.17", kUnknown, kFault, "a count in quotes", "arithmetic with text fails", "num_hidden_layers",
       set_key("num_hidden_layers", "3")},
  };
}

std::vector<Planted> formats() {
  return {
      {"2.1", kQwenRow, kFault, "a method misspelt", "no engine has a method of this name", "quant_method",
       set_key(kQ + "quant_method", "compressed_tensor")},
      {"2.1", kDeepSeek, kFault, "ModelOpt over DeepSeek's blocks", "scales are looked for under other names",
       "quant_method", set_key(kQ + "quant_method", "modelopt")},
      {"2.1", kNemotron, kFault, "one algorithm over mixed formats", "codes of experts are read as FP8",
       "quant_algo | engine-lookup experts", set_both(kQ + "quant_algo", "quantization.quant_algo", "FP8")},
      {"2.2", kLlamaCt, kFault, "MXFP4", "groups of 32 with exponents are looked for", "format",
       all_of({set_key(kQ + "format", "mxfp4-pack-quantized"),
               set_key(kGroup + "format", "mxfp4-pack-quantized")})},
      {"2.2", kQwenRow, kFault, "a scale a row for NVFP4", "no kernel has 4 bits by rows", "strategy",
       set_key(kGroup1 + "weights.strategy", "channel")},
      {"2.2", kQwenRow, kFault, "4 bits for FP8", "FP8 bytes are read as packed codes",
       "num_bits | engine-lookup self_attn", set_key(kGroup + "weights.num_bits", 4)},
      {"2.3", kMoe, kFault, "none", "a division by zero", "group_size",
       set_both(kGroup + "weights.group_size", "quantization.group_size", 0)},
      {"2.3", kDeepSeek, kFault, "rows of 128", "128 times the scales are allocated", "weight_block_size",
       set_key(kQ + "weight_block_size", Json::array({1, 128}))},
      {"2.4", kQwenRow, kFault, "the names of another model class", "MLPs are taken for unquantized", "mlp",
       set_key(kGroup1 + "targets", Json::array({"re:model\\.layers\\..*mlp\\.(gate|up|down)_proj$"}))},
      {"2.4", kMixtral, kFault, "experts alone", "o_proj is taken for unquantized", "o_proj",
       set_key(kGroup + "targets", Json::array({"re:.*experts.*"}))},
      {"2.4", kQwenRow, kHarmless, "in another order", "all of them are tried", "",
       edit_key(kGroup + "targets",
                [](Json& t) {
                  const Json first = t[0];
                  t[0] = t[2];
                  t[2] = first;
                })},
      {"2.5", kLlama, kFault, "a whole layer that is quantized", "its codes find no place", "layers.1",
       ignore_also({"model.layers.1*"})},
      {"2.5", kGptOss, kHarmless, "attention by its parts", "the same modules are left alone", "",
       ignore_also({"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"})},
      {"2.5", kQwenMixed, kFault, "a quantized head", "its codes find no place", "lm_head",
       ignore_also({"lm_head"})},
      {"2.6", kLlamaKv, kFault, "INT8 in one, FP8 in the other", "scales of FP8 are taken for those of INT8",
       "kv_cache", set_hf("quantization.kv_cache_quant_algo", "INT8")},
      {"2.6", kLlamaKvCt, kFault, "4 bits", "no engine has such a cache with these scales", "kv_cache_scheme",
       set_key(kQ + "kv_cache_scheme.num_bits", 4)},
      {"2.7", kMixtral, kFault, "promised, and none stored", "input scales are uninitialized memory",
       "input_global_scale | missing-input-scale", drop("model.layers.*.input_global_scale")},
      {"2.7", kNemotron, kFault, "one of FP8 lost", "its inputs are scaled at random",
       "layers.2.mixer.in_proj", drop("backbone.layers.2.mixer.in_proj.input_scale")},
      {"2.8", kNemotron, kFault, "one expert left out", "its codes are read as BF16",
       "layers.1.mixer.experts",
       [](Save& s, auto&) {
         const char* name = "backbone.layers.1.mixer.experts.2.up_proj";
         s.edit("config.json", [&](Json& j) { j["quantization_config"]["quantized_layers"].erase(name); });
         s.edit("hf_quant_config.json", [&](Json& j) { j["quantization"]["quantized_layers"].erase(name); });
       }},
      {"2.8", kQwenMixed, kFault, "another format of queries alone", "q, k and v are fused and must agree",
       "layers.7.self_attn",
       [](Save& s, auto&) {
         const char* name = "model.language_model.layers.7.self_attn.q_proj";
         const Json nvfp4 = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
         s.edit("config.json", [&](Json& j) { j["quantization_config"]["quantized_layers"][name] = nvfp4; });
         s.edit("hf_quant_config.json",
                [&](Json& j) { j["quantization"]["quantized_layers"][name] = nvfp4; });
       }},
      {"2.9", kGptOss, kFault, "stacks of one layer in BF16", "blocks are looked for and not found",
       "layers.1.mlp.experts",
       all_of({drop_below("model.layers.1.mlp.experts.gate_up_proj_blocks"),
               drop_below("model.layers.1.mlp.experts.gate_up_proj_scales"),
               add_bf16("model.layers.1.mlp.experts.gate_up_proj", {4, 192, 384})})},
      {"2.9", kDeepSeek, kFault, "one linear in BF16", "its bytes are read as FP8",
       "layers.4.self_attn.kv_b_proj",
       all_of({drop_below("model.layers.4.self_attn.kv_b_proj."),
               add_bf16("model.layers.4.self_attn.kv_b_proj.weight", {384, 128})})},
      {"2.10", kMixtral, kFault, "a quantized router that the list leaves out", "its codes find no place",
       "layers.1.block_sparse_moe.gate",
       all_of({drop_below("model.layers.1.block_sparse_moe.gate."),
               add_copy("model.layers.1.self_attn.o_proj.", "model.layers.1.block_sparse_moe.gate."),
               resize_rows("model.layers.1.block_sparse_moe.gate.weight_packed", 4),
               resize_rows("model.layers.1.block_sparse_moe.gate.weight_scale", 4)})},
      {"2.10", kQwenRow, kFault, "one of three that engines fuse left out", "its FP8 bytes are read as BF16",
       "layers.3.self_attn.k_proj", ignore_also({"model.language_model.layers.3.self_attn.k_proj"})},
      {"2.11", kLlama, kFault, "the fused name of quantized parts", "engines leave gate_up_proj unquantized",
       "layers.1.mlp", ignore_also({"model.layers.1.mlp.gate_up_proj"})},
      {"2.11", kLlamaCt, kFault, "an expression for routers that takes gate_proj",
       "gate is left alone and up is not", "gate_proj", ignore_also({"re:.*mlp\\.gate"})},
      {"2.12", kNemotron, kFault, "an entry in one alone", "engines read different formats",
       "layers.3.mixer.experts",
       [](Save& s, auto&) {
         s.edit("config.json", [&](Json& j) {
           j["quantization_config"]["quantized_layers"].erase("backbone.layers.3.mixer.experts.1.down_proj");
         });
       }},
      {"2.12", kLlamaKv, kHarmless, "in another order", "lists are sets", "",
       [](Save& s, auto&) {
         s.edit("hf_quant_config.json", [](Json& j) {
           Json& list = j["quantization"]["exclude_modules"];
           Json turned = Json::array();
           for (size_t i = list.size(); i-- > 0;) turned.push_back(list[i]);
           list = turned;
         });
       }},
      {"2.13", kLlamaCt, kFault, "an order of groups as a tensor", "columns belong to other scales",
       "weight_g_idx",
       [](Save& s, auto&) {
         s.add({"model.layers.1.mlp.down_proj.weight_g_idx",
                DType::kI32,
                {512},
                std::vector<uint8_t>(2048, 0)});
       }},
      {"2.13", kMixtral, kFault, "a sparse format in the config, dense codes",
       "bitmasks are looked for and not found", "sparsity_config",
       set_key(kQ + "sparsity_config", {{"format", "sparse-24-bitmask"},
                                        {"global_sparsity", 0.5},
                                        {"ignore", Json::array()},
                                        {"registry_requires_subclass", false},
                                        {"sparsity_structure", "2:4"},
                                        {"targets", Json::array({"Linear"})}})},
      {"2.13", kLlama, kFault, "affine keys of a cache", "biases of the cache are not added", "k_bias",
       add_f32("model.layers.1.self_attn.k_proj.k_bias", 0.5f)},
  };
}

}  // namespace

std::vector<Planted> held_out_config() {
  std::vector<Planted> all;
  for (const auto& part : {sizes(), tensors_of_families(), formats()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace twofour
