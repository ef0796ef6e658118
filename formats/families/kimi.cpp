#include "formats/families/rows.h"

// Linear attention by deltas between layers of latent attention: Kimi-Linear, Kimi-K3, Ling-3.0.

namespace twofour {
namespace families::kimi {
namespace {

constexpr const char* kFull = "@full_attention";
constexpr const char* kDelta = "@linear_attention";
constexpr const char* kDeltaWidth = "linear_num_heads*linear_head_dim";

/// Layers are counted from one in full_attn_layers.
std::string_view kimi_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view said = sizes.text("layer_types", layer); !said.empty()) return said;
  return sizes.lists("linear_attn_config.full_attn_layers", layer + 1) ? "full_attention"
                                                                       : "linear_attention";
}

/// Source: modeling_kimi_linear.py; of Kimi-K3, whose gates have no low rank, its headers.
constexpr FamilyParameter kKimiDelta[] = {
    {Kind::kLinear, "model.layers.#.self_attn.q_proj", kDeltaWidth, "hidden_size", kDelta},
    {Kind::kLinear, "model.layers.#.self_attn.k_proj", kDeltaWidth, "hidden_size", kDelta},
    {Kind::kLinear, "model.layers.#.self_attn.v_proj", kDeltaWidth, "hidden_size", kDelta},
    {Kind::kConvolution, "model.layers.#.self_attn.q_conv1d", kDeltaWidth, "linear_conv_kernel_dim", kDelta},
    {Kind::kConvolution, "model.layers.#.self_attn.k_conv1d", kDeltaWidth, "linear_conv_kernel_dim", kDelta},
    {Kind::kConvolution, "model.layers.#.self_attn.v_conv1d", kDeltaWidth, "linear_conv_kernel_dim", kDelta},
    {Kind::kLinear, "model.layers.#.self_attn.f_a_proj", "linear_head_dim", "hidden_size", kDelta},
    {Kind::kLinear, "model.layers.#.self_attn.f_b_proj", kDeltaWidth, "linear_head_dim", kDelta},
    {Kind::kLinear, "model.layers.#.self_attn.b_proj", "linear_num_heads", "hidden_size", kDelta},
    {Kind::kVector, "model.layers.#.self_attn.dt_bias", kDeltaWidth, "", kDelta},
    {Kind::kNorm, "model.layers.#.self_attn.o_norm", "linear_head_dim", "", kDelta},
    {Kind::kLinear, "model.layers.#.self_attn.o_proj", "hidden_size", kDeltaWidth, kDelta},
};
constexpr FamilyParameter kKimiGates[] = {
    {Kind::kLinear, "model.layers.#.self_attn.g_proj", kDeltaWidth, "hidden_size",
     "@linear_attention use_full_rank_gate"},
    {Kind::kVector, "model.layers.#.self_attn.A_log", "linear_head_dim", "",
     "@linear_attention use_full_rank_gate"},
    {Kind::kLinear, "model.layers.#.self_attn.g_a_proj", "linear_head_dim", "hidden_size",
     "@linear_attention !use_full_rank_gate"},
    {Kind::kLinear, "model.layers.#.self_attn.g_b_proj", kDeltaWidth, "linear_head_dim",
     "@linear_attention !use_full_rank_gate"},
    // [1, 1, H, 1]
    {Kind::kAny, "model.layers.#.self_attn.A_log", "", "", "@linear_attention !use_full_rank_gate"},
};
constexpr FamilyParameter kKimiLatent[] = {
    {Kind::kLinear, "model.layers.#.self_attn.q_proj", kLatentHeads, "hidden_size",
     "@full_attention !q_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.q_a_proj", "q_lora_rank", "hidden_size",
     "@full_attention q_lora_rank"},
    {Kind::kNorm, "model.layers.#.self_attn.q_a_layernorm", "q_lora_rank", "", "@full_attention q_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.q_b_proj", kLatentHeads, "q_lora_rank",
     "@full_attention q_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.kv_a_proj_with_mqa", "kv_lora_rank+qk_rope_head_dim",
     "hidden_size", kFull},
    {Kind::kNorm, "model.layers.#.self_attn.kv_a_layernorm", "kv_lora_rank", "", kFull},
    {Kind::kLinear, "model.layers.#.self_attn.kv_b_proj", kLatentKeysAndValues, "kv_lora_rank", kFull},
    {Kind::kLinear, "model.layers.#.self_attn.o_proj", "hidden_size", "num_attention_heads*v_head_dim",
     kFull},
    {Kind::kLinear, "model.layers.#.self_attn.g_proj", "num_attention_heads*v_head_dim", "hidden_size",
     "@full_attention mla_use_output_gate"},
};
/// Experts of a width: w1, w3, w2.
constexpr std::array<FamilyParameter, 3> kimi_experts(const char* width, const char* when) {
  return {{
      {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w1", "moe_intermediate_size", width, when},
      {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w3", "moe_intermediate_size", width, when},
      {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w2", width, "moe_intermediate_size", when},
  }};
}
constexpr auto kWide = kimi_experts("hidden_size", "@sparse !routed_expert_hidden_size");
constexpr auto kNarrow = kimi_experts("routed_expert_hidden_size", "@sparse routed_expert_hidden_size");
constexpr FamilyParameter kKimiBlock[] = {
    {Kind::kRouter, "model.layers.#.block_sparse_moe.gate", "num_experts", "hidden_size", "@sparse"},
    {Kind::kVector, "model.layers.#.block_sparse_moe.gate.e_score_correction_bias", "num_experts", "",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.shared_experts.gate_proj",
     "num_shared_experts*moe_intermediate_size", "hidden_size", "@sparse num_shared_experts"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.shared_experts.up_proj",
     "num_shared_experts*moe_intermediate_size", "hidden_size", "@sparse num_shared_experts"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.shared_experts.down_proj", "hidden_size",
     "num_shared_experts*moe_intermediate_size", "@sparse num_shared_experts"},
    kWide[0],
    kWide[1],
    kWide[2],
    kNarrow[0],
    kNarrow[1],
    kNarrow[2],
};
/// Of Kimi-K3: experts see less than the layer's width, and layers attend to residuals.
constexpr FamilyParameter kKimiK3[] = {
    {Kind::kNorm, "model.output_attn_res_norm", "hidden_size", "", "attn_res_block_size"},
    {Kind::kLinear, "model.output_attn_res_proj", "1", "hidden_size", "attn_res_block_size"},
    {Kind::kNorm, "model.layers.#.self_attention_res_norm", "hidden_size", "", "attn_res_block_size"},
    {Kind::kLinear, "model.layers.#.self_attention_res_proj", "1", "hidden_size", "attn_res_block_size"},
    {Kind::kNorm, "model.layers.#.mlp_res_norm", "hidden_size", "", "attn_res_block_size"},
    {Kind::kLinear, "model.layers.#.mlp_res_proj", "1", "hidden_size", "attn_res_block_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.routed_expert_down_proj", "routed_expert_hidden_size",
     "hidden_size", "@sparse routed_expert_hidden_size"},
    {Kind::kNorm, "model.layers.#.block_sparse_moe.routed_expert_norm", "routed_expert_hidden_size", "",
     "@sparse latent_moe_use_norm"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.routed_expert_up_proj", "hidden_size",
     "routed_expert_hidden_size", "@sparse routed_expert_hidden_size"},
};
/// Source: vLLM 0.33, models/kimi_k3, kimi_k25_vit.py.
constexpr const char* kVisionWidth = "vision_config.vt_hidden_size";
constexpr const char* kMerged = "4*vision_config.vt_hidden_size";
constexpr FamilyParameter kKimiVision[] = {
    {Kind::kPatches, "vision_tower.patch_embed.proj", kVisionWidth, "vision_config.patch_size"},
    {Kind::kGrid, "vision_tower.patch_embed.pos_emb.weight", "vision_config.init_pos_emb_height",
     kVisionWidth},
    {Kind::kNorm, "vision_tower.encoder.final_layernorm", kVisionWidth},
    {Kind::kLinear, "mm_projector.proj.0", kMerged, kMerged},
    {Kind::kLinear, "mm_projector.proj.2", "hidden_size", kMerged},
    {Kind::kNorm, "mm_projector.post_norm", "hidden_size"},
    {Kind::kNorm, "vision_tower.encoder.blocks.#.norm0", kVisionWidth},
    {Kind::kNorm, "vision_tower.encoder.blocks.#.norm1", kVisionWidth},
    {Kind::kLinear, "vision_tower.encoder.blocks.#.wqkv", "3*vision_config.qkv_hidden_size", kVisionWidth},
    {Kind::kLinear, "vision_tower.encoder.blocks.#.wo", kVisionWidth, "vision_config.qkv_hidden_size"},
    {Kind::kLinear, "vision_tower.encoder.blocks.#.mlp.fc0", "vision_config.vt_intermediate_size",
     kVisionWidth},
    {Kind::kLinear, "vision_tower.encoder.blocks.#.mlp.fc1", kVisionWidth,
     "vision_config.vt_intermediate_size"},
};

/// GLM-5.3-Flash: an index of tokens where attention is latent, streams of residuals. Source:
/// modeling_glm5_next.py.
std::string_view glm5_mixer(const FamilySizes& sizes, int64_t layer) {
  const std::string_view said = sizes.text("layer_types", layer);
  if (said == "deepseek_sparse_attention") return "full_attention";
  if (!said.empty()) return said;
  return layer % 4 == 3 ? "full_attention" : "linear_attention";
}
constexpr const char* kMixes = "2*hc_mult+hc_mult*hc_mult";
constexpr const char* kIndexed = "@full_attention indexer_types=full";
constexpr FamilyParameter kGlm5[] = {
    {Kind::kVector, "model.layers.#.self_attn.A_log", "linear_num_heads", "", kDelta},
    {Kind::kLinear, "model.layers.#.self_attn.g_a_proj", "linear_head_dim", "hidden_size", kDelta},
    {Kind::kLinear, "model.layers.#.self_attn.g_b_proj", kDeltaWidth, "linear_head_dim", kDelta},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.wq_b", "index_n_heads*index_head_dim", "q_lora_rank",
     kIndexed},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.wk", "index_head_dim", "hidden_size", kIndexed},
    {Kind::kNorm, "model.layers.#.self_attn.indexer.k_norm", "index_head_dim", "", kIndexed, ""},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.weights_proj", "index_n_heads", "hidden_size",
     kIndexed},
    {Kind::kMatrix, "model.layers.#.self_attn.indexer.index_kpool_compress_ape", "index_kpool",
     "index_head_dim", kIndexed},
    {Kind::kMatrix, "model.layers.#.self_attn.indexer.index_kpool_compress_gate", "index_head_dim",
     "hidden_size", kIndexed},
    {Kind::kMatrix, "model.layers.#.hc_attn_fn", kMixes, "hc_mult*hidden_size"},
    {Kind::kVector, "model.layers.#.hc_attn_base", kMixes},
    {Kind::kVector, "model.layers.#.hc_attn_scale", "3"},
    {Kind::kMatrix, "model.layers.#.hc_ffn_fn", kMixes, "hc_mult*hidden_size"},
    {Kind::kVector, "model.layers.#.hc_ffn_base", kMixes},
    {Kind::kVector, "model.layers.#.hc_ffn_scale", "3"},
};
/// Ling-3.0. Source: vLLM 0.33, models/bailing_moe_v3.py.
std::string_view ling_mixer(const FamilySizes& sizes, int64_t layer) {
  const int64_t every = std::max<int64_t>(sizes.number("layer_group_size").value_or(1), 1);
  const int64_t layers = sizes.number("num_hidden_layers").value_or(0);
  const bool full = (layer + 1) % every == 0 || layer >= layers / every * every;
  return full ? "full_attention" : "linear_attention";
}
constexpr const char* kLingWidth = "num_attention_heads*head_dim";
constexpr const char* kLingShared = "num_shared_experts*moe_shared_expert_intermediate_size";
constexpr FamilyParameter kLing[] = {
    {Kind::kEmbedding, "model.word_embeddings", "vocab_size", "hidden_size"},
    {Kind::kNorm, "model.norm", "hidden_size"},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may"},
    {Kind::kLinear, "model.layers.#.attention.q_proj", kLingWidth, "hidden_size", kDelta},
    {Kind::kLinear, "model.layers.#.attention.k_proj", kLingWidth, "hidden_size", kDelta},
    {Kind::kLinear, "model.layers.#.attention.v_proj", kLingWidth, "hidden_size", kDelta},
    {Kind::kLinear, "model.layers.#.attention.f_proj", kLingWidth, "hidden_size", kDelta},
    {Kind::kLinear, "model.layers.#.attention.g_proj", kLingWidth, "hidden_size", kDelta},
    {Kind::kLinear, "model.layers.#.attention.b_proj", "num_attention_heads", "hidden_size", kDelta},
    {Kind::kLinear, "model.layers.#.attention.o_proj", "hidden_size", kLingWidth, kDelta},
    {Kind::kConvolution, "model.layers.#.attention.q_conv1d", kLingWidth, "short_conv_kernel_size", kDelta},
    {Kind::kConvolution, "model.layers.#.attention.k_conv1d", kLingWidth, "short_conv_kernel_size", kDelta},
    {Kind::kConvolution, "model.layers.#.attention.v_conv1d", kLingWidth, "short_conv_kernel_size", kDelta},
    {Kind::kVector, "model.layers.#.attention.A_log", "num_attention_heads", "", kDelta},
    {Kind::kVector, "model.layers.#.attention.dt_bias", kLingWidth, "", kDelta},
    {Kind::kNorm, "model.layers.#.attention.o_norm", "head_dim", "", kDelta},
    {Kind::kLinear, "model.layers.#.attention.q_proj", kLatentHeads, "hidden_size",
     "@full_attention !q_lora_rank"},
    {Kind::kLinear, "model.layers.#.attention.kv_a_proj_with_mqa", "kv_lora_rank+qk_rope_head_dim",
     "hidden_size", kFull},
    {Kind::kNorm, "model.layers.#.attention.kv_a_layernorm", "kv_lora_rank", "", kFull},
    {Kind::kLinear, "model.layers.#.attention.kv_b_proj", kLatentKeysAndValues, "kv_lora_rank", kFull},
    {Kind::kLinear, "model.layers.#.attention.g_proj", "num_attention_heads", "hidden_size",
     "@full_attention gated_attention_proj_granularity_type=head_wise"},
    {Kind::kLinear, "model.layers.#.attention.dense", "hidden_size", "num_attention_heads*v_head_dim", kFull},
};
constexpr FamilyParameter kLingBlock[] = {
    {Kind::kRouter, "model.layers.#.mlp.gate", "num_experts", "hidden_size", "@sparse"},
    {Kind::kVector, "model.layers.#.mlp.gate.expert_bias", "num_experts", "",
     "@sparse moe_router_enable_expert_bias"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.gate_proj", kLingShared, "hidden_size",
     "@sparse num_shared_experts"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.up_proj", kLingShared, "hidden_size",
     "@sparse num_shared_experts"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.down_proj", "hidden_size", kLingShared,
     "@sparse num_shared_experts"},
    {Kind::kLinear, "model.layers.#.eh_proj", "hidden_size", "2*hidden_size", "@draft"},
    {Kind::kNorm, "model.layers.#.enorm", "hidden_size", "", "@draft"},
    {Kind::kNorm, "model.layers.#.hnorm", "hidden_size", "", "@draft"},
    {Kind::kNorm, "model.layers.#.final_layernorm", "hidden_size", "", "@draft"},
};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"kimi_linear"},
     .parameters = {kFrame, kTwoNorms, kKimiDelta, kKimiGates, kKimiLatent, kKimiBlock, kDenseMlp, kKimiK3},
     .defaults = R"({"hidden_size": 2304, "intermediate_size": 9216, "vocab_size": 163840,
       "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32,
       "moe_intermediate_size": 1024, "num_experts": "num_local_experts", "num_local_experts": 256,
       "num_experts_per_token": "num_experts_per_tok", "num_experts_per_tok": 8,
       "num_shared_experts": "n_shared_experts", "n_shared_experts": 1, "first_k_dense_replace": 1,
       "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
       "use_full_rank_gate": "linear_attn_config.use_full_rank_gate",
       "linear_num_heads": "linear_attn_config.num_heads",
       "linear_head_dim": "linear_attn_config.head_dim",
       "linear_conv_kernel_dim": "linear_attn_config.short_conv_kernel_size",
       "tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "num_experts_per_token",
     .mlp = sparse_behind_first,
     .mixer = kimi_mixer,
     .mlp_keys = "mlp_layer_types, first_k_dense_replace",
     .mixer_keys = "layer_types, linear_attn_config.full_attn_layers",
     .outer_type = "kimi_k3",
     .stacks = kApart,
     .parts = {{{.parameters = kKimiVision,
                 .layers = "vision_tower.encoder.blocks.#.",
                 .count = "vision_config.vt_num_hidden_layers",
                 .is_tower = true}}}},
    {.model_types = {"glm5_next_text"},
     .parameters = {kFrame, kTwoNorms, kKimiDelta, kKimiLatent, kGlm5, kRoutedGate, kSharedExperts,
                    kSparseExperts, kDenseMlp},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 154880,
       "num_hidden_layers": 45, "num_attention_heads": 64, "moe_intermediate_size": 2048,
       "n_routed_experts": "num_local_experts", "num_local_experts": 288, "num_experts_per_tok": 8,
       "n_shared_experts": 1, "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536,
       "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, "index_head_dim": 128,
       "index_n_heads": 32, "index_kpool": 16, "hc_mult": 4,
       "linear_num_heads": "linear_attn_config.num_heads",
       "linear_head_dim": "linear_attn_config.head_dim",
       "linear_conv_kernel_dim": "linear_attn_config.short_conv_kernel_size",
       "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mixer = glm5_mixer,
     .mlp_keys = "mlp_layer_types",
     .mixer_keys = "layer_types",
     .outer_type = "glm5_next",
     .stacks = kApart},
    {.model_types = {"bailing_hybrid"},
     .parameters = {kLing, kTwoNorms, kLingBlock, kDenseMlp, kSparseExperts},
     .defaults = R"({"tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mixer = ling_mixer,
     .mlp_keys = "first_k_dense_replace",
     .mixer_keys = "layer_group_size",
     .drafts = "num_nextn_predict_layers",
     .stacks = kApart},
};

}  // namespace
}  // namespace families::kimi

std::span<const FamilyShapes> kimi_families() { return families::kimi::kFamilies; }

}  // namespace twofour
