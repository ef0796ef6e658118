#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

namespace twofour {
namespace {

// Shared parts of checkpoints of Qwen3.5 and of models derived from it.

/// True for a layer with full attention, which is every fourth layer. The others have linear attention.
bool is_full(int64_t layer, int64_t) { return layer % 4 == 3; }

/// Sets layer_types of config.json.
void set_layer_types(Json& text, int64_t layers) {
  Json types = Json::array();
  for (int64_t i = 0; i < layers; ++i)
    types.push_back(is_full(i, layers) ? "full_attention" : "linear_attention");
  text["layer_types"] = types;
}

constexpr const char* kQwenLanguageModel = "model.language_model.";
constexpr const char* kQwenF32 = "*.A_log *.linear_attn.norm.weight";
constexpr const char* kQwenVisionConfig = R"({"vision_config": {
  "deepstack_visual_indexes": [], "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152,
  "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4304, "num_heads": 16,
  "num_position_embeddings": 2304, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
  "image_token_id": 248056, "video_token_id": 248057, "vision_end_token_id": 248054,
  "vision_start_token_id": 248053, "tie_word_embeddings": false})";
/// The changes to the config for --small.
constexpr const char* kSmallQwen = R"({
  "text_config": {"hidden_size": 256, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "linear_key_head_dim": 32, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
    "linear_value_head_dim": 32},
  "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
    "num_position_embeddings": 16, "patch_size": 4, "out_hidden_size": 256}})";
constexpr const char* kSmallQwenExperts = R"({"text_config": {
  "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128, "num_experts": 4,
  "num_experts_per_tok": 2, "num_hidden_layers": 4}})";

// Qwen3.8-Flash-Next. Config of the model: transformers, models/qwen4_exp, and quotations in its issues.
// Known parts of nvidia/Qwen3.8-Flash-Next-NVFP4 are the keys of quantized_layers and, among its 292 ignore
// patterns, lm_head, embed_tokens, hyper_connection_mixer* and the patterns of attn_hyper_connection
// (sglang#38121, vllm#55498, FreeToken#394). Six per layer and four make 292, so the rest is inferred.
// config.json calls the format of the draft's experts FP8_PB_WO, hf_quant_config.json FP8_BLOCK_SCALES.

constexpr const char* kFlashNextConfig = R"({
  "architectures": ["Qwen4ExpForConditionalGeneration"], "dtype": "bfloat16",
  "model_type": "qwen4_exp",
  "text_config": {
    "attention_bias": false, "attention_dropout": 0.0, "full_attention_interval": 4, "hc_count": 4,
    "hc_lowrank": 320, "head_dim": 256, "heads_per_ngram": 8, "hidden_act": "silu", "hidden_size": 2560,
    "indexer_budget": 8192, "indexer_compress_ratio": 4, "indexer_head_dim": 128, "indexer_kv_heads": 1,
    "indexer_n_heads": 16, "initializer_range": 0.02, "layer_types": [], "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
    "linear_value_head_dim": 128, "make_ngram_vocab_size_divisible_by": 128, "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144, "model_type": "qwen4_exp_text", "moe_intermediate_size": 640,
    "mtp_num_hidden_layers": 1, "ngram_size": 3, "ngram_vocab_size_base": 20000000, "norm_topk_prob": true,
    "num_attention_heads": 24, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
    "num_key_value_heads": 2, "output_gate_type": "sigmoid", "partial_rotary_factor": 0.25,
    "ple_conv_kernel_size": 4, "ple_embed_dim": 2560, "ple_layer_ids": [2], "rms_norm_eps": 1e-06,
    "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
      "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 640, "split_ngram_parts": 128,
    "tie_word_embeddings": false},
  "vision_config": {"model_type": "qwen4_exp", "out_hidden_size": 2560}})";
constexpr const char* kFlashNextSmall = R"({"text_config": {
  "hc_lowrank": 16, "heads_per_ngram": 2, "indexer_head_dim": 32, "indexer_n_heads": 2,
  "ngram_vocab_size_base": 512, "ple_embed_dim": 128, "split_ngram_parts": 8}})";

