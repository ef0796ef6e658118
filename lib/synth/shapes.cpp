#include "lib/synth/shapes.h"

#include <fmt/format.h>

#include <array>

namespace twofour {
namespace {

using enum SynthRole;
using enum SynthScope;
using enum SynthLayers;

constexpr SynthRule kQwen3NextRules[] = {
    {kModel, "model.embed_tokens", kVocab, 2048, kEmbedding},
    {kModel, "model.norm.weight", 2048, 0, kVector},
    {kModel, "lm_head", kVocab, 2048, kLinear},
    {kLayer, "input_layernorm.weight", 2048, 0, kVector},
    {kLayer, "post_attention_layernorm.weight", 2048, 0, kVector},
    {kLayer, "linear_attn.in_proj_qkvz", 12288, 2048, kLinear, kLinearAttention},
    {kLayer, "linear_attn.in_proj_ba", 64, 2048, kLinear, kLinearAttention},
    {kLayer, "linear_attn.conv1d", 8192, 4, kConvolution, kLinearAttention},
    {kLayer, "linear_attn.A_log", 32, 0, kVector, kLinearAttention},
    {kLayer, "linear_attn.dt_bias", 32, 0, kVector, kLinearAttention},
    {kLayer, "linear_attn.norm.weight", 128, 0, kVector, kLinearAttention},
    {kLayer, "linear_attn.out_proj", 2048, 4096, kLinear, kLinearAttention},
    {kLayer, "self_attn.q_proj", 8192, 2048, kLinear, kFullAttention},  // 16 heads of 256 and their gates
    {kLayer, "self_attn.k_proj", 512, 2048, kLinear, kFullAttention},
    {kLayer, "self_attn.v_proj", 512, 2048, kLinear, kFullAttention},
    {kLayer, "self_attn.q_norm.weight", 256, 0, kVector, kFullAttention},
    {kLayer, "self_attn.k_norm.weight", 256, 0, kVector, kFullAttention},
    {kLayer, "self_attn.o_proj", 2048, 4096, kQuantized, kFullAttention},
    {kLayer, "mlp.gate", kExperts, 2048, kLinear},
    {kLayer, "mlp.shared_expert_gate", 1, 2048, kLinear},
    {kLayer, "mlp.shared_expert.gate_proj", 512, 2048, kGate},
    {kLayer, "mlp.shared_expert.up_proj", 512, 2048, kUp},
    {kLayer, "mlp.shared_expert.down_proj", 2048, 512, kQuantized},
    {kExpert, "gate_proj", 512, 2048, kGate},
    {kExpert, "up_proj", 512, 2048, kUp},
    {kExpert, "down_proj", 2048, 512, kQuantized},
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
    {kModel, "embed", kVocab, 7168, kEmbedding},
    {kModel, "norm.weight", 7168, 0, kVector},
    {kModel, "head", kVocab, 7168, kLinear},
    {kLayer, "attn_norm.weight", 7168, 0, kVector},
    {kLayer, "ffn_norm.weight", 7168, 0, kVector},
    {kLayer, "attn.wq_a", 1536, 7168, kLinear},
    {kLayer, "attn.q_norm.weight", 1536, 0, kVector},
    {kLayer, "attn.wq_b", 65536, 1536, kLinear},  // 128 heads of 512
    {kLayer, "attn.wkv", 512, 7168, kLinear},
    {kLayer, "attn.kv_norm.weight", 512, 0, kVector},
    {kLayer, "attn.attn_sink", 128, 0, kVector},
    {kLayer, "attn.wo_a", 16384, 4096, kLinear},  // 16 groups of heads, each to rank 1024
    {kLayer, "attn.wo_b", 7168, 16384, kLinear},
    {kLayer, "ffn.gate", kExperts, 7168, kLinear},
    {kLayer, "ffn.shared_experts.w1", 3072, 7168, kGate},
    {kLayer, "ffn.shared_experts.w3", 3072, 7168, kUp},
    {kLayer, "ffn.shared_experts.w2", 7168, 3072, kQuantized},
    {kExpert, "w1", 3072, 7168, kGate},
    {kExpert, "w3", 3072, 7168, kUp},
    {kExpert, "w2", 7168, 3072, kQuantized},
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
    {kModel, "model.embed_tokens", kVocab, 4096, kEmbedding},
    {kModel, "model.norm.weight", 4096, 0, kVector},
    {kModel, "lm_head", kVocab, 4096, kLinear},
    {kLayer, "input_layernorm.weight", 4096, 0, kVector},
    {kLayer, "post_attention_layernorm.weight", 4096, 0, kVector},
    {kLayer, "self_attn.q_proj", 4096, 4096, kLinear},
    {kLayer, "self_attn.k_proj", 1024, 4096, kLinear},
    {kLayer, "self_attn.v_proj", 1024, 4096, kLinear},
    {kLayer, "self_attn.o_proj", 4096, 4096, kQuantized},
    {kLayer, "block_sparse_moe.gate", kExperts, 4096, kLinear},
    {kExpert, "w1", 14336, 4096, kGate},
    {kExpert, "w3", 14336, 4096, kUp},
    {kExpert, "w2", 4096, 14336, kQuantized},
};
constexpr const char* kMixtralConfig = R"({
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
  "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null, "max_position_embeddings": 32768,
  "initializer_range": 0.02, "tie_word_embeddings": false, "router_aux_loss_coef": 0.02})";

