#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

namespace twofour {
namespace {

// DeepSeek-V4-Pro, as released. Names, types and shapes: the header of V4-Flash's draft, which has the same
// modules in other sizes. Sizes of compressors: the reference inference code; their type is not stated.

bool compresses_by_4(int64_t layer, int64_t) { return layer >= 2 && layer < kDraftLayer && layer % 2 == 0; }

constexpr const char* kReleasedConfig = R"({
  "architectures": ["DeepseekV4ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "compress_ratios": [], "compress_rope_theta": 160000, "expert_dtype": "fp4", "hc_eps": 1e-06, "hc_mult": 4,
  "hc_sinkhorn_iters": 20, "head_dim": 512, "hidden_act": "silu", "hidden_size": 7168, "index_head_dim": 128,
  "index_n_heads": 64, "index_topk": 1024, "initializer_range": 0.02, "max_position_embeddings": 1048576,
  "model_type": "deepseek_v4", "moe_intermediate_size": 3072, "n_routed_experts": 384, "n_shared_experts": 1,
  "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 6, "num_hash_layers": 3,
  "num_hidden_layers": 61, "num_key_value_heads": 1, "num_nextn_predict_layers": 1, "o_groups": 16,
  "o_lora_rank": 1024, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 65536,
    "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sqrtsoftplus", "sliding_window": 128,
  "swiglu_limit": 10.0, "tie_word_embeddings": false, "topk_method": "noaux_tc"})";
constexpr const char* kSmallReleased = R"({
  "hc_mult": 2, "head_dim": 64, "hidden_size": 256, "index_head_dim": 32, "index_n_heads": 4,
  "moe_intermediate_size": 128, "n_routed_experts": 4, "num_attention_heads": 8, "num_experts_per_tok": 2,
  "num_hidden_layers": 5, "o_groups": 4, "o_lora_rank": 64, "q_lora_rank": 128, "qk_rope_head_dim": 32})";
void set_ratios(Json& text, int64_t layers) {
  Json ratios = Json::array();
  for (int64_t i = 0; i < layers; ++i) ratios.push_back(compresses_by_4(i, layers) ? 4 : 128);
  for (int64_t i = 0; i < text["num_nextn_predict_layers"].get<int64_t>(); ++i) ratios.push_back(0);
  text["compress_ratios"] = ratios;
}
constexpr SynthFormatRule kReleasedModules[] = {
    {"*.ffn.experts.*", &kDeepSeekV4Mxfp4}, {"*.ffn.shared_experts.*", &kDeepSeekV4Fp8},
    {"*.attn.w*", &kDeepSeekV4Fp8},         {"*.attn.indexer.wq_b", &kDeepSeekV4Fp8},
    {"mtp.*.[eh]_proj", &kDeepSeekV4Fp8},
};
/// The Base models have FP8 experts, and all scales are F32 (NVIDIA-NeMo/Automodel#2034; vLLM,
/// models/deepseek_v4/quant_config.py). Powers of two as scales are inferred from scale_fmt of the other
/// models.
constexpr SynthFormatRule kBaseModules[] = {
    {"*.ffn.experts.*", &kDeepSeekV4BaseFp8}, {"*.ffn.shared_experts.*", &kDeepSeekV4BaseFp8},
    {"*.attn.w*", &kDeepSeekV4BaseFp8},       {"*.attn.indexer.wq_b", &kDeepSeekV4BaseFp8},
    {"mtp.*.[eh]_proj", &kDeepSeekV4BaseFp8},
};
const SynthPublication kReleasedPublications[] = {
    {"released", kReleasedModules, R"({"activation_scheme": "dynamic", "fmt": "e4m3",
       "quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]})",
     nullptr, nullptr},
    {"base", kBaseModules, R"({"activation_scheme": "dynamic", "fmt": "e4m3",
       "quant_method": "fp8", "weight_block_size": [128, 128]})",
     nullptr, nullptr, nullptr, nullptr, DType::kBF16, R"({"expert_dtype": "fp8"})"},
};

constexpr SynthOption kReleasedOptions[] = {{"*.attn.indexer.*", compresses_by_4}};

// Models with multi-head latent attention: DeepSeek-V3 and models derived from it.

