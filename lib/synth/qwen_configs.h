#pragma once
#include "lib/synth/shapes.h"

/// What checkpoints of Qwen3.5 and of what is built like it share.

namespace twofour::qwen {

/// One layer of four has attention, the others linear attention.
inline bool is_full(int64_t layer, int64_t) { return layer % 4 == 3; }

/// Sets layer_types of config.json.
inline void set_layer_types(Json& text, int64_t layers) {
  Json types = Json::array();
  for (int64_t i = 0; i < layers; ++i)
    types.push_back(is_full(i, layers) ? "full_attention" : "linear_attention");
  text["layer_types"] = types;
}

inline constexpr const char* kLanguageModel = "model.language_model.";
inline constexpr const char* kF32 = "*.A_log *.linear_attn.norm.weight";
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
