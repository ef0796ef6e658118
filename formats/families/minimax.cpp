#include "formats/families/rows.h"

// MiniMax-Text-01 and MiniMax-M3.

namespace twofour {
namespace families::minimax {
namespace {

/// MiniMax-Text-01: lightning attention between layers of full attention.
constexpr FamilyBlock kFullAttention{kAttention, {"", "", "@full_attention"}};
constexpr FamilyBlock kMiniMax{R"(
  .block_sparse_moe.gate                   router [num_local_experts, hidden_size]
  .block_sparse_moe.experts.#.{w1,w3,~w2}  linear [intermediate_size, hidden_size]
  if @linear_attention
  .self_attn.qkv_proj                      linear [3*num_attention_heads*head_dim, hidden_size]
  .self_attn.out_proj                      linear [hidden_size, num_attention_heads*head_dim]
  .self_attn.output_gate                   linear [num_attention_heads*head_dim, hidden_size]
  .self_attn.norm                          norm [num_attention_heads*head_dim]
)"};

/// MiniMax-M3: layers with an index of tokens, a few dense ones. Names as published, which transformers
/// renames (conversion_mapping.py).
std::string_view m3_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view said = sizes.text("layer_types", layer); !said.empty()) return said;
  const bool sparse = sizes.number("sparse_attention_config.sparse_attention_freq", layer).value_or(0) != 0;
  return sparse ? "minimax_m3_sparse" : "full_attention";
}
constexpr FamilyBlock kM3Block{R"(
  if @minimax_m3_sparse
  .self_attn.index_q_proj                                linear [index_n_heads*index_head_dim, hidden_size]
  .self_attn.index_k_proj                                linear [index_head_dim, hidden_size]
  .self_attn.index_{q,k}_norm                            norm [index_head_dim]
  if @dense
  .mlp.{gate,up,~down}_proj                              linear [dense_intermediate_size, hidden_size]
  if @sparse
  .block_sparse_moe.gate                                 router [num_local_experts, hidden_size]
  .block_sparse_moe.e_score_correction_bias              vector [num_local_experts]
  .block_sparse_moe.shared_experts.{gate,up,~down}_proj  linear [shared_intermediate_size, hidden_size]
  .block_sparse_moe.experts.#.{w1,w3,~w2}                linear [intermediate_size, hidden_size]
)"};
/// Beside its layer, which is one of experts. Source: vLLM 0.33, models/minimax_m3.
constexpr FamilyBlock kM3Draft{R"(
  . = model.mtp.layers.#
  .{enorm,hnorm}    norm [hidden_size]
  .eh_proj          linear [hidden_size, 2*hidden_size]
  .final_layernorm  norm [hidden_size]
)"};
constexpr FamilyBlock kM3Vision{R"(
  . = vision_tower.vision_model.encoder.layers.#
  Width = vision_config.hidden_size
  multi_modal_projector.linear_1                        linear [projector_hidden_size, Width]  bias
  multi_modal_projector.linear_2                        linear [hidden_size, projector_hidden_size]  bias
  patch_merge_mlp.linear_1                              linear [projector_hidden_size, 4*hidden_size]  bias
  patch_merge_mlp.linear_2                              linear [hidden_size, projector_hidden_size]  bias
  vision_tower.vision_model.embeddings.patch_embedding  two_patches [Width, vision_config.patch_size]
  vision_tower.vision_model.pre_layrnorm                norm [Width]  bias
  .layer_{norm1,norm2}                                  norm [Width]  bias
  .self_attn.{q,k,v,out}_proj                           linear [Width, Width]  bias
  .mlp.{fc1,~fc2}                                       linear [vision_config.intermediate_size, Width]  bias
)"};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"minimax"},
     .parameters = {kFrame, kTwoNorms, kFullAttention, kMiniMax},
     .defaults = R"(hidden_size=4096 intermediate_size=14336 vocab_size=32000 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=8 num_local_experts=num_experts num_experts=8
       num_experts_per_tok=2 tie_word_embeddings=false)",
     .experts = {"num_local_experts", "num_experts_per_tok", kApart},
     .mixer = {mixer_by_types, "layer_types"},
     .is_open = true,
     .router = kSoftmax},
    {.model_types = {"minimax_m3_vl_text", "minimax_m3_vl"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kHeadNorms, kM3Block},
     .defaults = R"(hidden_size=6144 intermediate_size=3072 vocab_size=200064 num_hidden_layers=60
       num_attention_heads=64 num_key_value_heads=4 head_dim=128 num_local_experts=num_experts
       num_experts=128 num_experts_per_tok=4 dense_intermediate_size=12288 shared_intermediate_size=3072
       index_n_heads=sparse_attention_config.sparse_num_index_heads
       index_head_dim=sparse_attention_config.sparse_index_dim tie_word_embeddings=false)",
     .experts = {"num_local_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types, moe_layer_freq"},
     .mixer = {m3_mixer, "layer_types, sparse_attention_config.sparse_attention_freq"},
     .parts = {{{.parameters = kM3Draft,
                 .layers = "model.mtp.layers.#.transformer_layer.",
                 .count = "num_mtp_modules",
                 .repeats_layers = true,
                 .mlp = "sparse",
                 .mixer = "minimax_m3_sparse"},
                {.parameters = kM3Vision,
                 .layers = "vision_tower.vision_model.encoder.layers.#.",
                 .count = "vision_config.num_hidden_layers",
                 .is_tower = true}}},
     .norms_add_one = true},
};

}  // namespace
}  // namespace families::minimax

std::span<const FamilyShapes> minimax_families() { return families::minimax::kFamilies; }

}  // namespace twofour