constexpr SynthRule kQwen3MoeRules[] = {
    {kModel, "model.embed_tokens", kVocab, 2048, kEmbedding},
    {kModel, "model.norm.weight", 2048, 0, kVector},
    {kModel, "lm_head", kVocab, 2048, kLinear},
    {kLayer, "input_layernorm.weight", 2048, 0, kVector},
    {kLayer, "post_attention_layernorm.weight", 2048, 0, kVector},
    {kLayer, "self_attn.q_proj", 4096, 2048, kLinear},
    {kLayer, "self_attn.k_proj", 512, 2048, kLinear},
    {kLayer, "self_attn.v_proj", 512, 2048, kLinear},
    {kLayer, "self_attn.q_norm.weight", 128, 0, kVector},
    {kLayer, "self_attn.k_norm.weight", 128, 0, kVector},
    {kLayer, "self_attn.o_proj", 2048, 4096, kQuantized},
    {kLayer, "mlp.gate", kExperts, 2048, kLinear},
    {kExpert, "gate_proj", 768, 2048, kGate},
    {kExpert, "up_proj", 768, 2048, kUp},
    {kExpert, "down_proj", 2048, 768, kQuantized},
};
constexpr const char* kQwen3MoeConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "norm_topk_prob": true, "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 4,
  "attention_bias": false, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "rope_scaling": null, "max_position_embeddings": 40960, "initializer_range": 0.02,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.001})";