bool is_dense_of_three(int64_t layer, int64_t) { return layer < 3; }
/// True for the layers of GLM-5.2 that have a sparse-attention indexer. The draft is one of them.
bool has_index(int64_t layer, int64_t) { return layer < 3 || layer % 4 == 2 || layer == kDraftLayer; }
bool is_draft(int64_t layer, int64_t) { return layer == kDraftLayer; }
constexpr const char* kCorrection = "*.e_score_correction_bias";

constexpr const char* kSmallLatent = R"({
  "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128, "num_attention_heads": 4,
  "num_key_value_heads": 4, "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 32,
  "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 4, "num_experts_per_tok": 2})";

// DeepSeek-V3, as published.
constexpr const char* kDeepSeekV3Config = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "ep_size": 1,
  "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
  "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
  "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
  "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
  "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128})";
constexpr const char* kSmallDeepSeekV3 = R"({"n_group": 2, "topk_group": 1, "num_hidden_layers": 5})";
constexpr SynthFormatRule kDeepSeekV3Modules[] = {
    {"*.mlp.gate", nullptr},
    {"*.self_attn.*", &kDeepSeekFp8},
    {"*.mlp.*", &kDeepSeekFp8},
};
const SynthPublication kDeepSeekV3Publications[] = {
    {"released", kDeepSeekV3Modules, R"({"activation_scheme": "dynamic", "fmt": "e4m3",
       "quant_method": "fp8", "weight_block_size": [128, 128]})",
     nullptr, nullptr},
};

// Kimi-K2-Thinking: DeepSeek-V3's modules. Kimi-K2.5 repeats its quantization entry.
constexpr const char* kKimiK2Config = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "first_k_dense_replace": 1,
  "max_position_embeddings": 262144, "n_group": 1, "topk_group": 1, "n_routed_experts": 384,
  "num_attention_heads": 64, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
  "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 50000.0, "routed_scaling_factor": 2.827})";
constexpr const char* kSmallKimiK2 = R"({"num_hidden_layers": 3})";
constexpr SynthFormatRule kKimiK2Modules[] = {{"*.mlp.experts.*", &kCtInt4G32}};
const SynthPublication kKimiK2Publications[] = {
    {"released", kKimiK2Modules, R"({
       "config_groups": {"group_0": {"input_activations": null, "output_activations": null,
         "targets": ["Linear"],
         "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": 32,
           "num_bits": 4, "observer": "minmax", "observer_kwargs": {}, "strategy": "group",
           "symmetric": true, "type": "int"}}},
       "format": "pack-quantized",
       "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
         "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
       "kv_cache_scheme": null, "quant_method": "compressed-tensors", "quantization_status": "compressed"})",
     nullptr, nullptr},
};

// GLM-5.2 and 5.3, which have the same modules. Configs: nvidia/GLM-5.2-NVFP4 as published. It does not list
// routers, since they are not linears to ModelOpt.
constexpr const char* kGlmConfig = R"({
  "architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "ep_size": 1,
  "first_k_dense_replace": 3, "head_dim": 192, "hidden_act": "silu", "hidden_size": 6144,
  "index_head_dim": 128, "index_n_heads": 32, "index_share_for_mtp_iteration": true,
  "index_skip_topk_offset": 3, "index_topk": 2048, "index_topk_freq": 4, "index_topk_pattern": null,
  "indexer_rope_interleave": true, "indexer_types": [], "initializer_range": 0.02,
  "intermediate_size": 12288, "kv_lora_rank": 512, "max_position_embeddings": 1048576, "mlp_bias": false,
  "mlp_layer_types": [], "model_type": "glm_moe_dsa", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
  "n_group": 1, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 78, "num_key_value_heads": 64,
  "num_nextn_predict_layers": 1, "pretraining_tp": 1, "q_lora_rank": 2048, "qk_head_dim": 256,
  "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_interleave": true,
  "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}, "routed_scaling_factor": 2.5,
  "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc",
  "v_head_dim": 256})";
constexpr const char* kSmallGlm = R"({"head_dim": 32, "qk_head_dim": 64, "index_head_dim": 32,
  "index_n_heads": 4, "num_hidden_layers": 5})";
void set_glm_lists(Json& text, int64_t layers) {
  Json indexers = Json::array(), mlps = Json::array();
  for (int64_t i = 0; i < layers; ++i) {
    indexers.push_back(has_index(i, layers) ? "full" : "shared");
    mlps.push_back(is_dense_of_three(i, layers) ? "dense" : "sparse");
  }
  text["indexer_types"] = indexers;
  text["mlp_layer_types"] = mlps;
}

