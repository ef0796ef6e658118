#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

// gpt-oss-20b, as published: stacks of experts with biases, rows of gate and up in turn.

namespace twofour {
namespace {

using enum SynthRole;
using enum SynthScope;

constexpr SynthRule kGptOssRules[] = {
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "self_attn.q_proj", "num_attention_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.q_proj.bias", "num_attention_heads*head_dim", "0", kBias},
    {kLayer, "self_attn.k_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.k_proj.bias", "num_key_value_heads*head_dim", "0", kBias},
    {kLayer, "self_attn.v_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.v_proj.bias", "num_key_value_heads*head_dim", "0", kBias},
    {kLayer, "self_attn.o_proj", "hidden_size", "num_attention_heads*head_dim", kLinear},
    {kLayer, "self_attn.o_proj.bias", "hidden_size", "0", kBias},
    {kLayer, "self_attn.sinks", "num_attention_heads", "0", kBias},
    {kLayer, "mlp.router", "num_local_experts", "hidden_size", kLinear},
    {kLayer, "mlp.router.bias", "num_local_experts", "0", kBias},
    {kLayer, "mlp.experts.gate_up_proj", "2*intermediate_size", "hidden_size", kStack},
    {kLayer, "mlp.experts.gate_up_proj_bias", "2*intermediate_size", "0", kStackBias},
    {kLayer, "mlp.experts.down_proj", "hidden_size", "intermediate_size", kStack},
    {kLayer, "mlp.experts.down_proj_bias", "hidden_size", "0", kStackBias},
};
constexpr SynthStack kGptOssStacks[] = {
    {"model.layers.{}.", nullptr, "num_hidden_layers", {kTextModelRules, kGptOssRules}},
};
constexpr const char* kGptOssConfig = R"({
  "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
  "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
  "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880, "layer_types": [],
  "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
  "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
  "output_router_logits": false, "rms_norm_eps": 1e-05,
  "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
  "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
  "tie_word_embeddings": false})";
constexpr const char* kSmallGptOss = R"({"experts_per_token": 2, "head_dim": 32, "hidden_size": 192,
  "intermediate_size": 192, "num_attention_heads": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2,
  "num_key_value_heads": 2, "num_local_experts": 4})";
void set_windows(Json& text, int64_t layers) {
  Json types = Json::array();
  for (int64_t i = 0; i < layers; ++i) types.push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  text["layer_types"] = types;
}
constexpr SynthFormatRule kGptOssModules[] = {{"*.mlp.experts.*", &kGptOssMxfp4}};
const SynthPublication kGptOssPublications[] = {
    {"released", nullptr, kGptOssModules, R"({
       "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
         "model.embed_tokens", "lm_head"],
       "quant_method": "mxfp4"})",
     nullptr, nullptr},
};

const SynthShape kGptOssShapes[] = {
    {"gpt-oss", "num_local_experts", "num_experts_per_tok", 24, 32, 4, kGptOssStacks, kGptOssConfig,
     kSmallGptOss, kGptOssPublications, nullptr, set_windows},
};

}  // namespace

std::span<const SynthShape> gpt_oss_shapes() { return kGptOssShapes; }

}  // namespace twofour
