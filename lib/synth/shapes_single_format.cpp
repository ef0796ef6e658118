#include "lib/dialects/output_dialect.h"
#include "lib/synth/shapes.h"

namespace twofour {
namespace {

using enum SynthRole;
using enum SynthScope;

/// Of hybrid models every fourth layer has full attention, beginning with layer 3.
bool full_attention(int64_t layer, int64_t) { return layer % 4 == 3; }
bool linear_attention(int64_t layer, int64_t) { return layer % 4 != 3; }

constexpr SynthRule kQwen3NextRules[] = {
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "linear_attn.in_proj_qkvz",
     "2*linear_num_key_heads*linear_key_head_dim+2*linear_num_value_heads*linear_value_head_dim",
     "hidden_size", kLinear, linear_attention},
    {kLayer, "linear_attn.in_proj_ba", "2*linear_num_value_heads", "hidden_size", kLinear, linear_attention},
    {kLayer, "linear_attn.conv1d",
     "2*linear_num_key_heads*linear_key_head_dim+linear_num_value_heads*linear_value_head_dim",
     "linear_conv_kernel_dim", kConvolution, linear_attention},
    {kLayer, "linear_attn.A_log", "linear_num_value_heads", "0", kVector, linear_attention},
    {kLayer, "linear_attn.dt_bias", "linear_num_value_heads", "0", kVector, linear_attention},
    {kLayer, "linear_attn.norm.weight", "linear_value_head_dim", "0", kVector, linear_attention},
    {kLayer, "linear_attn.out_proj", "hidden_size", "linear_num_value_heads*linear_value_head_dim", kLinear,
     linear_attention},
    {kLayer, "self_attn.q_proj", "2*num_attention_heads*head_dim", "hidden_size", kLinear,
     full_attention},  // 16 heads of 256 and their gates
    {kLayer, "self_attn.k_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear, full_attention},
    {kLayer, "self_attn.v_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear, full_attention},
    {kLayer, "self_attn.q_norm.weight", "head_dim", "0", kVector, full_attention},
    {kLayer, "self_attn.k_norm.weight", "head_dim", "0", kVector, full_attention},
    {kLayer, "self_attn.o_proj", "hidden_size", "num_attention_heads*head_dim", kQuantized, full_attention},
    {kLayer, "mlp.gate", "num_experts", "hidden_size", kLinear},
    {kLayer, "mlp.shared_expert_gate", "1", "hidden_size", kLinear},
    {kLayer, "mlp.shared_expert.gate_proj", "shared_expert_intermediate_size", "hidden_size", kGate},
    {kLayer, "mlp.shared_expert.up_proj", "shared_expert_intermediate_size", "hidden_size", kUp},
    {kLayer, "mlp.shared_expert.down_proj", "hidden_size", "shared_expert_intermediate_size", kQuantized},
    {kExpert, "gate_proj", "moe_intermediate_size", "hidden_size", kGate},
    {kExpert, "up_proj", "moe_intermediate_size", "hidden_size", kUp},
    {kExpert, "down_proj", "hidden_size", "moe_intermediate_size", kQuantized},
};
constexpr const char* kQwen3NextConfig = R"({
  "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
  "intermediate_size": 5120, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true, "full_attention_interval": 4,
  "head_dim": 256, "num_attention_heads": 16, "num_key_value_heads": 2, "attention_bias": false,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
  "linear_num_value_heads": 32, "linear_value_head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-06,
  "rope_theta": 10000000, "rope_scaling": null, "partial_rotary_factor": 0.25,
  "max_position_embeddings": 262144, "initializer_range": 0.02,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.001})";

constexpr SynthRule kDeepSeekV4Rules[] = {
    {kModel, "embed", "vocab_size", "hidden_size", kEmbedding},
    {kModel, "norm.weight", "hidden_size", "0", kVector},
    {kModel, "head", "vocab_size", "hidden_size", kLinear},
    {kLayer, "attn_norm.weight", "hidden_size", "0", kVector},
    {kLayer, "ffn_norm.weight", "hidden_size", "0", kVector},
    {kLayer, "attn.wq_a", "q_lora_rank", "hidden_size", kLinear},
    {kLayer, "attn.q_norm.weight", "q_lora_rank", "0", kVector},
    {kLayer, "attn.wq_b", "num_attention_heads*head_dim", "q_lora_rank", kLinear},  // 128 heads of 512
    {kLayer, "attn.wkv", "head_dim", "hidden_size", kLinear},
    {kLayer, "attn.kv_norm.weight", "head_dim", "0", kVector},
    {kLayer, "attn.attn_sink", "num_attention_heads", "0", kVector},
    {kLayer, "attn.wo_a", "o_groups*o_lora_rank", "num_attention_heads*head_dim/o_groups",
     kLinear},  // 16 groups of heads, each to rank 1024
    {kLayer, "attn.wo_b", "hidden_size", "o_groups*o_lora_rank", kLinear},
    {kLayer, "ffn.gate", "n_routed_experts", "hidden_size", kLinear},
    {kLayer, "ffn.gate.bias", "n_routed_experts", "0", kF32Vector},
    {kLayer, "ffn.shared_experts.w1", "n_shared_experts*moe_intermediate_size", "hidden_size", kGate},
    {kLayer, "ffn.shared_experts.w3", "n_shared_experts*moe_intermediate_size", "hidden_size", kUp},
    {kLayer, "ffn.shared_experts.w2", "hidden_size", "n_shared_experts*moe_intermediate_size", kQuantized},
    {kExpert, "w1", "moe_intermediate_size", "hidden_size", kGate},
    {kExpert, "w3", "moe_intermediate_size", "hidden_size", kUp},
    {kExpert, "w2", "hidden_size", "moe_intermediate_size", kQuantized},
};
constexpr const char* kDeepSeekV4Config = R"({
  "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 7168,
  "moe_intermediate_size": 3072, "n_shared_experts": 1, "norm_topk_prob": true, "swiglu_limit": 10.0,
  "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "routed_scaling_factor": 2.5,
  "num_hash_layers": 0, "num_nextn_predict_layers": 0, "rope_theta": 10000,
  "max_position_embeddings": 1048576,
  "num_attention_heads": 128, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
  "q_lora_rank": 1536, "o_lora_rank": 1024, "o_groups": 16, "sliding_window": 128, "hidden_act": "silu",
  "rms_norm_eps": 1e-06, "attention_bias": false, "initializer_range": 0.02, "tie_word_embeddings": false})";