constexpr SynthFormatRule kFlashNextModules[] = {
    {"mtp.layers.*.mlp.experts.*", &kModelOptFp8Mtp},
    {"*.mlp.experts.*", &kModelOptNvfp4},
    {"*.ngram_embedding.shard_*", &kModelOptFp8Table},
};
void fill_flash_next(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  fill_modelopt_containers(listing, quantization, hf_quant);
  for (auto& [key, entry] : quantization["quantized_layers"].items()) {
    if (entry["quant_algo"] == Json("FP8_BLOCK_SCALES")) entry["quant_algo"] = "FP8_PB_WO";
  }
  std::vector<std::string> ignored = {"lm_head", "model.language_model.embed_tokens",
                                      "model.language_model.hyper_connection_mixer*", "model.visual*"};
  for (int64_t layer = 0; layer < listing.model.layers; ++layer) {
    const std::string prefix = "model.language_model.layers." + std::to_string(layer) + ".";
    const char* attention = is_full(layer, 0) ? "self_attn*" : "linear_attn*";
    for (const char* part : {"attn_hyper_connection*", attention, "mlp.gate", "mlp.shared_expert.*",
                             "mlp.shared_expert_gate", "mlp_hyper_connection*"})
      ignored.push_back(prefix + part);
  }
  append_names(quantization["ignore"], ignored);
  append_names(hf_quant["quantization"]["exclude_modules"], ignored);
}
const SynthPublication kFlashNextPublications[] = {
    {"nvidia", kFlashNextModules, R"({
       "config_groups": {}, "quantized_layers": {}, "ignore": [], "quant_algo": "MIXED_PRECISION",
       "producer": {"name": "modelopt", "version": "0.46.0"}, "quant_method": "modelopt"})",
     R"({"producer": {"name": "modelopt", "version": "0.46.0"},
       "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": null, "quantized_layers": {},
         "exclude_modules": []}})",
     fill_flash_next},
};

// Qwen3.5, dense and with experts. Names and sizes: transformers, models/qwen3_5_moe.

/// True for the layers whose MLP is FP8 in the NVFP4 publication of Qwen3.8-27B, which are the last eighth.
bool is_late(int64_t layer, int64_t layers) { return layer >= layers - layers / 8; }

// Qwen3.6-35B-A3B. Config: nvidia/Qwen3.6-35B-A3B-NVFP4, as published. The two files name two versions of
// ModelOpt, config.json does not mention the KV cache, and its groups claim activations of 4 bits.
constexpr const char* kQwen36Config = R"({
  "architectures": ["Qwen3_5MoeForConditionalGeneration"], "dtype": "bfloat16",
  "model_type": "qwen3_5_moe",
  "text_config": {
    "attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true, "full_attention_interval": 4,
    "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "layer_types": [],
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144, "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 512,
    "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false, "num_attention_heads": 16,
    "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2,
    "output_router_logits": false, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
    "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
      "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512, "tie_word_embeddings": false},
  "vision_config": {"model_type": "qwen3_5_moe_vision", "out_hidden_size": 2048}})";

constexpr SynthFormatRule kQwen36Modules[] = {
    {"mtp.*", nullptr},
    {"*.mlp.experts.*", &kModelOptNvfp4WeightOnly},
    {"*.mlp.shared_expert.*", &kModelOptNvfp4WeightOnly},
    {"lm_head", &kModelOptNvfp4WeightOnly},
    {"*.linear_attn.in_proj_qkv", &kModelOptFp8},
    {"*.linear_attn.in_proj_z", &kModelOptFp8},
    {"*.linear_attn.out_proj", &kModelOptFp8},
    {"*.self_attn.?_proj", &kModelOptFp8},
};
const SynthPublication kQwen36Publications[] = {
    {"nvidia", kQwen36Modules, R"({
       "config_groups": {}, "quantized_layers": {}, "ignore": ["mtp.layers.0*", "mtp*"],
       "quant_algo": "MIXED_PRECISION", "producer": {"name": "modelopt", "version": "0.37.0"},
       "quant_method": "modelopt"})",
     R"({"producer": {"name": "modelopt", "version": "0.44.0"},
       "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": {},
         "exclude_modules": ["mtp.layers.0*", "mtp*"]}})",
     fill_modelopt_containers, nullptr, "model.language_model.layers.*.self_attn.[kv]_proj"},
};

