#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

// Ling-3.0-flash, in FP8 blocks with MXFP4 experts. Names: vLLM, models/bailing_moe_v3.py, whose mapper shows
// that files say "attention"; config of quantization: its tests. Types of the experts' codes and scales (U8),
// the size of an expert and the whole list of what is not quantized are inferred.

namespace twofour {
namespace {

constexpr const char* kLingConfig = R"({
  "architectures": ["BailingMoeV3ForCausalLM"], "first_k_dense_replace": 2,
  "gated_attention_proj_granularity_type": "head_wise", "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 6144, "kda_lower_bound": -5.0,
  "kda_safe_gate": true, "kv_lora_rank": 512, "layer_group_size": 6, "max_position_embeddings": 262144,
  "model_type": "bailing_hybrid", "moe_intermediate_size": 768, "moe_router_enable_expert_bias": true,
  "moe_shared_expert_intermediate_size": 768, "n_group": 8, "no_kda_lora": true, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts": 512, "num_experts_per_tok": 8, "num_hidden_layers": 42,
  "num_key_value_heads": 32, "num_nextn_predict_layers": 1, "num_shared_experts": 1, "q_lora_rank": null,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_interleave": true,
  "rope_theta": 6000000, "rotary_dim": 64, "routed_scaling_factor": 2.5, "score_function": "sigmoid",
  "short_conv_kernel_size": 4, "tie_word_embeddings": false, "topk_group": 4, "use_bias": false,
  "v_head_dim": 128})";
constexpr const char* kSmallLing = R"({
  "head_dim": 64, "hidden_size": 256, "intermediate_size": 512, "kv_lora_rank": 128,
  "moe_intermediate_size": 128, "moe_shared_expert_intermediate_size": 128, "n_group": 2,
  "num_attention_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 6,
  "num_key_value_heads": 4, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "rotary_dim": 32,
  "topk_group": 1, "v_head_dim": 64})";
constexpr SynthFormatRule kLingModules[] = {
    {"*.mlp.experts.*", &kLingMxfp4}, {"*.mlp.gate", nullptr}, {"*.attention.b_proj", nullptr},
    {"*.attention.*", &kLingFp8},     {"*.mlp.*", &kLingFp8},
};
const SynthPublication kLingPublications[] = {
    {"released", kLingModules, R"({"activation_scheme": "dynamic", "fmt": "e4m3",
       "modules_to_not_convert": ["lm_head", "word_embeddings", "b_proj", "eh_proj", "mlp.gate"],
       "quant_method": "fp8", "routed_experts_group_size": 32, "routed_experts_quant_method": "mxfp4",
       "scale_fmt": "ue8m0", "weight_block_size": [128, 128]})",
     nullptr, nullptr},
};

const SynthShape kLingShapes[] = {
    {.name = "ling-3.0-flash",
     .config = kLingConfig,
     .small = kSmallLing,
     .publications = kLingPublications,
     .f32 = "*_conv1d.weight *.A_log *.dt_bias *.expert_bias"},
};

}  // namespace

std::span<const SynthShape> ling_shapes() { return kLingShapes; }

}  // namespace twofour
