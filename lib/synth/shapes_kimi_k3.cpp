#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

// Kimi-K3. Names, types, shapes and config: moonshotai/Kimi-K3 as published; its list to ignore misses the
// router, the latent projections and those of residuals. RedHatAI/Kimi-K3-NVFP4: the same experts in NVFP4,
// by llm-compressor; its list is what llm-compressor writes. Tower and projector: vLLM, models/kimi_k3 and
// kimi_k25_vit.py.

namespace twofour {
namespace {

bool is_k3_full(int64_t layer, int64_t layers) { return layer % 4 == 3 || layer == layers - 1; }
constexpr const char* kK3Config = R"({
  "architectures": ["KimiK3ForConditionalGeneration"], "dtype": "bfloat16", "ignore_index": -100,
  "media_placeholder_token_id": 163605, "model_type": "kimi_k3",
  "text_config": {
    "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
    "architectures": ["KimiLinearForCausalLM"], "attn_res_block_size": 12, "dtype": "bfloat16",
    "first_k_dense_replace": 1, "hidden_act": "situ", "hidden_size": 7168, "initializer_range": 0.02,
    "intermediate_size": 33792, "kv_lora_rank": 512, "latent_moe_use_norm": true,
    "linear_attn_config": {"full_attn_layers": [], "gate_lower_bound": -5.0, "head_dim": 128,
      "kda_layers": [], "num_heads": 96, "short_conv_kernel_size": 4, "use_full_rank_gate": true},
    "max_position_embeddings": 1048576, "mla_use_nope": true, "mla_use_output_gate": true,
    "model_type": "kimi_linear", "moe_intermediate_size": 3072, "moe_layer_freq": 1,
    "moe_renormalize": true, "moe_router_activation_func": "sigmoid", "num_attention_heads": 96,
    "num_expert_group": 1, "num_experts": 896, "num_experts_per_token": 16, "num_hidden_layers": 93,
    "num_key_value_heads": 96, "num_nextn_predict_layers": 0, "num_shared_experts": 2,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "routed_expert_hidden_size": 3584, "routed_scaling_factor": 1.0, "tie_word_embeddings": false,
    "topk_group": 1, "topk_method": "noaux_tc", "use_grouped_topk": true, "v_head_dim": 128},
  "tie_word_embeddings": false,
  "vision_config": {
    "activation_func": "gelu_pytorch_tanh", "attn_bias": false, "init_pos_emb_height": 64,
    "init_pos_emb_time": 4, "init_pos_emb_width": 64, "linear_bias": false, "merge_kernel_size": [2, 2],
    "mm_projector_type": "patchmergerv2", "norm_type": "rmsnorm", "patch_embed_proj_bias": false,
    "patch_size": 14, "projector_ln_eps": 1e-05, "qkv_hidden_size": 1536, "vt_hidden_size": 1024,
    "vt_intermediate_size": 4096, "vt_num_attention_heads": 12, "vt_num_hidden_layers": 27}})";
constexpr const char* kSmallK3 = R"({"text_config": {
  "hidden_size": 256, "intermediate_size": 512, "kv_lora_rank": 128,
  "linear_attn_config": {"head_dim": 32, "num_heads": 8}, "moe_intermediate_size": 128,
  "num_attention_heads": 8, "num_experts": 4, "num_experts_per_token": 2, "num_hidden_layers": 5,
  "num_key_value_heads": 8, "q_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32,
  "routed_expert_hidden_size": 128, "v_head_dim": 32},
  "vision_config": {"init_pos_emb_height": 16, "init_pos_emb_width": 16, "patch_size": 4,
    "qkv_hidden_size": 48, "vt_hidden_size": 32, "vt_intermediate_size": 64, "vt_num_attention_heads": 2,
    "vt_num_hidden_layers": 1}})";
void set_k3_lists(Json& text, int64_t layers) {
  Json full = Json::array(), delta = Json::array();
  for (int64_t i = 0; i < layers; ++i) (is_k3_full(i, layers) ? full : delta).push_back(i + 1);
  text["linear_attn_config"]["full_attn_layers"] = full;
  text["linear_attn_config"]["kda_layers"] = delta;
}
constexpr SynthFormatRule kK3Modules[] = {{"*.block_sparse_moe.experts.*", &kCtMxfp4}};
constexpr SynthFormatRule kK3Nvfp4Modules[] = {{"*.block_sparse_moe.experts.*", &kCtNvfp4}};
void fill_k3_nvfp4(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  fill_nvfp4_scheme(quantization["config_groups"]["group_0"]);
  fill_ignored_names(listing, quantization, hf_quant);
}
const SynthPublication kK3Publications[] = {
    {"released", kK3Modules, R"({
       "config_groups": {"group_0": {"format": "mxfp4-pack-quantized", "input_activations": null,
         "output_activations": null, "targets": ["Linear"],
         "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": 32,
           "num_bits": 4, "observer": "minmax", "observer_kwargs": {}, "scale_dtype": "torch.uint8",
           "strategy": "group", "symmetric": true, "type": "float", "zp_dtype": null}}},
       "format": "mxfp4-pack-quantized", "global_compression_ratio": null,
       "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*",
         "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*", "re:.*vision_tower.*",
         "re:.*mm_projector.*"],
       "kv_cache_scheme": null, "quant_method": "compressed-tensors", "quantization_status": "compressed"})",
     nullptr, nullptr, "text_config"},
    {"redhat", kK3Nvfp4Modules, R"({
       "config_groups": {"group_0": {"targets": ["Linear"]}}, "format": "nvfp4-pack-quantized",
       "global_compression_ratio": null, "ignore": [], "kv_cache_scheme": null,
       "quant_method": "compressed-tensors", "quantization_status": "compressed", "sparsity_config": {},
       "transform_config": {}, "version": "0.17.0"})",
     nullptr, fill_k3_nvfp4},
};

const SynthShape kKimiK3Shapes[] = {
    {.name = "kimi-k3",
     .config = kK3Config,
     .small = kSmallK3,
     .publications = kK3Publications,
     .text = "text_config",
     .finish = set_k3_lists,
     .language_model = "language_model.",
     .f32 = "*_conv1d.weight *.A_log *.dt_bias *.o_norm.weight *.e_score_correction_bias"},
};

}  // namespace

std::span<const SynthShape> kimi_k3_shapes() { return kKimiK3Shapes; }

}  // namespace twofour
