#include "lib/source/dialects/output_dialect.h"
#include "lib/synth/shapes.h"

namespace twofour {
namespace {

constexpr const char* kQwen3NextConfig = R"({
  "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
  "intermediate_size": 5120, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true, "full_attention_interval": 4,
  "head_dim": 256, "num_attention_heads": 16, "num_key_value_heads": 2, "attention_bias": false,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
  "linear_num_value_heads": 32, "linear_value_head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-06,
  "rope_theta": 10000000, "rope_scaling": null, "partial_rotary_factor": 0.25,
  "max_position_embeddings": 262144, "initializer_range": 0.02,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.001,
  "num_hidden_layers": 48, "num_experts": 512, "num_experts_per_tok": 10})";

constexpr const char* kDeepSeekV4Config = R"({
  "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 7168,
  "moe_intermediate_size": 3072, "n_shared_experts": 1, "norm_topk_prob": true, "swiglu_limit": 10.0,
  "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "routed_scaling_factor": 2.5,
  "num_hash_layers": 0, "num_nextn_predict_layers": 0, "rope_theta": 10000,
  "max_position_embeddings": 1048576,
  "num_attention_heads": 128, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
  "q_lora_rank": 1536, "o_lora_rank": 1024, "o_groups": 16, "sliding_window": 128, "hidden_act": "silu",
  "rms_norm_eps": 1e-06, "attention_bias": false, "initializer_range": 0.02, "tie_word_embeddings": false,
  "num_hidden_layers": 61, "n_routed_experts": 384, "num_experts_per_tok": 6})";

constexpr const char* kMixtralConfig = R"({
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
  "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null, "max_position_embeddings": 32768,
  "initializer_range": 0.02, "tie_word_embeddings": false, "router_aux_loss_coef": 0.02,
  "num_hidden_layers": 32, "num_local_experts": 8, "num_experts_per_tok": 2})";

constexpr const char* kQwen3MoeConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "norm_topk_prob": true, "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 4,
  "attention_bias": false, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "rope_scaling": null, "max_position_embeddings": 40960, "initializer_range": 0.02,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.001,
  "num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8})";

constexpr const char* kLlamaConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
  "intermediate_size": 14336,
  "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 8, "attention_bias": false,
  "mlp_bias": false, "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "max_position_embeddings": 131072, "initializer_range": 0.02, "tie_word_embeddings": false,
  "num_hidden_layers": 32})";

constexpr const char* kTinyConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64,
  "intermediate_size": 64, "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "norm_topk_prob": true, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
  "attention_bias": false, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
  "rope_scaling": null, "max_position_embeddings": 512, "initializer_range": 0.02,
  "tie_word_embeddings": true, "router_aux_loss_coef": 0.001,
  "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2})";

constexpr const char* kTinySmall = R"({})";
constexpr const char* kQwen3NextSmall =
    R"({"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 128,
  "shared_expert_intermediate_size": 128, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
  "linear_key_head_dim": 32, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_value_head_dim": 32,
  "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2})";
constexpr const char* kQwen3MoeSmall =
    R"({"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 128, "head_dim": 64,
  "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "num_experts": 8,
  "num_experts_per_tok": 2})";
constexpr const char* kDeepSeekV4Small =
    R"({"hidden_size": 256, "moe_intermediate_size": 128, "num_attention_heads": 8, "head_dim": 64,
  "qk_rope_head_dim": 32, "q_lora_rank": 128, "o_lora_rank": 64, "o_groups": 4, "sliding_window": 32,
  "num_hidden_layers": 2, "n_routed_experts": 8, "num_experts_per_tok": 2})";
constexpr const char* kMixtralSmall =
    R"({"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
  "num_hidden_layers": 2, "num_local_experts": 4})";
constexpr const char* kLlamaSmall =
    R"({"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_attention_heads": 4,
  "num_key_value_heads": 2, "num_hidden_layers": 2})";

/// Fills the configs as a quantizer that uses a single format writes them.
void fill_single_format(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  const OutputDialect& written = output_dialect(listing.model.publication->dialect, true);
  const Scheme scheme{.format = WeightFormat::kNvfp4, .has_input_scale = true};
  const ConfigEntries entries =
      written.config({.unquantized = written.patterns(unquantized_modules(listing.model))}, scheme);
  quantization = entries.quantization_config;
  hf_quant = entries.hf_quant_config;
}

constexpr SynthFormatRule kAwqModules[] = {{"*_proj", &kAwqInt4}};
constexpr SynthFormatRule kGptqModules[] = {{"*_proj", &kGptqInt4}};

template <const SynthFormat& format>
constexpr SynthFormatRule kMostModules[] = {{"*.o_proj", &format},
                                            {"*.gate_proj", &format},
                                            {"*.up_proj", &format},
                                            {"*.down_proj", &format},
                                            {"*.w[123]", &format}};
const SynthPublication kSingleFormat[] = {
    {"modelopt", kMostModules<kModelOptNvfp4>, "{}", nullptr, fill_single_format},
    {"compressed-tensors", kMostModules<kCtNvfp4>, "{}", nullptr, fill_single_format},
};
/// The same publications, and the publications with the configs of AutoAWQ and GPTQModel.
const SynthPublication kLlamaPublications[] = {
    kSingleFormat[0],
    kSingleFormat[1],
    {"awq", kAwqModules, R"({"bits": 4, "group_size": 128, "modules_to_not_convert": null,
      "quant_method": "awq", "version": "gemm", "zero_point": true})",
     nullptr, nullptr, nullptr, nullptr, DType::kF16},
    {"gptq", kGptqModules, R"({"bits": 4, "checkpoint_format": "gptq", "damp_percent": 0.01,
      "desc_act": false, "group_size": 128, "lm_head": false, "meta": {"quantizer": ["gptqmodel:5.0.0"]},
      "pack_dtype": "int32", "quant_method": "gptq", "static_groups": false, "sym": true,
      "true_sequential": true})",
     nullptr, nullptr, nullptr, nullptr, DType::kF16},
};

const SynthShape kSingleFormatShapes[] = {
    {.name = "tiny", .config = kTinyConfig, .small = kTinySmall, .publications = kSingleFormat},
    {.name = "qwen3-next",
     .config = kQwen3NextConfig,
     .small = kQwen3NextSmall,
     .publications = kSingleFormat},
    {.name = "qwen3-moe", .config = kQwen3MoeConfig, .small = kQwen3MoeSmall, .publications = kSingleFormat},
    {.name = "deepseek-v4",
     .config = kDeepSeekV4Config,
     .small = kDeepSeekV4Small,
     .publications = kSingleFormat,
     .f32 = "*.gate.bias"},
    {.name = "mixtral", .config = kMixtralConfig, .small = kMixtralSmall, .publications = kSingleFormat},
    {.name = "llama", .config = kLlamaConfig, .small = kLlamaSmall, .publications = kLlamaPublications},
};

}  // namespace

std::span<const SynthShape> single_format_shapes() { return kSingleFormatShapes; }

}  // namespace twofour