// Qwen3.8-2.4T-A95B: 92 layers of 8192, 512 experts of which 10 are chosen; only text. The expert's size is
// inferred from the count of weights. The checkpoint is the result of llm-compressor's
// examples/reap_expert_pruning/qwen38_example.py: a quarter of the experts dropped, FP8_BLOCK attention,
// NVFP4 MLPs, the draft added unchanged.
constexpr const char* kQwen38Config = R"({
  "architectures": ["Qwen3_5MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attn_output_gate": true, "dtype": "bfloat16", "full_attention_interval": 4, "head_dim": 256,
  "hidden_act": "silu", "hidden_size": 8192, "initializer_range": 0.02, "layer_types": [],
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 32,
  "linear_num_value_heads": 128, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
  "max_position_embeddings": 262144, "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 2048,
  "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false, "num_attention_heads": 64,
  "num_experts": 384, "num_experts_per_tok": 10, "num_hidden_layers": 92, "num_key_value_heads": 4,
  "output_router_logits": false, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
  "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
  "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 2048, "tie_word_embeddings": false})";
constexpr const char* kQwen38Small = R"({
  "hidden_size": 256, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
  "linear_key_head_dim": 32, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
  "linear_value_head_dim": 32, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128,
  "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 4})";

constexpr SynthFormatRule kQwen38Modules[] = {
    {"mtp.*", nullptr},
    {"*.linear_attn.conv1d", nullptr},
    {"*.mlp.gate", nullptr},
    {"*.shared_expert_gate", nullptr},
    {"*.self_attn.*", &kCtFp8Block},
    {"*.linear_attn.*", &kCtFp8Block},
    {"*.mlp.*", &kCtNvfp4},
};
void fill_qwen38(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  fill_nvfp4_scheme(quantization["config_groups"]["group_1"]);
  fill_ignored_names(listing, quantization, hf_quant);
}
const SynthPublication kQwen38Publications[] = {
    {"llm-compressor", kQwen38Modules, R"({
       "config_groups": {
         "group_0": {"format": "float-quantized",
           "input_activations": {"actorder": null, "block_structure": null, "dynamic": true,
             "group_size": 128, "num_bits": 8, "observer": null, "observer_kwargs": {}, "scale_dtype": null,
             "strategy": "group", "symmetric": true, "type": "float", "zp_dtype": null},
           "output_activations": null,
           "targets": ["re:.*self_attn\\..*",
             "re:.*linear_attn.(in_proj_qkv|in_proj_z|in_proj_b|in_proj_a|out_proj)$"],
           "weights": {"actorder": null, "block_structure": [128, 128], "dynamic": false, "group_size": null,
             "num_bits": 8, "observer": "memoryless_minmax", "observer_kwargs": {}, "scale_dtype": null,
             "strategy": "block", "symmetric": true, "type": "float", "zp_dtype": null}},
         "group_1": {"targets": ["re:.*mlp\\..*"]}},
       "format": "mixed-precision", "global_compression_ratio": null, "ignore": ["re:^mtp.*"],
       "kv_cache_scheme": null, "quant_method": "compressed-tensors", "quantization_status": "compressed",
       "sparsity_config": {}, "transform_config": {}, "version": "0.17.0"})",
     nullptr, fill_qwen38},
};

// Qwen3.8-27B, dense. unsloth/Qwen3.8-27B-NVFP4: group_0 is FP8 by row (attention, linear attention, lm_head
// and the MLPs of layers 56 to 63), group_1 NVFP4 with a regex that matches those MLPs as well, so that the
// order decides (charlie12345/ROCmFPX#79, TensorRT-LLM#17725). The texts of the lists are inferred.
constexpr const char* kQwen27bConfig = R"({
  "architectures": ["Qwen3_5ForConditionalGeneration"], "dtype": "bfloat16",
  "model_type": "qwen3_5",
  "text_config": {
    "attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true, "full_attention_interval": 4,
    "head_dim": 256, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
    "intermediate_size": 17408, "layer_types": [], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "mlp_only_layers": [],
    "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false,
    "num_attention_heads": 24, "num_hidden_layers": 64, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
    "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
      "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"}},
  "vision_config": {"model_type": "qwen3_5", "out_hidden_size": 5120}})";