constexpr SynthRule kMixtralRules[] = {
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "self_attn.q_proj", "hidden_size", "hidden_size", kLinear},
    {kLayer, "self_attn.k_proj", "hidden_size*num_key_value_heads/num_attention_heads", "hidden_size",
     kLinear},
    {kLayer, "self_attn.v_proj", "hidden_size*num_key_value_heads/num_attention_heads", "hidden_size",
     kLinear},
    {kLayer, "self_attn.o_proj", "hidden_size", "hidden_size", kQuantized},
    {kLayer, "block_sparse_moe.gate", "num_local_experts", "hidden_size", kLinear},
    {kExpert, "w1", "intermediate_size", "hidden_size", kGate},
    {kExpert, "w3", "intermediate_size", "hidden_size", kUp},
    {kExpert, "w2", "hidden_size", "intermediate_size", kQuantized},
};
constexpr const char* kMixtralConfig = R"({
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
  "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null, "max_position_embeddings": 32768,
  "initializer_range": 0.02, "tie_word_embeddings": false, "router_aux_loss_coef": 0.02})";

constexpr SynthRule kQwen3MoeRules[] = {
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "self_attn.q_proj", "num_attention_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.k_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.v_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.q_norm.weight", "head_dim", "0", kVector},
    {kLayer, "self_attn.k_norm.weight", "head_dim", "0", kVector},
    {kLayer, "self_attn.o_proj", "hidden_size", "num_attention_heads*head_dim", kQuantized},
    {kLayer, "mlp.gate", "num_experts", "hidden_size", kLinear},
    {kExpert, "gate_proj", "moe_intermediate_size", "hidden_size", kGate},
    {kExpert, "up_proj", "moe_intermediate_size", "hidden_size", kUp},
    {kExpert, "down_proj", "hidden_size", "moe_intermediate_size", kQuantized},
};
constexpr const char* kQwen3MoeConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "norm_topk_prob": true, "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 4,
  "attention_bias": false, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "rope_scaling": null, "max_position_embeddings": 40960, "initializer_range": 0.02,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.001})";

constexpr SynthRule kLlamaRules[] = {
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "self_attn.q_proj", "num_attention_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.k_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.v_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.o_proj", "hidden_size", "num_attention_heads*head_dim", kQuantized},
    {kLayer, "mlp.gate_proj", "intermediate_size", "hidden_size", kGate},
    {kLayer, "mlp.up_proj", "intermediate_size", "hidden_size", kUp},
    {kLayer, "mlp.down_proj", "hidden_size", "intermediate_size", kQuantized},
};
constexpr const char* kLlamaConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
  "intermediate_size": 14336,
  "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 8, "attention_bias": false,
  "mlp_bias": false, "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "max_position_embeddings": 131072, "initializer_range": 0.02, "tie_word_embeddings": false})";