constexpr SynthFormatRule kGlmNvfp4Modules[] = {
    {"*.mlp.experts.*", &kModelOptNvfp4, [](int64_t layer, int64_t) { return layer != kDraftLayer; }},
};
void fill_glm(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  const int64_t layers = listing.model.layers;
  std::vector<std::string> names = {"lm_head", "model.embed_tokens"};
  for (int64_t i = 0; i < layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i);
    if (!is_dense_of_three(i, layers)) {
      names.push_back(prefix + ".mlp.shared_experts*");
      names.push_back(prefix + ".self_attn*");
    } else {
      names.push_back(prefix + (i == 0 ? "*" : ".*"));
    }
  }
  names.push_back("model.layers." + std::to_string(layers) + "*");
  append_names(quantization["ignore"], names);
  append_names(hf_quant["quantization"]["exclude_modules"], names);
}

// NVFP4 experts, FP8_PB attention and shared experts (sglang#31855, vllm#50617). Its config is not public.
// ModelOpt writes this one for such modules. Dense layers and the draft are assumed to be BF16.
constexpr SynthFormatRule kGlmMixedModules[] = {
    {"*", nullptr, is_draft},
    {"*.mlp.experts.*", &kModelOptNvfp4},
    {"*.mlp.shared_experts.*", &kModelOptFp8Pb},
    {"*.self_attn.indexer.*", nullptr},
    {"*.self_attn.*", &kModelOptFp8Pb},
};

// amd/GLM-5-NVFP4 and 5.1, by Quark 0.12: experts and shared experts. Patterns: its page on the hub; the
// draft is BF16 with no pattern for it (vllm#49187). The form of the config: vLLM, quantization/quark;
// inferred.
constexpr SynthFormatRule kGlmQuarkModules[] = {
    {"*", nullptr, is_draft},
    {"*.mlp.experts.*", &kQuarkNvfp4},
    {"*.mlp.shared_experts.*", &kQuarkNvfp4},
};
const SynthPublication kGlm52Publications[] = {
    {"nvidia", kGlmNvfp4Modules, R"({
       "config_groups": {"group_0": {
         "input_activations": {"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16},
         "weights": {"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16},
         "targets": ["Linear"]}},
       "ignore": [], "quant_algo": "NVFP4",
       "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
       "producer": {"name": "modelopt", "version": "0.46.0.dev65+g977d34dc3"}, "quant_method": "modelopt"})",
     R"({"producer": {"name": "modelopt", "version": "0.46.0.dev65+g977d34dc3"},
       "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
         "exclude_modules": []}})",
     fill_glm},
    {"nvidia-mixed", kGlmMixedModules, R"({
       "config_groups": {}, "quantized_layers": {}, "ignore": [], "quant_algo": "MIXED_PRECISION",
       "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
       "producer": {"name": "modelopt", "version": "0.46.0"}, "quant_method": "modelopt"})",
     R"({"producer": {"name": "modelopt", "version": "0.46.0"},
       "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8",
         "quantized_layers": {}}})",
     fill_modelopt_linears},
    {"quark", kGlmQuarkModules, R"({
       "algo_config": null,
       "exclude": ["*self_attn*", "*mlp.gate", "*lm_head", "*mlp.gate_proj", "*mlp.up_proj",
         "*mlp.down_proj"],
       "export": {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder",
         "weight_format": "real_quantized", "weight_merge_groups": null},
       "global_quant_config": {
         "bias": null, "output_tensors": null, "target_device": null,
         "input_tensors": [
           {"ch_axis": -1, "dtype": "fp4", "group_size": 16, "is_dynamic": true, "qscheme": "per_group",
            "scale_type": "float", "symmetric": true},
           {"dtype": "fp8_e4m3", "is_dynamic": false, "is_scale_quant": true, "qscheme": "per_tensor"}],
         "weight": [
           {"ch_axis": -1, "dtype": "fp4", "group_size": 16, "is_dynamic": false, "qscheme": "per_group",
            "scale_type": "float", "symmetric": true},
           {"dtype": "fp8_e4m3", "is_dynamic": false, "is_scale_quant": true, "qscheme": "per_tensor"}]},
       "kv_cache_quant_config": {}, "layer_quant_config": {}, "layer_type_quant_config": {},
       "quant_method": "quark", "quant_mode": "eager_mode", "softmax_quant_spec": null,
       "version": "0.12"})",
     nullptr, nullptr},
};