constexpr SynthRule kLlamaRules[] = {
    {kModel, "model.embed_tokens", kVocab, 4096, kEmbedding},
    {kModel, "model.norm.weight", 4096, 0, kVector},
    {kModel, "lm_head", kVocab, 4096, kLinear},
    {kLayer, "input_layernorm.weight", 4096, 0, kVector},
    {kLayer, "post_attention_layernorm.weight", 4096, 0, kVector},
    {kLayer, "self_attn.q_proj", 4096, 4096, kLinear},
    {kLayer, "self_attn.k_proj", 1024, 4096, kLinear},
    {kLayer, "self_attn.v_proj", 1024, 4096, kLinear},
    {kLayer, "self_attn.o_proj", 4096, 4096, kQuantized},
    {kLayer, "mlp.gate_proj", 14336, 4096, kGate},
    {kLayer, "mlp.up_proj", 14336, 4096, kUp},
    {kLayer, "mlp.down_proj", 4096, 14336, kQuantized},
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
    {kModel, "model.embed_tokens", kVocab, 64, kEmbedding},
    {kModel, "model.norm.weight", 64, 0, kVector},
    {kLayer, "input_layernorm.weight", 64, 0, kVector},
    {kLayer, "post_attention_layernorm.weight", 64, 0, kVector},
    {kLayer, "self_attn.q_proj", 64, 64, kLinear},
    {kLayer, "self_attn.k_proj", 32, 64, kLinear},
    {kLayer, "self_attn.v_proj", 32, 64, kLinear},
    {kLayer, "self_attn.q_norm.weight", 16, 0, kVector},
    {kLayer, "self_attn.k_norm.weight", 16, 0, kVector},
    {kLayer, "self_attn.o_proj", 64, 64, kQuantized},
    {kLayer, "mlp.gate", kExperts, 64, kLinear},
    {kExpert, "gate_proj", 32, 64, kGate},
    {kExpert, "up_proj", 32, 64, kUp},
    {kExpert, "down_proj", 64, 32, kQuantized},
};
constexpr const char* kTinyConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64,
  "intermediate_size": 64, "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "norm_topk_prob": true, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
  "attention_bias": false, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
  "rope_scaling": null, "max_position_embeddings": 512, "initializer_range": 0.02,
  "tie_word_embeddings": true, "router_aux_loss_coef": 0.001})";

constexpr SynthShape kShapes[] = {
    {"tiny", "model.layers", "mlp.experts", "num_experts", 2, 8, 2, kTinyRules, kTinyConfig},
    {"qwen3-next", "model.layers", "mlp.experts", "num_experts", 48, 512, 10, kQwen3NextRules,
     kQwen3NextConfig},
    {"qwen3-moe", "model.layers", "mlp.experts", "num_experts", 48, 128, 8, kQwen3MoeRules, kQwen3MoeConfig},
    {"deepseek-v4", "layers", "ffn.experts", "n_routed_experts", 61, 384, 6, kDeepSeekV4Rules,
     kDeepSeekV4Config},
    {"mixtral", "model.layers", "block_sparse_moe.experts", "num_local_experts", 32, 8, 2, kMixtralRules,
     kMixtralConfig},
    {"llama", "model.layers", nullptr, nullptr, 32, 0, 0, kLlamaRules, kLlamaConfig},
};

bool has_layer(SynthLayers layers, int64_t layer) {
  return layers == kAll || (layers == kFullAttention) == (layer % 4 == 3);
}

}  // namespace

std::span<const SynthShape> synth_shape_table() { return kShapes; }

void for_each_module(const SynthModel& model, const std::function<void(std::span<const SynthModule>)>& f) {
  const auto count = [&](int64_t n) { return n == kVocab ? model.vocab : n == kExperts ? model.experts : n; };
  std::array<SynthModule, 2> pair;
  const auto emit = [&](SynthScope scope, int64_t layer, const std::string& prefix) {
    for (const SynthRule& rule : model.shape->rules) {
      if (rule.scope != scope || !has_layer(rule.layers, layer)) continue;
      const bool second = rule.role == kUp;
      pair[second] = {prefix + rule.name, rule.role, count(rule.n), rule.k};
      if (rule.role != kGate) f(std::span(pair).first(second ? 2 : 1));
    }
  };
  emit(kModel, 0, "");
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = fmt::format("{}.{}.", model.shape->layer_prefix, layer);
    emit(kLayer, layer, prefix);
    for (int64_t expert = 0; expert < model.experts; ++expert) {
      emit(kExpert, layer, fmt::format("{}{}.{}.", prefix, model.shape->expert_prefix, expert));
    }
  }
}

std::vector<std::string> unquantized_modules(const SynthModel& model) {
  std::vector<std::string> globs;
  for (const SynthRule& rule : model.shape->rules) {
    if (rule.role != kLinear && rule.role != kConvolution) continue;
    if (rule.layers == kFullAttention && model.layers < 4) continue;
    globs.push_back(rule.scope == kModel ? std::string(rule.name) : fmt::format("*.{}", rule.name));
  }
  return globs;
}

}  // namespace twofour