constexpr SynthRule kTinyRules[] = {
    {kModel, "model.embed_tokens", "vocab_size", "hidden_size", kEmbedding},
    {kModel, "model.norm.weight", "hidden_size", "0", kVector},
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "self_attn.q_proj", "num_attention_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.k_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.v_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.q_norm.weight", "head_dim", "0", kVector},
    {kLayer, "self_attn.k_norm.weight", "head_dim", "0", kVector},
    {kLayer, "self_attn.o_proj", "hidden_size", "num_attention_heads*head_dim", kQuantized},
    {kLayer, "mlp.gate", "num_experts", "hidden_size", kLinear},
    {kExpert, "gate_proj", "moe_intermediate_size", "hidden_size", kGate},
    {kExpert, "up_proj", "moe_intermediate_size", "hidden_size", kUp},
    {kExpert, "down_proj", "hidden_size", "moe_intermediate_size", kQuantized},
};
constexpr const char* kTinyConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64,
  "intermediate_size": 64, "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "norm_topk_prob": true, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
  "attention_bias": false, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
  "rope_scaling": null, "max_position_embeddings": 512, "initializer_range": 0.02,
  "tie_word_embeddings": true, "router_aux_loss_coef": 0.001})";

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

/// As quantizers of one format write their configs.
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

const SynthPublication kSingleFormat[] = {
    {"modelopt", &kModelOptNvfp4, {}, "{}", nullptr, fill_single_format},
    {"compressed-tensors", &kCtNvfp4, {}, "{}", nullptr, fill_single_format},
};
/// With AutoAWQ's and GPTQModel's words as well.
const SynthPublication kLlamaPublications[] = {
    kSingleFormat[0],
    kSingleFormat[1],
    {"awq", nullptr, kAwqModules, R"({"bits": 4, "group_size": 128, "modules_to_not_convert": null,
      "quant_method": "awq", "version": "gemm", "zero_point": true})",
     nullptr, nullptr, nullptr, nullptr, DType::kF16},
    {"gptq", nullptr, kGptqModules, R"({"bits": 4, "checkpoint_format": "gptq", "damp_percent": 0.01,
      "desc_act": false, "group_size": 128, "lm_head": false, "meta": {"quantizer": ["gptqmodel:5.0.0"]},
      "pack_dtype": "int32", "quant_method": "gptq", "static_groups": false, "sym": true,
      "true_sequential": true})",
     nullptr, nullptr, nullptr, nullptr, DType::kF16},
};

constexpr SynthStack kTinyStacks[] = {
    {"model.layers.{}.", "mlp.experts.{}.", "num_hidden_layers", {kTinyRules}}};
constexpr SynthStack kQwen3NextStacks[] = {
    {"model.layers.{}.", "mlp.experts.{}.", "num_hidden_layers", {kTextModelRules, kQwen3NextRules}}};
constexpr SynthStack kQwen3MoeStacks[] = {
    {"model.layers.{}.", "mlp.experts.{}.", "num_hidden_layers", {kTextModelRules, kQwen3MoeRules}}};
constexpr SynthStack kDeepSeekV4Stacks[] = {
    {"layers.{}.", "ffn.experts.{}.", "num_hidden_layers", {kDeepSeekV4Rules}}};
constexpr SynthStack kMixtralStacks[] = {{"model.layers.{}.",
                                          "block_sparse_moe.experts.{}.",
                                          "num_hidden_layers",
                                          {kTextModelRules, kMixtralRules}}};
constexpr SynthStack kLlamaStacks[] = {
    {"model.layers.{}.", nullptr, "num_hidden_layers", {kTextModelRules, kLlamaRules}}};

const SynthShape kSingleFormatShapes[] = {
    {"tiny", "num_experts", "num_experts_per_tok", 2, 8, 2, kTinyStacks, kTinyConfig, kTinySmall,
     kSingleFormat},
    {"qwen3-next", "num_experts", "num_experts_per_tok", 48, 512, 10, kQwen3NextStacks, kQwen3NextConfig,
     kQwen3NextSmall, kSingleFormat},
    {"qwen3-moe", "num_experts", "num_experts_per_tok", 48, 128, 8, kQwen3MoeStacks, kQwen3MoeConfig,
     kQwen3MoeSmall, kSingleFormat},
    {"deepseek-v4", "n_routed_experts", "num_experts_per_tok", 61, 384, 6, kDeepSeekV4Stacks,
     kDeepSeekV4Config, kDeepSeekV4Small, kSingleFormat},
    {"mixtral", "num_local_experts", "num_experts_per_tok", 32, 8, 2, kMixtralStacks, kMixtralConfig,
     kMixtralSmall, kSingleFormat},
    {"llama", nullptr, "num_experts_per_tok", 32, 0, 0, kLlamaStacks, kLlamaConfig, kLlamaSmall,
     kLlamaPublications},
};

}  // namespace

std::span<const SynthShape> single_format_shapes() { return kSingleFormatShapes; }

}  // namespace twofour
