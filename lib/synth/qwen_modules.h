#pragma once
#include "lib/synth/shapes.h"

/// What checkpoints of Qwen3.5 and of what is built like it share: attention, experts, vision tower. Names
/// and sizes: transformers, models/qwen3_5_moe and qwen4_exp.

namespace twofour::qwen {

using enum SynthRole;
using enum SynthScope;

/// One layer of four has attention, the others linear attention.
inline bool is_full(int64_t layer, int64_t) { return layer % 4 == 3; }
inline bool is_linear_layer(int64_t layer, int64_t) { return layer % 4 != 3; }

/// Sets layer_types of config.json.
inline void set_layer_types(Json& text, int64_t layers) {
  Json types = Json::array();
  for (int64_t i = 0; i < layers; ++i)
    types.push_back(is_full(i, layers) ? "full_attention" : "linear_attention");
  text["layer_types"] = types;
}

#define TWOFOUR_QUERIES "num_attention_heads*head_dim"
#define TWOFOUR_KEYS "num_key_value_heads*head_dim"
#define TWOFOUR_LINEAR_KEYS "2*linear_num_key_heads*linear_key_head_dim"
#define TWOFOUR_LINEAR_VALUES "linear_num_value_heads*linear_value_head_dim"
#define TWOFOUR_MERGED \
  "vision_config.spatial_merge_size*vision_config.spatial_merge_size*vision_config.hidden_size"

inline constexpr SynthRule kAttentionRules[] = {
    {kLayer, "linear_attn.in_proj_qkv", TWOFOUR_LINEAR_KEYS "+" TWOFOUR_LINEAR_VALUES, "hidden_size", kLinear,
     is_linear_layer},
    {kLayer, "linear_attn.in_proj_z", TWOFOUR_LINEAR_VALUES, "hidden_size", kLinear, is_linear_layer},
    {kLayer, "linear_attn.in_proj_b", "linear_num_value_heads", "hidden_size", kLinear, is_linear_layer},
    {kLayer, "linear_attn.in_proj_a", "linear_num_value_heads", "hidden_size", kLinear, is_linear_layer},
    {kLayer, "linear_attn.conv1d", TWOFOUR_LINEAR_KEYS "+" TWOFOUR_LINEAR_VALUES, "linear_conv_kernel_dim",
     kConvolution, is_linear_layer},
    {kLayer, "linear_attn.A_log", "linear_num_value_heads", "0", kF32Vector, is_linear_layer},
    {kLayer, "linear_attn.dt_bias", "linear_num_value_heads", "0", kVector, is_linear_layer},
    {kLayer, "linear_attn.norm.weight", "linear_value_head_dim", "0", kF32Vector, is_linear_layer},
    {kLayer, "linear_attn.out_proj", "hidden_size", TWOFOUR_LINEAR_VALUES, kLinear, is_linear_layer},
    {kLayer, "self_attn.q_proj", "2*" TWOFOUR_QUERIES, "hidden_size", kLinear, is_full},  // and their gates
    {kLayer, "self_attn.k_proj", TWOFOUR_KEYS, "hidden_size", kLinear, is_full},
    {kLayer, "self_attn.v_proj", TWOFOUR_KEYS, "hidden_size", kLinear, is_full},
    {kLayer, "self_attn.q_norm.weight", "head_dim", "0", kVector, is_full},
    {kLayer, "self_attn.k_norm.weight", "head_dim", "0", kVector, is_full},
    {kLayer, "self_attn.o_proj", "hidden_size", TWOFOUR_QUERIES, kLinear, is_full},
};
inline constexpr SynthRule kLayerNormRules[] = {
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
};
inline constexpr SynthRule kExpertRules[] = {
    {kLayer, "mlp.gate", "num_experts", "hidden_size", kLinear},
    {kLayer, "mlp.shared_expert_gate", "1", "hidden_size", kLinear},
    {kLayer, "mlp.shared_expert.gate_proj", "shared_expert_intermediate_size", "hidden_size", kGate},
    {kLayer, "mlp.shared_expert.up_proj", "shared_expert_intermediate_size", "hidden_size", kUp},
    {kLayer, "mlp.shared_expert.down_proj", "hidden_size", "shared_expert_intermediate_size", kLinear},
    {kExpert, "gate_proj", "moe_intermediate_size", "hidden_size", kGate},
    {kExpert, "up_proj", "moe_intermediate_size", "hidden_size", kUp},
    {kExpert, "down_proj", "hidden_size", "moe_intermediate_size", kLinear},
};
inline constexpr SynthRule kVisionRules[] = {
    {kModel, "model.visual.patch_embed.proj", "vision_config.hidden_size", "vision_config.patch_size",
     kPatches},
    {kModel, "model.visual.patch_embed.proj.bias", "vision_config.hidden_size", "0", kBias},
    {kModel, "model.visual.pos_embed", "vision_config.num_position_embeddings", "vision_config.hidden_size",
     kEmbedding},
    {kModel, "model.visual.merger.norm.weight", "vision_config.hidden_size", "0", kVector},
    {kModel, "model.visual.merger.norm.bias", "vision_config.hidden_size", "0", kBias},
    {kModel, "model.visual.merger.linear_fc1", TWOFOUR_MERGED, TWOFOUR_MERGED, kLinear},
    {kModel, "model.visual.merger.linear_fc1.bias", TWOFOUR_MERGED, "0", kBias},
    {kModel, "model.visual.merger.linear_fc2", "vision_config.out_hidden_size", TWOFOUR_MERGED, kLinear},
    {kModel, "model.visual.merger.linear_fc2.bias", "vision_config.out_hidden_size", "0", kBias},
    {kLayer, "norm1.weight", "vision_config.hidden_size", "0", kVector},
    {kLayer, "norm1.bias", "vision_config.hidden_size", "0", kBias},
    {kLayer, "norm2.weight", "vision_config.hidden_size", "0", kVector},
    {kLayer, "norm2.bias", "vision_config.hidden_size", "0", kBias},
    {kLayer, "attn.qkv", "3*vision_config.hidden_size", "vision_config.hidden_size", kLinear},
    {kLayer, "attn.qkv.bias", "3*vision_config.hidden_size", "0", kBias},
    {kLayer, "attn.proj", "vision_config.hidden_size", "vision_config.hidden_size", kLinear},
    {kLayer, "attn.proj.bias", "vision_config.hidden_size", "0", kBias},
    {kLayer, "mlp.linear_fc1", "vision_config.intermediate_size", "vision_config.hidden_size", kLinear},
    {kLayer, "mlp.linear_fc1.bias", "vision_config.intermediate_size", "0", kBias},
    {kLayer, "mlp.linear_fc2", "vision_config.hidden_size", "vision_config.intermediate_size", kLinear},
    {kLayer, "mlp.linear_fc2.bias", "vision_config.hidden_size", "0", kBias},
};
inline constexpr SynthStack kVisionStack = {
    "model.visual.blocks.{}.", nullptr, "vision_config.depth", {kVisionRules}};

#undef TWOFOUR_QUERIES
#undef TWOFOUR_KEYS
#undef TWOFOUR_LINEAR_KEYS
#undef TWOFOUR_LINEAR_VALUES
#undef TWOFOUR_MERGED

inline constexpr const char* kVisionConfig = R"({"vision_config": {
  "deepstack_visual_indexes": [], "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152,
  "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4304, "num_heads": 16,
  "num_position_embeddings": 2304, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
  "image_token_id": 248056, "video_token_id": 248057, "vision_end_token_id": 248054,
  "vision_start_token_id": 248053, "tie_word_embeddings": false})";
/// What --small changes.
inline constexpr const char* kSmallLanguage = R"({
  "text_config": {"hidden_size": 256, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "linear_key_head_dim": 32, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
    "linear_value_head_dim": 32},
  "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
    "num_position_embeddings": 16, "patch_size": 4, "out_hidden_size": 256}})";
inline constexpr const char* kSmallExperts = R"({"text_config": {
  "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128, "num_experts": 4,
  "num_experts_per_tok": 2, "num_hidden_layers": 4}})";

}  // namespace twofour::qwen
