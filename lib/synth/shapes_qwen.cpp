#include "lib/synth/published_config.h"
#include "lib/synth/qwen_configs.h"
#include "lib/synth/shapes.h"

// Qwen3.5, dense and of experts. Names and sizes: transformers, models/qwen3_5_moe.

namespace twofour {
namespace {

/// Of Qwen3.8-27B in NVFP4, the layers whose MLP is FP8: the last eighth.
bool is_late(int64_t layer, int64_t layers) { return layer >= layers - layers / 8; }

// Qwen3.6-35B-A3B. Config: nvidia/Qwen3.6-35B-A3B-NVFP4, as published: the two files name two versions of
// ModelOpt, config.json is silent on the KV cache, and its groups claim activations of 4 bits.
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

// Qwen3.8-2.4T-A95B: 92 layers of 8192, 512 experts of which 10 are picked; text alone. The expert's size is
// inferred from the count of weights. As llm-compressor's examples/reap_expert_pruning/qwen38_example.py
// leaves it: a quarter of the experts dropped, FP8_BLOCK attention, NVFP4 MLPs, the draft added as it was.
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
// and the MLPs of layers 56 to 63), group_1 NVFP4 with a regex that takes those MLPs as well, so that the
// order decides (charlie12345/ROCmFPX#79, TensorRT-LLM#17725). The words of the lists are inferred.
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
    {.name = "qwen3.6-35b-a3b",
     .config = {qwen::kVisionConfig, kQwen36Config},
     .small = {qwen::kSmallLanguage, qwen::kSmallExperts},
     .publications = kQwen36Publications,
     .text = "text_config",
     .finish = qwen::set_layer_types,
     .language_model = qwen::kLanguageModel,
     .f32 = qwen::kF32},
    {.name = "qwen3.8-2.4t-a95b",
     .config = kQwen38Config,
     .small = kQwen38Small,
     .publications = kQwen38Publications,
     .finish = qwen::set_layer_types,
     .f32 = qwen::kF32},
    {.name = "qwen3.8-27b",
     .config = {qwen::kVisionConfig, kQwen27bConfig},
     .small = {qwen::kSmallLanguage, kQwen27bSmall},
     .publications = kQwen27bPublications,
     .text = "text_config",
     .finish = qwen::set_layer_types,
     .language_model = qwen::kLanguageModel,
     .f32 = qwen::kF32},
};

}  // namespace

std::span<const SynthShape> qwen_shapes() { return kQwenShapes; }

}  // namespace twofour
