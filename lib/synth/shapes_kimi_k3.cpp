#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

// Kimi-K3. Names, types, shapes and config: moonshotai/Kimi-K3 as published; its list to ignore misses the
// router, the latent projections and those of residuals. RedHatAI/Kimi-K3-NVFP4: the same experts in NVFP4,
// by llm-compressor; its list is what llm-compressor writes. Tower and projector: vLLM, models/kimi_k3 and
// kimi_k25_vit.py.

namespace twofour {
namespace {

using enum SynthRole;
using enum SynthScope;

bool is_k3_full(int64_t layer, int64_t layers) { return layer % 4 == 3 || layer == layers - 1; }
bool is_k3_delta(int64_t layer, int64_t layers) { return !is_k3_full(layer, layers); }
bool is_k3_dense(int64_t layer, int64_t) { return layer < 1; }
bool is_k3_sparse(int64_t layer, int64_t) { return layer >= 1; }
#define TWOFOUR_DELTA "linear_attn_config.num_heads*linear_attn_config.head_dim"
constexpr SynthRule kK3Rules[] = {
    {kModel, "language_model.model.embed_tokens", "vocab_size", "hidden_size", kEmbedding},
    {kModel, "language_model.model.norm.weight", "hidden_size", "0", kVector},
    {kModel, "language_model.model.output_attn_res_norm.weight", "hidden_size", "0", kVector},
    {kModel, "language_model.model.output_attn_res_proj", "1", "hidden_size", kLinear},
    {kModel, "language_model.lm_head", "vocab_size", "hidden_size", kLinear},
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "self_attention_res_norm.weight", "hidden_size", "0", kVector},
    {kLayer, "self_attention_res_proj", "1", "hidden_size", kLinear},
    {kLayer, "mlp_res_norm.weight", "hidden_size", "0", kVector},
    {kLayer, "mlp_res_proj", "1", "hidden_size", kLinear},
    {kLayer, "self_attn.g_proj", TWOFOUR_DELTA, "hidden_size", kLinear},
    {kLayer, "self_attn.o_proj", "hidden_size", TWOFOUR_DELTA, kLinear},
    {kLayer, "self_attn.q_proj", TWOFOUR_DELTA, "hidden_size", kLinear, is_k3_delta},
    {kLayer, "self_attn.k_proj", TWOFOUR_DELTA, "hidden_size", kLinear, is_k3_delta},
    {kLayer, "self_attn.v_proj", TWOFOUR_DELTA, "hidden_size", kLinear, is_k3_delta},
    {kLayer, "self_attn.q_conv1d.weight", TWOFOUR_DELTA, "linear_attn_config.short_conv_kernel_size", kFilter,
     is_k3_delta},
    {kLayer, "self_attn.k_conv1d.weight", TWOFOUR_DELTA, "linear_attn_config.short_conv_kernel_size", kFilter,
     is_k3_delta},
    {kLayer, "self_attn.v_conv1d.weight", TWOFOUR_DELTA, "linear_attn_config.short_conv_kernel_size", kFilter,
     is_k3_delta},
    {kLayer, "self_attn.f_a_proj", "linear_attn_config.head_dim", "hidden_size", kLinear, is_k3_delta},
    {kLayer, "self_attn.f_b_proj", TWOFOUR_DELTA, "linear_attn_config.head_dim", kLinear, is_k3_delta},
    {kLayer, "self_attn.b_proj", "linear_attn_config.num_heads", "hidden_size", kLinear, is_k3_delta},
    {kLayer, "self_attn.A_log", "linear_attn_config.head_dim", "0", kF32Vector, is_k3_delta},
    {kLayer, "self_attn.dt_bias", TWOFOUR_DELTA, "0", kF32Vector, is_k3_delta},
    {kLayer, "self_attn.o_norm.weight", "linear_attn_config.head_dim", "0", kF32Vector, is_k3_delta},
    {kLayer, "self_attn.q_a_proj", "q_lora_rank", "hidden_size", kLinear, is_k3_full},
    {kLayer, "self_attn.q_a_layernorm.weight", "q_lora_rank", "0", kVector, is_k3_full},
    {kLayer, "self_attn.q_b_proj",
     "num_attention_heads*qk_nope_head_dim+num_attention_heads*qk_rope_head_dim", "q_lora_rank", kLinear,
     is_k3_full},
    {kLayer, "self_attn.kv_a_proj_with_mqa", "kv_lora_rank+qk_rope_head_dim", "hidden_size", kLinear,
     is_k3_full},
    {kLayer, "self_attn.kv_a_layernorm.weight", "kv_lora_rank", "0", kVector, is_k3_full},
    {kLayer, "self_attn.kv_b_proj", "num_attention_heads*qk_nope_head_dim+num_attention_heads*v_head_dim",
     "kv_lora_rank", kLinear, is_k3_full},
    {kLayer, "mlp.gate_proj", "intermediate_size", "hidden_size", kGate, is_k3_dense},
    {kLayer, "mlp.up_proj", "intermediate_size", "hidden_size", kUp, is_k3_dense},
    {kLayer, "mlp.down_proj", "hidden_size", "intermediate_size", kLinear, is_k3_dense},
    {kLayer, "block_sparse_moe.gate", "num_experts", "hidden_size", kLinear, is_k3_sparse},
    {kLayer, "block_sparse_moe.gate.e_score_correction_bias", "num_experts", "0", kF32Vector, is_k3_sparse},
    {kLayer, "block_sparse_moe.routed_expert_down_proj", "routed_expert_hidden_size", "hidden_size", kLinear,
     is_k3_sparse},
    {kLayer, "block_sparse_moe.routed_expert_norm.weight", "routed_expert_hidden_size", "0", kVector,
     is_k3_sparse},
    {kLayer, "block_sparse_moe.routed_expert_up_proj", "hidden_size", "routed_expert_hidden_size", kLinear,
     is_k3_sparse},
    {kLayer, "block_sparse_moe.shared_experts.gate_proj", "num_shared_experts*moe_intermediate_size",
     "hidden_size", kGate, is_k3_sparse},
    {kLayer, "block_sparse_moe.shared_experts.up_proj", "num_shared_experts*moe_intermediate_size",
     "hidden_size", kUp, is_k3_sparse},
    {kLayer, "block_sparse_moe.shared_experts.down_proj", "hidden_size",
     "num_shared_experts*moe_intermediate_size", kLinear, is_k3_sparse},
    {kExpert, "w1", "moe_intermediate_size", "routed_expert_hidden_size", kGate, is_k3_sparse},
    {kExpert, "w3", "moe_intermediate_size", "routed_expert_hidden_size", kUp, is_k3_sparse},
    {kExpert, "w2", "routed_expert_hidden_size", "moe_intermediate_size", kLinear, is_k3_sparse},
};
#undef TWOFOUR_DELTA
#define TWOFOUR_K3_MERGED "4*vision_config.vt_hidden_size"
constexpr SynthRule kK3VisionRules[] = {
    {kModel, "vision_tower.patch_embed.proj", "vision_config.vt_hidden_size", "vision_config.patch_size",
     kImagePatches},
    {kModel, "vision_tower.patch_embed.pos_emb.weight", "vision_config.init_pos_emb_height",
     "vision_config.vt_hidden_size", kGrid},
    {kModel, "vision_tower.encoder.final_layernorm.weight", "vision_config.vt_hidden_size", "0", kVector},
    {kModel, "mm_projector.proj.0", TWOFOUR_K3_MERGED, TWOFOUR_K3_MERGED, kLinear},
    {kModel, "mm_projector.proj.2", "hidden_size", TWOFOUR_K3_MERGED, kLinear},
    {kModel, "mm_projector.post_norm.weight", "hidden_size", "0", kVector},
    {kLayer, "norm0.weight", "vision_config.vt_hidden_size", "0", kVector},
    {kLayer, "norm1.weight", "vision_config.vt_hidden_size", "0", kVector},
    {kLayer, "wqkv", "3*vision_config.qkv_hidden_size", "vision_config.vt_hidden_size", kLinear},
    {kLayer, "wo", "vision_config.vt_hidden_size", "vision_config.qkv_hidden_size", kLinear},
    {kLayer, "mlp.fc0", "vision_config.vt_intermediate_size", "vision_config.vt_hidden_size", kLinear},
    {kLayer, "mlp.fc1", "vision_config.vt_hidden_size", "vision_config.vt_intermediate_size", kLinear},
};
#undef TWOFOUR_K3_MERGED
constexpr SynthStack kK3Stacks[] = {
    {"language_model.model.layers.{}.", "block_sparse_moe.experts.{}.", "num_hidden_layers", {kK3Rules}},
    {"vision_tower.encoder.blocks.{}.", nullptr, "vision_config.vt_num_hidden_layers", {kK3VisionRules}},
};
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
    {"released", nullptr, kK3Modules, R"({
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
    {"redhat", nullptr, kK3Nvfp4Modules, R"({
       "config_groups": {"group_0": {"targets": ["Linear"]}}, "format": "nvfp4-pack-quantized",
       "global_compression_ratio": null, "ignore": [], "kv_cache_scheme": null,
       "quant_method": "compressed-tensors", "quantization_status": "compressed", "sparsity_config": {},
       "transform_config": {}, "version": "0.17.0"})",
     nullptr, fill_k3_nvfp4},
};

const SynthShape kKimiK3Shapes[] = {
    {"kimi-k3", "num_experts", "num_experts_per_token", 93, 896, 16, kK3Stacks, kK3Config, kSmallK3,
     kK3Publications, "text_config", set_k3_lists},
};

}  // namespace

std::span<const SynthShape> kimi_k3_shapes() { return kKimiK3Shapes; }

}  // namespace twofour
