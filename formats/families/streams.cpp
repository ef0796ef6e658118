#include "formats/families/rows.h"

// Families that are like no other: streams of residuals, several blocks a layer, convolutions within
// attention.

namespace twofour {
namespace families::streams {
namespace {

constexpr const char* kOutput = "num_attention_heads*v_head_dim";

/// Experts in stacks, or apart as quantizers leave them.
constexpr FamilyParameter kStackedExperts[] = {
    {Kind::kRowStack, "model.layers.#.mlp.experts.gate_up_proj", "2*moe_intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kRowStack, "model.layers.#.mlp.experts.down_proj", "hidden_size", "moe_intermediate_size",
     "@sparse"},
};

/// Mistral-4. Source: modeling_mistral4.py.
constexpr FamilyParameter kMistral4Gate[] = {kRoutedGate[0]};

/// Hy4: an index of tokens, gates behind attention, streams of residuals. Source: modeling_hy_v4.py.
constexpr const char* kIndexed = "indexer_types=full";
constexpr FamilyParameter kHy4[] = {
    {Kind::kLinear, "model.layers.#.self_attn.linear_gate", kOutput, "hidden_size"},
    {Kind::kVector, "model.layers.#.self_attn.learnable_sink_param", "num_attention_heads"},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.wq_b", "index_n_heads*index_head_dim", "q_lora_rank",
     kIndexed},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.wk", "index_head_dim", "hidden_size", kIndexed},
    {Kind::kNorm, "model.layers.#.self_attn.indexer.k_norm", "index_head_dim", "", kIndexed, ""},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.weights_proj", "index_n_heads", "hidden_size",
     kIndexed},
    {Kind::kLinear, "model.layers.#.mlp.linear_gate", "intermediate_size", "hidden_size", "@dense"},
    {Kind::kLinear, "model.layers.#.mlp.up_proj", "intermediate_size", "hidden_size", "@dense"},
    {Kind::kLinear, "model.layers.#.mlp.down_proj", "hidden_size", "intermediate_size", "@dense"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.linear_gate", kSharedWidth, "hidden_size",
     "@sparse n_shared_experts"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.up_proj", kSharedWidth, "hidden_size",
     "@sparse n_shared_experts"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.down_proj", "hidden_size", kSharedWidth,
     "@sparse n_shared_experts"},
    {Kind::kMatrix, "model.layers.#.hc_pre.hc_attn_layer.hc_fn", "2*hc_mult", "hc_mult*hidden_size"},
    {Kind::kVector, "model.layers.#.hc_pre.hc_attn_layer.hc_base", "2*hc_mult"},
    {Kind::kVector, "model.layers.#.hc_pre.hc_attn_layer.hc_scale", "2"},
    {Kind::kMatrix, "model.layers.#.hc_pre.hc_mlp_layer.hc_fn", "2*hc_mult", "hc_mult*hidden_size"},
    {Kind::kVector, "model.layers.#.hc_pre.hc_mlp_layer.hc_base", "2*hc_mult"},
    {Kind::kVector, "model.layers.#.hc_pre.hc_mlp_layer.hc_scale", "2"},
    {Kind::kMatrix, "model.hc_pre.hc_head.hc_head_fn", "hc_mult", "hc_mult*hidden_size"},
    {Kind::kVector, "model.hc_pre.hc_head.hc_head_base", "hc_mult"},
    {Kind::kVector, "model.hc_pre.hc_head.hc_head_scale", "1"},
};

/// LongCat-Flash: two blocks of attention and MLP a layer, and experts that pass their input on. Source:
/// modeling_longcat_flash.py.
constexpr const char* kChoices = "n_routed_experts+zero_expert_num";
constexpr FamilyParameter kLongcat[] = {
    {Kind::kNorm, "model.layers.#.input_layernorm.#", "hidden_size"},
    {Kind::kNorm, "model.layers.#.post_attention_layernorm.#", "hidden_size"},
    {Kind::kLinear, "model.layers.#.self_attn.#.q_proj", kLatentHeads, "hidden_size", "!q_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.#.q_a_proj", "q_lora_rank", "hidden_size", "q_lora_rank",
     "attention_bias"},
    {Kind::kNorm, "model.layers.#.self_attn.#.q_a_layernorm", "q_lora_rank", "", "q_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.#.q_b_proj", kLatentHeads, "q_lora_rank", "q_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.#.kv_a_proj_with_mqa", "kv_lora_rank+qk_rope_head_dim",
     "hidden_size", "", "attention_bias"},
    {Kind::kNorm, "model.layers.#.self_attn.#.kv_a_layernorm", "kv_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.#.kv_b_proj", kLatentKeysAndValues, "kv_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.#.o_proj", "hidden_size", kOutput, "", "attention_bias"},
    {Kind::kLinear, "model.layers.#.mlps.#.gate_proj", "ffn_hidden_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlps.#.up_proj", "ffn_hidden_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlps.#.down_proj", "hidden_size", "ffn_hidden_size"},
    {Kind::kRouter, "model.layers.#.mlp.router.classifier", kChoices, "hidden_size"},
    {Kind::kVector, "model.layers.#.mlp.router.e_score_correction_bias", kChoices},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.gate_proj", "expert_ffn_hidden_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.up_proj", "expert_ffn_hidden_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.down_proj", "hidden_size", "expert_ffn_hidden_size"},
};

/// Dots3-Note: layers of a window have sizes of their own. Source: vLLM 0.33, models/dots3_note.
constexpr const char* kFull = "@full_attention";
constexpr const char* kSliding = "@sliding_attention";
constexpr const char* kSwaHeads =
    "swa_num_attention_heads*swa_qk_nope_head_dim+swa_num_attention_heads*swa_qk_rope_head_dim";
constexpr const char* kSwaKeysAndValues =
    "swa_num_attention_heads*swa_qk_nope_head_dim+swa_num_attention_heads*swa_v_head_dim";
constexpr const char* kSwaOutput = "swa_num_attention_heads*swa_v_head_dim";
std::string_view dots_mixer(const FamilySizes& sizes, int64_t layer) {
  return sizes.text("layer_types", layer) == "sliding_attention" ? "sliding_attention" : "full_attention";
}
constexpr FamilyParameter kDots3Full[] = {
    {Kind::kLinear, "model.layers.#.self_attn.q_a_proj", "q_lora_rank", "hidden_size", kFull},
    {Kind::kNorm, "model.layers.#.self_attn.q_a_layernorm", "q_lora_rank", "", kFull},
    {Kind::kLinear, "model.layers.#.self_attn.q_b_proj", kLatentHeads, "q_lora_rank", kFull},
    {Kind::kLinear, "model.layers.#.self_attn.kv_a_proj_with_mqa", "kv_lora_rank+qk_rope_head_dim",
     "hidden_size", kFull},
    {Kind::kNorm, "model.layers.#.self_attn.kv_a_layernorm", "kv_lora_rank", "", kFull},
    {Kind::kLinear, "model.layers.#.self_attn.kv_b_proj", kLatentKeysAndValues, "kv_lora_rank", kFull},
    {Kind::kLinear, "model.layers.#.self_attn.o_proj", "hidden_size", kOutput, kFull},
    {Kind::kNorm, "model.layers.#.self_attn.k_rope_only_layernorm", "qk_rope_head_dim", "", kFull},
    {Kind::kLinear, "model.layers.#.self_attn.g_proj", "num_attention_heads", "hidden_size",
     "@full_attention attention_gate_type=headwise"},
    {Kind::kLinear, "model.layers.#.self_attn.g_proj", kOutput, "hidden_size",
     "@full_attention !attention_gate_type=headwise"},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.wq_b", "index_n_heads*index_head_dim", "q_lora_rank",
     "@full_attention may"},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.wk", "index_head_dim", "hidden_size",
     "@full_attention may"},
    {Kind::kNorm, "model.layers.#.self_attn.indexer.k_norm", "index_head_dim", "", "@full_attention may",
     "may"},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.weights_proj", "index_n_heads", "hidden_size",
     "@full_attention may"},
};
constexpr FamilyParameter kDots3Window[] = {
    {Kind::kLinear, "model.layers.#.self_attn.q_a_proj", "swa_q_lora_rank", "hidden_size", kSliding},
    {Kind::kNorm, "model.layers.#.self_attn.q_a_layernorm", "swa_q_lora_rank", "", kSliding},
    {Kind::kLinear, "model.layers.#.self_attn.q_b_proj", kSwaHeads, "swa_q_lora_rank", kSliding},
    {Kind::kLinear, "model.layers.#.self_attn.kv_a_proj_with_mqa", "swa_kv_lora_rank+swa_qk_rope_head_dim",
     "hidden_size", kSliding},
    {Kind::kNorm, "model.layers.#.self_attn.kv_a_layernorm", "swa_kv_lora_rank", "", kSliding},
    {Kind::kLinear, "model.layers.#.self_attn.kv_b_proj", kSwaKeysAndValues, "swa_kv_lora_rank", kSliding},
    {Kind::kLinear, "model.layers.#.self_attn.o_proj", "hidden_size", kSwaOutput, kSliding},
    {Kind::kNorm, "model.layers.#.self_attn.k_rope_only_layernorm", "swa_qk_rope_head_dim", "", kSliding},
    {Kind::kLinear, "model.layers.#.self_attn.g_proj", "swa_num_attention_heads", "hidden_size",
     "@sliding_attention swa_attention_gate_type=headwise"},
    {Kind::kLinear, "model.layers.#.self_attn.g_proj", kSwaOutput, "hidden_size",
     "@sliding_attention !swa_attention_gate_type=headwise"},
};
/// Zaya: convolutions within attention, a router of several layers. Source: modeling_zaya.py.
constexpr const char* kZayaQkWidth = "num_attention_heads*head_dim+num_key_value_heads*head_dim";
constexpr const char* kZayaHalf = "num_key_value_heads*head_dim/2";
constexpr FamilyParameter kZayaAttention[] = {
    {Kind::kLinear, "model.layers.#.self_attn.qkv_proj.q_proj", "num_attention_heads*head_dim", "hidden_size",
     "", "attention_bias"},
    {Kind::kLinear, "model.layers.#.self_attn.qkv_proj.k_proj", "num_key_value_heads*head_dim", "hidden_size",
     "", "attention_bias"},
    {Kind::kLinear, "model.layers.#.self_attn.qkv_proj.v_proj_current", kZayaHalf, "hidden_size", "",
     "attention_bias"},
    {Kind::kLinear, "model.layers.#.self_attn.qkv_proj.v_proj_delayed", kZayaHalf, "hidden_size", "",
     "attention_bias"},
    {Kind::kConvolution, "model.layers.#.self_attn.qkv_proj.conv_qk_depthwise", kZayaQkWidth, "cca_time0", "",
     ""},
    {Kind::kAny, "model.layers.#.self_attn.qkv_proj.conv_qk_grouped.weight", ""},
    {Kind::kVector, "model.layers.#.self_attn.qkv_proj.conv_qk_grouped.bias", kZayaQkWidth},
    {Kind::kVector, "model.layers.#.self_attn.qk_norm.temp", "num_key_value_heads"},
    {Kind::kLinear, "model.layers.#.self_attn.o_proj", "hidden_size", "num_attention_heads*head_dim", "",
     "attention_bias"},
};
constexpr const char* kRouterWidth = "router_hidden_size";
constexpr FamilyParameter kZaya[] = {
    {Kind::kEmbedding, "model.embed_tokens", "vocab_size", "hidden_size"},
    {Kind::kNorm, "model.norm", "hidden_size"},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may", "lm_head_bias"},
    {Kind::kVector, "model.input_hidden_states_scale", "hidden_size"},
    {Kind::kVector, "model.input_hidden_states_bias", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.gate.down_proj", kRouterWidth, "hidden_size", "", ""},
    {Kind::kLinear, "model.layers.#.mlp.gate.router_mlp.fc1", kRouterWidth, kRouterWidth, "", ""},
    {Kind::kLinear, "model.layers.#.mlp.gate.router_mlp.fc2", kRouterWidth, kRouterWidth, "", ""},
    {Kind::kNorm, "model.layers.#.mlp.gate.router_mlp.norm", kRouterWidth},
    {Kind::kLinear, "model.layers.#.mlp.gate.router_mlp.out_proj", "num_experts+1", kRouterWidth},
    {Kind::kVector, "model.layers.#.mlp.gate.balancing_biases", "num_experts+1"},
    {Kind::kVector, "model.layers.#.mlp.gate.router_states_scale", kRouterWidth, "", "may"},
    {Kind::kRowStack, "model.layers.#.mlp.experts.gate_up_proj", "2*moe_intermediate_size", "hidden_size"},
    {Kind::kRowStack, "model.layers.#.mlp.experts.down_proj", "hidden_size", "moe_intermediate_size"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.gate_proj", "moe_intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.up_proj", "moe_intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.down_proj", "hidden_size", "moe_intermediate_size"},
    {Kind::kVector, "model.layers.#.post_attention_residual_scale.hidden_states_scale", "hidden_size"},
    {Kind::kVector, "model.layers.#.post_attention_residual_scale.hidden_states_bias", "hidden_size"},
    {Kind::kVector, "model.layers.#.post_attention_residual_scale.residual_scale", "hidden_size"},
    {Kind::kVector, "model.layers.#.post_attention_residual_scale.residual_bias", "hidden_size"},
    {Kind::kVector, "model.layers.#.post_mlp_residual_scale.hidden_states_scale", "hidden_size"},
    {Kind::kVector, "model.layers.#.post_mlp_residual_scale.hidden_states_bias", "hidden_size"},
    {Kind::kVector, "model.layers.#.post_mlp_residual_scale.residual_scale", "hidden_size"},
    {Kind::kVector, "model.layers.#.post_mlp_residual_scale.residual_bias", "hidden_size"},
};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"mistral4"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kDenseMlp, kMistral4Gate, kSharedExperts,
                    kStackedExperts, kSparseExperts},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 131072,
       "num_hidden_layers": 36, "num_attention_heads": 32, "attention_bias": false,
       "n_routed_experts": "num_local_experts", "num_local_experts": 128, "num_experts_per_tok": 4,
       "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 0,
       "kv_lora_rank": 256, "q_lora_rank": 1024, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
       "v_head_dim": 128, "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mlp_keys = "first_k_dense_replace",
     .stacks = kRowStacks},
    {.model_types = {"hy_v4"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kHy4, kRoutedGate, kStackedExperts, kSparseExperts},
     .defaults = R"({"hidden_size": 2816, "intermediate_size": 6912, "vocab_size": 120832,
       "num_hidden_layers": 34, "num_attention_heads": 32, "attention_bias": false,
       "n_routed_experts": "num_local_experts", "num_local_experts": 256, "num_experts_per_tok": 8,
       "n_shared_experts": 1, "moe_intermediate_size": 768, "first_k_dense_replace": 1,
       "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
       "v_head_dim": 256, "index_head_dim": 128, "index_n_heads": 16, "hc_mult": 4,
       "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mlp_keys = "mlp_layer_types",
     .stacks = kRowStacks},
    {.model_types = {"longcat_flash"},
     .parameters = {kFrame, kLongcat},
     .defaults = R"({"hidden_size": 6144, "ffn_hidden_size": "intermediate_size",
       "intermediate_size": 12288, "vocab_size": 131072, "num_hidden_layers": "num_layers",
       "num_layers": 28, "num_attention_heads": 64, "attention_bias": false,
       "n_routed_experts": "num_local_experts", "num_local_experts": 512, "zero_expert_num": 256,
       "moe_topk": "num_experts_per_tok", "num_experts_per_tok": 12, "expert_ffn_hidden_size": 2048,
       "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
       "v_head_dim": 128, "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "moe_topk",
     .stacks = kApart},
    {.model_types = {"dots3_note"},
     .parameters = {kFrame, kTwoNorms, kDots3Full, kDots3Window, kRoutedGate, kSharedExperts, kSparseExperts,
                    kDenseMlp},
     .defaults = R"({"first_k_dense_replace": 0, "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mixer = dots_mixer,
     .mlp_keys = "first_k_dense_replace, moe_layer_freq",
     .mixer_keys = "layer_types",
     .is_open = true,
     .stacks = kApart},
    {.model_types = {"zaya"},
     .parameters = {kZaya, kTwoNorms, kZayaAttention},
     .defaults = R"({"hidden_size": 2048, "vocab_size": 262272, "num_hidden_layers": 40,
       "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "attention_bias": false,
       "lm_head_bias": false, "num_experts": 16, "num_experts_per_tok": 1, "moe_intermediate_size": 2048,
       "router_hidden_size": 256, "cca_time0": 2, "tie_word_embeddings": true})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .stacks = kRowStacks},
};

}  // namespace
}  // namespace families::streams

std::span<const FamilyShapes> streams_families() { return families::streams::kFamilies; }

}  // namespace twofour