constexpr const char* kQwen27bSmall =
    R"({"text_config": {"intermediate_size": 512, "num_hidden_layers": 8}})";

constexpr SynthFormatRule kQwen27bModules[] = {
    {"mtp.*", nullptr},
    {"model.visual.*", nullptr},
    {"*.mlp.*", &kCtFp8Row, is_late},
    {"*.mlp.*", &kCtNvfp4},
    {"*.self_attn.*", &kCtFp8Row},
    {"*.linear_attn.in_proj_[qz]*", &kCtFp8Row},
    {"*.linear_attn.out_proj", &kCtFp8Row},
    {"lm_head", &kCtFp8Row},
};
void fill_qwen27b(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  fill_nvfp4_scheme(quantization["config_groups"]["group_1"]);
  Json& targets = quantization["config_groups"]["group_0"]["targets"];
  for (int64_t layer = 0; layer < listing.model.layers; ++layer) {
    if (!is_late(layer, listing.model.layers)) continue;
    targets.push_back("re:.*layers\\." + std::to_string(layer) + "\\.mlp\\.(gate|up|down)_proj$");
  }
  fill_ignored_names(listing, quantization, hf_quant);
}
const SynthPublication kQwen27bPublications[] = {
    {"unsloth", kQwen27bModules, R"({
       "config_groups": {
         "group_0": {"format": "float-quantized",
           "input_activations": {"actorder": null, "block_structure": null, "dynamic": true,
             "group_size": null, "num_bits": 8, "observer": null, "observer_kwargs": {}, "scale_dtype": null,
             "strategy": "token", "symmetric": true, "type": "float", "zp_dtype": null},
           "output_activations": null,
           "targets": ["re:.*self_attn\\.(q|k|v|o)_proj$",
             "re:.*linear_attn\\.(in_proj_qkv|in_proj_z|out_proj)$", "re:.*lm_head$"],
           "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": null,
             "num_bits": 8, "observer": "memoryless_minmax", "observer_kwargs": {}, "scale_dtype": null,
             "strategy": "channel", "symmetric": true, "type": "float", "zp_dtype": null}},
         "group_1": {"targets": ["re:.*mlp\\.(gate|up|down)_proj$"]}},
       "format": "mixed-precision", "global_compression_ratio": null, "ignore": ["re:^mtp.*"],
       "kv_cache_scheme": null, "quant_method": "compressed-tensors", "quantization_status": "compressed",
       "sparsity_config": {}, "transform_config": {}, "version": "0.17.0"})",
     nullptr, fill_qwen27b},
};

const SynthShape kQwenShapes[] = {
    {.name = "qwen3.8-flash-next",
     .config = {kQwenVisionConfig, kFlashNextConfig},
     .small = {kSmallQwen, kSmallQwenExperts, kFlashNextSmall},
     .publications = kFlashNextPublications,
     .text = "text_config",
     .finish = set_layer_types,
     .least_layers = 2,
     .language_model = kQwenLanguageModel,
     .f32 = kQwenF32},
    {.name = "qwen3.6-35b-a3b",
     .config = {kQwenVisionConfig, kQwen36Config},
     .small = {kSmallQwen, kSmallQwenExperts},
     .publications = kQwen36Publications,
     .text = "text_config",
     .finish = set_layer_types,
     .language_model = kQwenLanguageModel,
     .f32 = kQwenF32},
    {.name = "qwen3.8-2.4t-a95b",
     .config = kQwen38Config,
     .small = kQwen38Small,
     .publications = kQwen38Publications,
     .finish = set_layer_types,
     .f32 = kQwenF32},
    {.name = "qwen3.8-27b",
     .config = {kQwenVisionConfig, kQwen27bConfig},
     .small = {kSmallQwen, kQwen27bSmall},
     .publications = kQwen27bPublications,
     .text = "text_config",
     .finish = set_layer_types,
     .language_model = kQwenLanguageModel,
     .f32 = kQwenF32},
};

}  // namespace

std::span<const SynthShape> qwen_shapes() { return kQwenShapes; }

}  // namespace twofour
