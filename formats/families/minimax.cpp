#include "formats/families/rows.h"

// MiniMax-Text-01 and MiniMax-M3.

namespace twofour {
namespace families::minimax {
namespace {

/// MiniMax-Text-01: lightning attention between layers of full attention.
constexpr FamilyParameter kMiniMax[] = {
    {Kind::kRouter, "model.layers.#.block_sparse_moe.gate", "num_local_experts", "hidden_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w1", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w3", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w2", "hidden_size", "intermediate_size"},
    {Kind::kLinear, "model.layers.#.self_attn.qkv_proj", "3*num_attention_heads*head_dim", "hidden_size",
     "@linear_attention"},
    {Kind::kLinear, "model.layers.#.self_attn.out_proj", "hidden_size", "num_attention_heads*head_dim",
     "@linear_attention"},
    {Kind::kLinear, "model.layers.#.self_attn.output_gate", "num_attention_heads*head_dim", "hidden_size",
     "@linear_attention"},
    {Kind::kNorm, "model.layers.#.self_attn.norm", "num_attention_heads*head_dim", "", "@linear_attention"},
};

/// MiniMax-M3: layers with an index of tokens, a few dense ones. Names as published, which transformers
/// renames (conversion_mapping.py).
std::string_view m3_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view said = sizes.text("layer_types", layer); !said.empty()) return said;
  const bool sparse = sizes.number("sparse_attention_config.sparse_attention_freq", layer).value_or(0) != 0;
  return sparse ? "minimax_m3_sparse" : "full_attention";
}
constexpr FamilyParameter kM3Block[] = {
    {Kind::kLinear, "model.layers.#.self_attn.index_q_proj", "index_n_heads*index_head_dim", "hidden_size",
     "@minimax_m3_sparse"},
    {Kind::kLinear, "model.layers.#.self_attn.index_k_proj", "index_head_dim", "hidden_size",
     "@minimax_m3_sparse"},
    {Kind::kNorm, "model.layers.#.self_attn.index_q_norm", "index_head_dim", "", "@minimax_m3_sparse"},
    {Kind::kNorm, "model.layers.#.self_attn.index_k_norm", "index_head_dim", "", "@minimax_m3_sparse"},
    {Kind::kLinear, "model.layers.#.mlp.gate_proj", "dense_intermediate_size", "hidden_size", "@dense"},
    {Kind::kLinear, "model.layers.#.mlp.up_proj", "dense_intermediate_size", "hidden_size", "@dense"},
    {Kind::kLinear, "model.layers.#.mlp.down_proj", "hidden_size", "dense_intermediate_size", "@dense"},
    {Kind::kRouter, "model.layers.#.block_sparse_moe.gate", "num_local_experts", "hidden_size", "@sparse"},
    {Kind::kVector, "model.layers.#.block_sparse_moe.e_score_correction_bias", "num_local_experts", "",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.shared_experts.gate_proj", "shared_intermediate_size",
     "hidden_size", "@sparse"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.shared_experts.up_proj", "shared_intermediate_size",
     "hidden_size", "@sparse"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.shared_experts.down_proj", "hidden_size",
     "shared_intermediate_size", "@sparse"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w1", "intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w3", "intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w2", "hidden_size", "intermediate_size",
     "@sparse"},
};
/// Beside its layer, which is one of experts. Source: vLLM 0.33, models/minimax_m3.
constexpr FamilyParameter kM3Draft[] = {
    {Kind::kNorm, "model.mtp.layers.#.enorm", "hidden_size"},
    {Kind::kNorm, "model.mtp.layers.#.hnorm", "hidden_size"},
    {Kind::kLinear, "model.mtp.layers.#.eh_proj", "hidden_size", "2*hidden_size"},
    {Kind::kNorm, "model.mtp.layers.#.final_layernorm", "hidden_size"},
};
constexpr const char* kVisionWidth = "vision_config.hidden_size";
constexpr const char* kVisionLayers = "vision_tower.vision_model.encoder.layers.#.";
constexpr FamilyParameter kM3Vision[] = {
    {Kind::kLinear, "multi_modal_projector.linear_1", "projector_hidden_size", kVisionWidth, "", ""},
    {Kind::kLinear, "multi_modal_projector.linear_2", "hidden_size", "projector_hidden_size", "", ""},
    {Kind::kLinear, "patch_merge_mlp.linear_1", "projector_hidden_size", "4*hidden_size", "", ""},
    {Kind::kLinear, "patch_merge_mlp.linear_2", "hidden_size", "projector_hidden_size", "", ""},
    {Kind::kTwoPatches, "vision_tower.vision_model.embeddings.patch_embedding", kVisionWidth,
     "vision_config.patch_size"},
    {Kind::kNorm, "vision_tower.vision_model.pre_layrnorm", kVisionWidth, "", "", ""},
    {Kind::kNorm, "vision_tower.vision_model.encoder.layers.#.layer_norm1", kVisionWidth, "", "", ""},
    {Kind::kNorm, "vision_tower.vision_model.encoder.layers.#.layer_norm2", kVisionWidth, "", "", ""},
    {Kind::kLinear, "vision_tower.vision_model.encoder.layers.#.self_attn.q_proj", kVisionWidth, kVisionWidth,
     "", ""},
    {Kind::kLinear, "vision_tower.vision_model.encoder.layers.#.self_attn.k_proj", kVisionWidth, kVisionWidth,
     "", ""},
    {Kind::kLinear, "vision_tower.vision_model.encoder.layers.#.self_attn.v_proj", kVisionWidth, kVisionWidth,
     "", ""},
    {Kind::kLinear, "vision_tower.vision_model.encoder.layers.#.self_attn.out_proj", kVisionWidth,
     kVisionWidth, "", ""},
    {Kind::kLinear, "vision_tower.vision_model.encoder.layers.#.mlp.fc1", "vision_config.intermediate_size",
     kVisionWidth, "", ""},
    {Kind::kLinear, "vision_tower.vision_model.encoder.layers.#.mlp.fc2", kVisionWidth,
     "vision_config.intermediate_size", "", ""},
};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"minimax"},
     .parameters = {kFrame, kTwoNorms, kFullAttention, kMiniMax},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000,
       "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
       "num_local_experts": "num_experts", "num_experts": 8, "num_experts_per_tok": 2,
       "tie_word_embeddings": false})",
     .experts = "num_local_experts",
     .top_k = "num_experts_per_tok",
     .mixer = mixer_by_types,
     .mixer_keys = "layer_types",
     .is_open = true,
     .stacks = kApart,
     .router = kSoftmax},
    {.model_types = {"minimax_m3_vl_text", "minimax_m3_vl"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kHeadNorms, kM3Block},
     .defaults = R"({"hidden_size": 6144, "intermediate_size": 3072, "vocab_size": 200064,
       "num_hidden_layers": 60, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
       "num_local_experts": "num_experts", "num_experts": 128, "num_experts_per_tok": 4,
       "dense_intermediate_size": 12288, "shared_intermediate_size": 3072,
       "index_n_heads": "sparse_attention_config.sparse_num_index_heads",
       "index_head_dim": "sparse_attention_config.sparse_index_dim", "tie_word_embeddings": false})",
     .experts = "num_local_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mixer = m3_mixer,
     .mlp_keys = "mlp_layer_types, moe_layer_freq",
     .mixer_keys = "layer_types, sparse_attention_config.sparse_attention_freq",
     .stacks = kApart,
     .parts = {{{.parameters = kM3Draft,
                 .layers = "model.mtp.layers.#.transformer_layer.",
                 .count = "num_mtp_modules",
                 .repeats_layers = true,
                 .mlp = "sparse",
                 .mixer = "minimax_m3_sparse"},
                {.parameters = kM3Vision,
                 .layers = kVisionLayers,
                 .count = "vision_config.num_hidden_layers",
                 .is_tower = true}}},
     .norms_add_one = true},
};

}  // namespace
}  // namespace families::minimax

std::span<const FamilyShapes> minimax_families() { return families::minimax::kFamilies; }

}  // namespace twofour
