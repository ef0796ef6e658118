#include "lib/synth/published_config.h"
#include "lib/synth/qwen_configs.h"
#include "lib/synth/shapes.h"

// Qwen3.8-Flash-Next. Config of the model: transformers, models/qwen4_exp, and what its issues quote. Of
// nvidia/Qwen3.8-Flash-Next-NVFP4 are known the keys of quantized_layers and, of its 292 patterns to ignore,
// lm_head, embed_tokens, hyper_connection_mixer* and those of attn_hyper_connection (sglang#38121,
// vllm#55498, FreeToken#394). Six a layer and four make 292, so the rest is inferred. config.json calls the
// format of the draft's experts FP8_PB_WO, hf_quant_config.json FP8_BLOCK_SCALES.

namespace twofour {
namespace {

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
    const char* attention = qwen::is_full(layer, 0) ? "self_attn*" : "linear_attn*";
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

const SynthShape kFlashNextShapes[] = {
    {.name = "qwen3.8-flash-next",
     .config = {qwen::kVisionConfig, kFlashNextConfig},
     .small = {qwen::kSmallLanguage, qwen::kSmallExperts, kFlashNextSmall},
     .publications = kFlashNextPublications,
     .text = "text_config",
     .finish = qwen::set_layer_types,
     .least_layers = 2,
     .language_model = qwen::kLanguageModel,
     .f32 = qwen::kF32},
};

}  // namespace

std::span<const SynthShape> qwen_flash_next_shapes() { return kFlashNextShapes; }

}  // namespace twofour