// gpustack/GLM-5.3-W4A8: INT4 experts with dynamic FP8 activations, FP8 blocks elsewhere (sglang#37207,
// lightseekorg/tokenspeed#1321). Targets and the ignore list are inferred.
constexpr SynthFormatRule kGlm53Modules[] = {
    {"*.mlp.experts.*", &kCtInt4G128}, {"*.mlp.gate", nullptr},   {"*.weights_proj", nullptr},
    {"*.self_attn.*", &kCtFp8Block},   {"*.mlp.*", &kCtFp8Block},
};
const SynthPublication kGlm53Publications[] = {
    {"w4a8", kGlm53Modules, R"({
       "config_groups": {
         "group_0": {"format": "pack-quantized",
           "input_activations": {"actorder": null, "block_structure": null, "dynamic": true,
             "group_size": null, "num_bits": 8, "observer": null, "observer_kwargs": {}, "strategy": "token",
             "symmetric": true, "type": "float"},
           "output_activations": null,
           "targets": ["re:.*mlp\\.experts\\.[0-9]+\\.(gate|up|down)_proj$"],
           "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": 128,
             "num_bits": 4, "observer": "minmax", "observer_kwargs": {}, "strategy": "group",
             "symmetric": true, "type": "int"}},
         "group_1": {"format": "float-quantized",
           "input_activations": {"actorder": null, "block_structure": null, "dynamic": true,
             "group_size": 128, "num_bits": 8, "observer": null, "observer_kwargs": {}, "strategy": "group",
             "symmetric": true, "type": "float"},
           "output_activations": null,
           "targets": ["re:.*self_attn\\..*", "re:.*mlp\\.(shared_experts\\.)?(gate|up|down)_proj$"],
           "weights": {"actorder": null, "block_structure": [128, 128], "dynamic": false,
             "group_size": null, "num_bits": 8, "observer": "minmax", "observer_kwargs": {},
             "strategy": "block", "symmetric": true, "type": "float"}}},
       "format": "mixed-precision", "global_compression_ratio": null, "ignore": [], "kv_cache_scheme": null,
       "quant_method": "compressed-tensors", "quantization_status": "compressed"})",
     nullptr, fill_ignored_names},
};

/// DeepSeek-V3's draft repeats embedding and head, GLM's does not. This gives the published counts of
/// tensors, 91,991 and 232,385.
constexpr SynthOption kDeepSeekV3Options[] = {{"*.embed_tokens.weight"}, {"*.shared_head.head.weight"}};
constexpr SynthOption kGlmOptions[] = {{"*.indexer.*", has_index}};

const SynthShape kLatentShapes[] = {
    {.name = "deepseek-v4",
     .config = kReleasedConfig,
     .small = kSmallReleased,
     .publications = kReleasedPublications,
     .finish = set_ratios,
     .f32 = "*hc_* *.attn_sink *.gate.bias *.ape",
     .options = kReleasedOptions},
    {.name = "deepseek-v3",
     .config = kDeepSeekV3Config,
     .small = {kSmallLatent, kSmallDeepSeekV3},
     .publications = kDeepSeekV3Publications,
     .f32 = kCorrection,
     .options = kDeepSeekV3Options},
    {.name = "kimi-k2-thinking",
     .config = {kDeepSeekV3Config, kKimiK2Config},
     .small = {kSmallLatent, kSmallKimiK2},
     .publications = kKimiK2Publications,
     .f32 = kCorrection},
    {.name = "glm-5.2",
     .config = kGlmConfig,
     .small = {kSmallLatent, kSmallGlm},
     .publications = kGlm52Publications,
     .finish = set_glm_lists,
     .f32 = kCorrection,
     .options = kGlmOptions},
    {.name = "glm-5.3",
     .config = kGlmConfig,
     .small = {kSmallLatent, kSmallGlm},
     .publications = kGlm53Publications,
     .finish = set_glm_lists,
     .f32 = kCorrection,
     .options = kGlmOptions},
};

}  // namespace

std::span<const SynthShape> latent_attention_shapes() { return kLatentShapes; }

}  // namespace twofour
