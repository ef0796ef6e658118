#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

// gpt-oss-20b, as published: stacks of experts with biases, rows of gate and up in turn.

namespace twofour {
namespace {

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
    {"released", kGptOssModules, R"({
       "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
         "model.embed_tokens", "lm_head"],
       "quant_method": "mxfp4"})",
     nullptr, nullptr},
};

const SynthShape kGptOssShapes[] = {
    {.name = "gpt-oss",
     .config = kGptOssConfig,
     .small = kSmallGptOss,
     .publications = kGptOssPublications,
     .finish = set_windows},
};

}  // namespace

std::span<const SynthShape> gpt_oss_shapes() { return kGptOssShapes; }

}  // namespace twofour
