#include "formats/families/rows.h"

namespace twofour {
namespace families::latent {
namespace {

/// Which tokens attention sees. Some layers share the index of another.
constexpr FamilyParameter kIndexer[] = {
    {Kind::kLinear, "model.layers.#.self_attn.indexer.wq_b", "index_n_heads*index_head_dim", "q_lora_rank",
     "may"},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.wk", "index_head_dim", "hidden_size", "may"},
    {Kind::kNorm, "model.layers.#.self_attn.indexer.k_norm", "index_head_dim", "", "may", "may"},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.weights_proj", "index_n_heads", "hidden_size", "may"},
};

/// Not every DeepSeek-V2 has a correction.
constexpr FamilyParameter kV2Gate[] = {
    kRoutedGate[0],
    {Kind::kVector, "model.layers.#.mlp.gate.e_score_correction_bias", "n_routed_experts", "",
     "@sparse topk_method=noaux_tc"},
};
/// A draft, numbered as a layer behind the others.
constexpr FamilyParameter kDraft[] = {
    {Kind::kLinear, "model.layers.#.eh_proj", "hidden_size", "2*hidden_size", "@draft"},
    {Kind::kNorm, "model.layers.#.enorm", "hidden_size", "", "@draft"},
    {Kind::kNorm, "model.layers.#.hnorm", "hidden_size", "", "@draft"},
    {Kind::kNorm, "model.layers.#.shared_head.norm", "hidden_size", "", "@draft"},
    {Kind::kLinear, "model.layers.#.shared_head.head", "vocab_size", "hidden_size", "@draft may"},
    {Kind::kEmbedding, "model.layers.#.embed_tokens", "vocab_size", "hidden_size", "@draft may"},
    {Kind::kAny, "model.layers.#.shared_head.head.weight_scale_inv", "", "", "@draft may"},
};

constexpr auto kQkvBiased = attention("attention_bias", nullptr);
constexpr FamilyParameter kQkNorms[] = {
    {Kind::kNorm, "model.layers.#.self_attn.q_norm", "head_dim", "", "use_qk_norm"},
    {Kind::kNorm, "model.layers.#.self_attn.k_norm", "head_dim", "", "use_qk_norm"},
};

/// The first layers choose experts by tables of tokens, all others by scores.
std::string_view v4_mlp(const FamilySizes& sizes, int64_t layer) {
  const std::string_view said = sizes.text("mlp_layer_types", layer);
  const bool by_table =
      said.empty() ? layer < sizes.number("num_hash_layers").value_or(0) : said == "hash_moe";
  return by_table ? "hash" : "sparse";
}
/// Weights that mix hc_mult residual streams.
constexpr const char* kMixes = "2*hc_mult+hc_mult*hc_mult";
constexpr FamilyParameter kV4Streams[] = {
    {Kind::kMatrix, "layers.#.hc_attn_fn", kMixes, "hc_mult*hidden_size", "hc_mult"},
    {Kind::kVector, "layers.#.hc_attn_base", kMixes, "", "hc_mult"},
    {Kind::kVector, "layers.#.hc_attn_scale", "3", "", "hc_mult"},
    {Kind::kMatrix, "layers.#.hc_ffn_fn", kMixes, "hc_mult*hidden_size", "hc_mult"},
    {Kind::kVector, "layers.#.hc_ffn_base", kMixes, "", "hc_mult"},
    {Kind::kVector, "layers.#.hc_ffn_scale", "3", "", "hc_mult"},
    {Kind::kMatrix, "hc_head_fn", "hc_mult", "hc_mult*hidden_size", "hc_mult"},
    {Kind::kVector, "hc_head_base", "hc_mult", "", "hc_mult"},
    {Kind::kVector, "hc_head_scale", "1", "", "hc_mult"},
    // As transformers writes them.
    {Kind::kMatrix, "hc_head.hc_fn", "hc_mult", "hc_mult*hidden_size", "hc_mult alias"},
    {Kind::kVector, "hc_head.hc_base", "hc_mult", "", "hc_mult alias"},
    {Kind::kVector, "hc_head.hc_scale", "1", "", "hc_mult alias"},
};
/// Names of the reference inference code, with compressors left open. Heads come in groups, each to a rank of
/// its own.
constexpr FamilyParameter kV4[] = {
    {Kind::kNorm, "layers.#.attn_norm", "hidden_size"},
    {Kind::kNorm, "layers.#.ffn_norm", "hidden_size"},
    {Kind::kLinear, "layers.#.attn.wq_a", "q_lora_rank", "hidden_size"},
    {Kind::kNorm, "layers.#.attn.q_norm", "q_lora_rank"},
    {Kind::kNorm, "layers.#.attn.kv_norm", "head_dim"},
    {Kind::kNorm, "layers.#.attn.norm", "head_dim", "", "alias"},
    {Kind::kLinear, "layers.#.attn.wq_b", "num_attention_heads*head_dim", "q_lora_rank"},
    {Kind::kLinear, "layers.#.attn.wkv", "head_dim", "hidden_size"},
    {Kind::kVector, "layers.#.attn.attn_sink", "num_attention_heads"},
    {Kind::kLinear, "layers.#.attn.wo_a", "o_groups*o_lora_rank", "num_attention_heads*head_dim/o_groups"},
    {Kind::kLinear, "layers.#.attn.wo_b", "hidden_size", "o_groups*o_lora_rank"},
    {Kind::kLinear, "layers.#.attn.indexer.wq_b", "index_n_heads*index_head_dim", "q_lora_rank", "may"},
    {Kind::kLinear, "layers.#.attn.indexer.weights_proj", "index_n_heads", "hidden_size", "may"},
    {Kind::kRouter, "layers.#.ffn.gate", "n_routed_experts", "hidden_size"},
    {Kind::kVector, "layers.#.ffn.gate.bias", "n_routed_experts", "", "@sparse"},
    {Kind::kNumbers, "layers.#.ffn.gate.tid2eid", "vocab_size", "num_experts_per_tok", "@hash"},
    {Kind::kLinear, "layers.#.ffn.shared_experts.w1", kSharedWidth, "hidden_size", "n_shared_experts"},
    {Kind::kLinear, "layers.#.ffn.shared_experts.w3", kSharedWidth, "hidden_size", "n_shared_experts"},
    {Kind::kLinear, "layers.#.ffn.shared_experts.w2", "hidden_size", kSharedWidth, "n_shared_experts"},
    {Kind::kLinear, "layers.#.ffn.experts.#.w1", "moe_intermediate_size", "hidden_size"},
    {Kind::kLinear, "layers.#.ffn.experts.#.w3", "moe_intermediate_size", "hidden_size"},
    {Kind::kLinear, "layers.#.ffn.experts.#.w2", "hidden_size", "moe_intermediate_size"},
    // As transformers writes them from linears.
    {Kind::kLinear, "layers.#.ffn.experts.#.gate_proj", "moe_intermediate_size", "hidden_size", "may alias"},
    {Kind::kLinear, "layers.#.ffn.experts.#.up_proj", "moe_intermediate_size", "hidden_size", "may alias"},
    {Kind::kLinear, "layers.#.ffn.experts.#.down_proj", "hidden_size", "moe_intermediate_size", "may alias"},
    {Kind::kEmbedding, "embed", "vocab_size", "hidden_size"},
    {Kind::kEmbedding, "embed_tokens", "vocab_size", "hidden_size", "alias"},
    {Kind::kNorm, "norm", "hidden_size"},
    {Kind::kLinear, "head", "vocab_size", "hidden_size", "may"},
};

/// What gathers several tokens into one. One of four tokens overlaps with its neighbour, and is twice as
/// wide.
constexpr const char* kOfFour = "compress_ratios=4";
constexpr const char* kOfMany = "compress_ratios=128";
constexpr FamilyParameter kV4Compressors[] = {
    {Kind::kLinear, "layers.#.attn.compressor.wkv", "head_dim", "hidden_size", kOfMany},
    {Kind::kLinear, "layers.#.attn.compressor.wgate", "head_dim", "hidden_size", kOfMany},
    {Kind::kMatrix, "layers.#.attn.compressor.ape", "128", "head_dim", kOfMany},
    {Kind::kNorm, "layers.#.attn.compressor.norm", "head_dim", "", kOfMany},
    {Kind::kLinear, "layers.#.attn.compressor.wkv", "2*head_dim", "hidden_size", kOfFour},
    {Kind::kLinear, "layers.#.attn.compressor.wgate", "2*head_dim", "hidden_size", kOfFour},
    {Kind::kMatrix, "layers.#.attn.compressor.ape", "4", "2*head_dim", kOfFour},
    {Kind::kNorm, "layers.#.attn.compressor.norm", "head_dim", "", kOfFour},
    {Kind::kLinear, "layers.#.attn.indexer.compressor.wkv", "2*index_head_dim", "hidden_size", kOfFour},
    {Kind::kLinear, "layers.#.attn.indexer.compressor.wgate", "2*index_head_dim", "hidden_size", kOfFour},
    {Kind::kMatrix, "layers.#.attn.indexer.compressor.ape", "4", "2*index_head_dim", kOfFour},
    {Kind::kNorm, "layers.#.attn.indexer.compressor.norm", "index_head_dim", "", kOfFour},
};
constexpr FamilyParameter kV4Draft[] = {
    {Kind::kLinear, "mtp.#.e_proj", "hidden_size", "hidden_size"},
    {Kind::kLinear, "mtp.#.h_proj", "hidden_size", "hidden_size"},
    {Kind::kNorm, "mtp.#.enorm", "hidden_size"},
    {Kind::kNorm, "mtp.#.hnorm", "hidden_size"},
    {Kind::kNorm, "mtp.#.norm", "hidden_size"},
    {Kind::kMatrix, "mtp.#.hc_head_fn", "hc_mult", "hc_mult*hidden_size"},
    {Kind::kVector, "mtp.#.hc_head_base", "hc_mult"},
    {Kind::kVector, "mtp.#.hc_head_scale", "1"},
};

constexpr auto kMlpBias = mlp("", "mlp_bias");

constexpr const char* kV4Defaults = R"({"hidden_size": 4096, "moe_intermediate_size": "intermediate_size",
       "intermediate_size": 2048, "vocab_size": 129280, "num_hidden_layers": 43, "num_attention_heads": 64,
       "num_key_value_heads": 1, "head_dim": 512, "n_routed_experts": "num_local_experts",
       "num_local_experts": 256, "num_experts_per_tok": 6, "n_shared_experts": 1, "q_lora_rank": 1024,
       "o_groups": 8, "o_lora_rank": 1024, "num_hash_layers": 3,
       "tie_word_embeddings": false})";

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"minicpm3"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kMlpBias},
     .defaults = R"({"hidden_size": 2560, "intermediate_size": 6400, "vocab_size": 73448,
       "num_hidden_layers": 62, "num_attention_heads": 40, "attention_bias": false, "mlp_bias": false,
       "kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
       "v_head_dim": "hidden_size/num_attention_heads", "tie_word_embeddings": true})"},
    {.model_types = {"deepseek"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kV2Gate, kSparseExperts, kSharedExperts, kDenseMlp,
                    kDraft},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 102400,
       "num_hidden_layers": 30, "num_attention_heads": 32, "attention_bias": false,
       "moe_intermediate_size": 1407, "first_k_dense_replace": 0, "moe_layer_freq": 1,
       "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mlp_keys = "first_k_dense_replace, moe_layer_freq",
     .router = kSoftmaxIfSaid},
    {.model_types = {"deepseek_v2"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kV2Gate, kSparseExperts, kSharedExperts, kDenseMlp,
                    kDraft},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 102400,
       "num_hidden_layers": 32, "num_attention_heads": 32, "attention_bias": false,
       "n_routed_experts": "num_experts", "num_experts": 64, "n_shared_experts": 2,
       "moe_intermediate_size": 1407, "first_k_dense_replace": 0, "kv_lora_rank": 512, "q_lora_rank": 1536,
       "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mlp_keys = "first_k_dense_replace, moe_layer_freq",
     .stacks = kApart,
     // transformers ignores its norm_topk_prob.
     .router = {{.renormalized = Renormalized::kNever, .scaling = 1, .groups = ExpertGroups::kIfSaid}},
     .traits = {{.pairs = RopePairs::kNeighbours, .positions = 2048}}},
    {.model_types = {"deepseek_v3", "kimi_k2", "deepseek_v32"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kRoutedGate, kSparseExperts, kSharedExperts,
                    kDenseMlp, kDraft, kIndexer},
     .defaults = R"({"hidden_size": 7168, "intermediate_size": 18432, "vocab_size": 129280,
       "num_hidden_layers": 61, "num_attention_heads": 128, "attention_bias": false,
       "n_routed_experts": "num_local_experts", "num_local_experts": 256, "num_experts_per_tok": 8,
       "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
       "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
       "v_head_dim": 128, "index_head_dim": 128, "index_n_heads": 64, "num_nextn_predict_layers": 1,
       "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mlp_keys = "first_k_dense_replace, moe_layer_freq",
     .drafts = "num_nextn_predict_layers",
     .stacks = kApart,
     .router = grouped_sigmoid(2.5, 8, 4),
     .traits = {{.types = 2, .pairs = RopePairs::kAsSaid, .positions = 4096}}},
    {.model_types = {"glm_moe_dsa"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kRoutedGate, kSparseExperts, kSharedExperts,
                    kDenseMlp, kDraft, kIndexer},
     .defaults = R"({"hidden_size": 6144, "intermediate_size": 12288, "vocab_size": 154880,
       "num_hidden_layers": 78, "num_attention_heads": 64, "attention_bias": false,
       "n_routed_experts": "num_local_experts", "num_local_experts": 256, "num_experts_per_tok": 8,
       "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
       "kv_lora_rank": 512, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
       "v_head_dim": 256, "index_head_dim": 128, "index_n_heads": 32, "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mlp_keys = "mlp_layer_types, first_k_dense_replace",
     .drafts = "num_nextn_predict_layers",
     .stacks = kApart,
     .router = grouped_sigmoid(2.5)},
    {.model_types = {"glm4_moe_lite"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kRoutedGate, kSparseExperts, kSharedExperts,
                    kDenseMlp, kDraft},
     .defaults = R"({"hidden_size": 2048, "intermediate_size": 10240, "vocab_size": 154880,
       "num_hidden_layers": 47, "num_attention_heads": 20, "attention_bias": false,
       "n_routed_experts": "num_local_experts", "num_local_experts": 64, "num_experts_per_tok": 4,
       "n_shared_experts": 1, "moe_intermediate_size": 1536, "first_k_dense_replace": 1,
       "kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
       "v_head_dim": 256, "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mlp_keys = "mlp_layer_types, first_k_dense_replace",
     .drafts = "num_nextn_predict_layers",
     .stacks = kApart,
     .router = grouped_sigmoid(1.8)},
    {.model_types = {"glm4_moe", "glm4v_moe_text"},
     .parameters = {kFrame, kTwoNorms, kQkvBiased, kQkNorms, kRoutedGate, kSparseExperts, kSharedExperts,
                    kDenseMlp, kDraft},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 10944, "vocab_size": 151552,
       "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8, "attention_bias": false,
       "use_qk_norm": false, "n_routed_experts": "num_local_experts", "num_local_experts": 128,
       "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 1408,
       "first_k_dense_replace": 1, "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mlp_keys = "first_k_dense_replace",
     .drafts = "num_nextn_predict_layers",
     .outer_type = "glm4v_moe",
     .stacks = kApart,
     .router = grouped_sigmoid(1),
     .traits = {{.epsilon = 1e-5, .rotated = 0.5, .positions = 131072}}},
    {.model_types = {"solar_open"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kRoutedGate, kSparseExperts, kSharedExperts,
                    kDenseMlp, kDraft},
     .defaults = R"({"n_routed_experts": "num_local_experts", "first_k_dense_replace": 0,
       "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mlp_keys = "first_k_dense_replace"},
    {.model_types = {"dots1"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHeadNorms, kRoutedGate, kSparseExperts,
                    kSharedExperts, kDenseMlp, kDraft},
     .defaults = R"({"hidden_size": 4608, "intermediate_size": 10944, "vocab_size": 152064,
       "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32,
       "attention_bias": false, "n_routed_experts": "num_local_experts", "moe_intermediate_size": 1408,
       "first_k_dense_replace": 0, "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mlp_keys = "first_k_dense_replace",
     .stacks = kApart,
     .router = grouped_sigmoid(1, 1, 1, Renormalized::kIfSaid)},
    {.model_types = {"deepseek_v4"},
     .parameters = {kV4, kV4Streams},
     .defaults = kV4Defaults,
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = v4_mlp,
     .mlp_keys = "num_hash_layers, mlp_layer_types",
     .is_open = true,
     .stacks = kApart,
     .router = {{.scores = RouterScores::kSqrtSoftplus, .correction = "gate.bias", .scaling = 1.5}},
     .parts = {{{.parameters = kV4Compressors},
                {.parameters = kV4Draft,
                 .layers = "mtp.#.",
                 .count = "num_nextn_predict_layers",
                 .repeats_layers = true,
                 .mlp = "sparse"}}}},
    // Names: vLLM 0.33, models/deepseek_v41; what it adds, a tower and tables of n-grams, is left open.
    {.model_types = {"deepseek_v41"},
     .parameters = {kV4, kV4Streams},
     .defaults = kV4Defaults,
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = v4_mlp,
     .mlp_keys = "num_hash_layers, mlp_layer_types",
     .is_open = true,
     .stacks = kApart},
};

}  // namespace
}  // namespace families::latent

std::span<const FamilyShapes> latent_families() { return families::latent::kFamilies; }

}  // namespace twofour
