#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

namespace twofour {
namespace {

// MiniMax-M3. Names: transformers, conversion_mapping.py and models/minimax_m3_vl; configs as published. The
// method, the block and the list of the vendor's quantization entry are known. Tower and draft: vLLM,
// models/minimax_m3. The draft's format is inferred from the lists: nvidia's 534 MXFP8 modules do not include
// it, and the vendor's list, which names modules that are not MXFP8, does not name it.

bool is_sparse_m3(int64_t layer, int64_t) { return layer >= 3; }
constexpr const char* kM3Config = R"({
  "architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl",
  "text_config": {
    "architectures": ["MiniMaxM3SparseForCausalLM"], "attention_output_gate": false,
    "dense_intermediate_size": 12288, "dtype": "bfloat16", "head_dim": 128, "hidden_act": "swigluoai",
    "hidden_size": 6144, "intermediate_size": 3072, "max_position_embeddings": 1048576, "moe_layer_freq": [],
    "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 60,
    "num_key_value_heads": 4, "num_local_experts": 128, "num_mtp_modules": 1, "partial_rotary_factor": 0.5,
    "qk_norm_type": "per_head", "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64,
    "routed_scaling_factor": 2.0, "scoring_func": "sigmoid", "shared_intermediate_size": 3072,
    "sparse_attention_config": {"use_sparse_attention": true, "sparse_index_dim": 128,
      "sparse_num_index_heads": 4, "sparse_topk_blocks": 16, "sparse_block_size": 128,
      "sparse_disable_index_value": [], "sparse_score_type": "max", "sparse_init_block": 0,
      "sparse_local_block": 1, "sparse_attention_freq": []},
    "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_gemma_norm": true,
    "use_qk_norm": true, "use_routing_bias": true},
  "vision_config": {"hidden_size": 1280, "image_size": 2016, "img_token_compression_config":
      {"spatial_merge_size": 2, "temporal_patch_size": 2},
    "intermediate_size": 5120, "model_type": "clip_vision_model", "num_attention_heads": 16,
    "num_channels": 3, "num_hidden_layers": 32, "patch_size": 14},
  "image_token_index": 200025, "projector_hidden_size": 6144, "torch_dtype": "bfloat16"})";
constexpr const char* kSmallM3 = R"({
  "text_config": {"dense_intermediate_size": 512, "head_dim": 64, "hidden_size": 256,
    "intermediate_size": 128, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 5,
    "num_key_value_heads": 2, "num_local_experts": 4, "rotary_dim": 32, "shared_intermediate_size": 128,
    "sparse_attention_config": {"sparse_index_dim": 32, "sparse_num_index_heads": 2}},
  "vision_config": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
    "num_hidden_layers": 1, "patch_size": 4},
  "projector_hidden_size": 128})";
void set_m3_lists(Json& text, int64_t layers) {
  Json sparse = Json::array();
  for (int64_t i = 0; i < layers; ++i) sparse.push_back(is_sparse_m3(i, layers) ? 1 : 0);
  text["moe_layer_freq"] = sparse;
  text["sparse_attention_config"]["sparse_disable_index_value"] = sparse;
  text["sparse_attention_config"]["sparse_attention_freq"] = sparse;
}
/// The excluded modules: the names in the published file without prefixes, then the routers.
std::vector<std::string> m3_excludes(const SynthListing& listing) {
  std::vector<std::string> names = {"lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector",
                                    "patch_merge_mlp"};
  for (const std::string& name : float_modules(listing, "*.block_sparse_moe.gate")) names.push_back(name);
  return names;
}
void fill_m3(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  fill_modelopt_linears(listing, quantization, hf_quant);
  append_names(quantization["exclude_modules"], m3_excludes(listing));
  append_names(hf_quant["quantization"]["exclude_modules"], m3_excludes(listing));
}
void fill_m3_vendor(const SynthListing& listing, Json& quantization, Json&) {
  append_names(quantization["ignored_layers"], m3_excludes(listing));
}
constexpr SynthFormatRule kM3Modules[] = {
    {"*.mtp.*", nullptr},
    {"*.block_sparse_moe.gate", nullptr},
    {"*.block_sparse_moe.experts.*", &kModelOptNvfp4},
    {"language_model.model.layers.*", &kModelOptMxfp8},
};
constexpr SynthFormatRule kM3VendorModules[] = {
    {"*.block_sparse_moe.gate", nullptr},
    {"language_model.model.layers.*", &kVendorMxfp8},
    {"language_model.model.mtp.*", &kVendorMxfp8},
};
const SynthPublication kM3Publications[] = {
    {"nvidia", kM3Modules, R"({"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": null,
       "exclude_modules": [], "quantized_layers": {}, "quant_method": "modelopt"})",
     R"({"producer": {"name": "modelopt", "version": "minimax-m3-mxfp8-nvfp4-mixed"},
       "quant_method": "modelopt",
       "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": null, "exclude_modules": [],
         "quantized_layers": {}, "quant_method": "modelopt"}})",
     fill_m3},
    {"released", kM3VendorModules, R"({"activation_scheme": "dynamic", "fmt": "e4m3",
       "ignored_layers": [], "quant_method": "mxfp8", "scale_fmt": "ue8m0", "weight_block_size": [1, 32]})",
     nullptr, fill_m3_vendor},
};

// Kimi-K3. Names, types, shapes and config: moonshotai/Kimi-K3 as published; its ignore list lacks the
// router, the latent projections and the projections of residuals. RedHatAI/Kimi-K3-NVFP4: the same experts
// in NVFP4, by llm-compressor, which also wrote its list. Tower and projector: vLLM, models/kimi_k3 and
// kimi_k25_vit.py.

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

// Ling-3.0-flash, in FP8 blocks with MXFP4 experts. Names: vLLM, models/bailing_moe_v3.py, whose mapper shows
// that files have "attention"; quantization config: its tests. Types of the experts' codes and scales (U8),
// the size of an expert and the whole list of unquantized modules are inferred.

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

// gpt-oss-20b, as published: stacks of experts with biases, alternating rows of gate and up.

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

const SynthShape kReleasedShapes[] = {
    {.name = "minimax-m3",
     .config = kM3Config,
     .small = kSmallM3,
     .publications = kM3Publications,
     .text = "text_config",
     .finish = set_m3_lists,
     .language_model = "language_model.",
     .f32 = "*.e_score_correction_bias"},
    {.name = "kimi-k3",
     .config = kK3Config,
     .small = kSmallK3,
     .publications = kK3Publications,
     .text = "text_config",
     .finish = set_k3_lists,
     .language_model = "language_model.",
     .f32 = "*_conv1d.weight *.A_log *.dt_bias *.o_norm.weight *.e_score_correction_bias"},
    {.name = "ling-3.0-flash",
     .config = kLingConfig,
     .small = kSmallLing,
     .publications = kLingPublications,
     .f32 = "*_conv1d.weight *.A_log *.dt_bias *.expert_bias"},
    {.name = "gpt-oss",
     .config = kGptOssConfig,
     .small = kSmallGptOss,
     .publications = kGptOssPublications,
     .finish = set_windows},
};

}  // namespace

std::span<const SynthShape> released_shapes() { return kReleasedShapes; }

}  // namespace twofour
