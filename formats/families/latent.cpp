#include "formats/families/rows.h"

// Families with latent attention, DeepSeek-V2 to V4 and GLM-5, and families with the experts of DeepSeek-V3:
// GLM-4.5, dots.llm1, Solar Open.

namespace twofour {
namespace families::latent {
namespace {

/// An index of latent attention. Some layers share the index of another layer.
constexpr FamilyBlock kLatentIndexer{kIndexer, {"may", "bias=may"}};

/// The router of DeepSeek-V2. Not every model has the correction.
constexpr FamilyBlock kV2Gate{R"(
  .mlp.gate                          router [n_routed_experts, hidden_size]  @sparse
  .mlp.gate.e_score_correction_bias  vector [n_routed_experts]  @sparse topk_method=noaux_tc
)"};
/// A draft. Its layer is numbered after the model's own layers.
constexpr FamilyBlock kDraft{R"(
  if @draft
  .eh_proj                            linear [hidden_size, 2*hidden_size]
  .{enorm,hnorm,shared_head.norm}     norm [hidden_size]
  .shared_head.head                   linear [vocab_size, hidden_size]  may
  .embed_tokens                       embedding [vocab_size, hidden_size]  may
  .shared_head.head.weight_scale_inv  any  may
)"};

constexpr FamilyBlock kQkNorms{".self_attn.{q,k}_norm  norm [head_dim]  use_qk_norm"};

/// The first layers choose experts by tables of tokens. All other layers choose them by scores.
std::string_view v4_mlp(const FamilySizes& sizes, int64_t layer) {
  const std::string_view configured = sizes.text("mlp_layer_types", layer);
  const bool by_table =
      configured.empty() ? layer < sizes.number("num_hash_layers").value_or(0) : configured == "hash_moe";
  return by_table ? "hash" : "sparse";
}
constexpr FamilyBlock kV4Streams{kStreams, {"layers.#", "hc_mult"}};
constexpr FamilyBlock kV4Head{R"(
  if hc_mult
  hc_head_fn        matrix [hc_mult, hc_mult*hidden_size]
  hc_head_base      vector [hc_mult]
  hc_head_scale     vector [1]
  // transformers writes these.
  hc_head.hc_fn     matrix [hc_mult, hc_mult*hidden_size]  alias
  hc_head.hc_base   vector [hc_mult]  alias
  hc_head.hc_scale  vector [1]  alias
)"};
/// Parameters with the names of the reference inference code. Compressors are left open. Attention heads are
/// divided into groups, and each group has its own low rank.
constexpr FamilyBlock kV4{R"(
  . = layers.#
  Shared = n_shared_experts*moe_intermediate_size
  .{attn,ffn}_norm                     norm [hidden_size]
  .attn.wq_a                           linear [q_lora_rank, hidden_size]
  .attn.q_norm                         norm [q_lora_rank]
  .attn.kv_norm                        norm [head_dim]
  .attn.norm                           norm [head_dim]  alias
  .attn.wq_b                           linear [num_attention_heads*head_dim, q_lora_rank]
  .attn.wkv                            linear [head_dim, hidden_size]
  .attn.attn_sink                      vector [num_attention_heads]
  .attn.wo_a                           linear [o_groups*o_lora_rank, num_attention_heads*head_dim/o_groups]
  .attn.wo_b                           linear [hidden_size, o_groups*o_lora_rank]
  .attn.indexer.wq_b                   linear [index_n_heads*index_head_dim, q_lora_rank]  may
  .attn.indexer.weights_proj           linear [index_n_heads, hidden_size]  may
  .ffn.gate                            router [n_routed_experts, hidden_size]
  .ffn.gate.bias                       vector [n_routed_experts]  @sparse
  .ffn.gate.tid2eid                    numbers [vocab_size, num_experts_per_tok]  @hash
  .ffn.shared_experts.{w1,w3,~w2}      linear [Shared, hidden_size]  n_shared_experts
  .ffn.experts.#.{w1,w3,~w2}           linear [moe_intermediate_size, hidden_size]
  // transformers writes these for a model of linears.
  .ffn.experts.#.{gate,up,~down}_proj  linear [moe_intermediate_size, hidden_size]  may alias
  embed                                embedding [vocab_size, hidden_size]
  embed_tokens                         embedding [vocab_size, hidden_size]  alias
  norm                                 norm [hidden_size]
  head                                 linear [vocab_size, hidden_size]  may
)"};

/// Compressors, which merge several tokens into one. A compressor of four tokens overlaps with its neighbour,
/// so it is twice as wide.
constexpr FamilyBlock kV4Compressors{R"(
  . = layers.#
  .attn.compressor.{wkv,wgate}          linear [head_dim, hidden_size]  compress_ratios=128
  .attn.compressor.ape                  matrix [128, head_dim]  compress_ratios=128
  .attn.compressor.norm                 norm [head_dim]  compress_ratios=128
  .attn.compressor.{wkv,wgate}          linear [2*head_dim, hidden_size]  compress_ratios=4
  .attn.compressor.ape                  matrix [4, 2*head_dim]  compress_ratios=4
  .attn.compressor.norm                 norm [head_dim]  compress_ratios=4
  .attn.indexer.compressor.{wkv,wgate}  linear [2*index_head_dim, hidden_size]  compress_ratios=4
  .attn.indexer.compressor.ape          matrix [4, 2*index_head_dim]  compress_ratios=4
  .attn.indexer.compressor.norm         norm [index_head_dim]  compress_ratios=4
)"};
constexpr FamilyBlock kV4Draft{R"(
  . = mtp.#
  .{e,h}_proj          linear [hidden_size, hidden_size]
  .{enorm,hnorm,norm}  norm [hidden_size]
  .hc_head_fn          matrix [hc_mult, hc_mult*hidden_size]
  .hc_head_base        vector [hc_mult]
  .hc_head_scale       vector [1]
)"};

constexpr const char* kV4Defaults = R"(hidden_size=4096 moe_intermediate_size=intermediate_size
       intermediate_size=2048 vocab_size=129280 num_hidden_layers=43 num_attention_heads=64
       num_key_value_heads=1 head_dim=512 n_routed_experts=num_local_experts num_local_experts=256
       num_experts_per_tok=6 n_shared_experts=1 q_lora_rank=1024 o_groups=8 o_lora_rank=1024
       num_hash_layers=3 tie_word_embeddings=false)";

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"minicpm3"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kMlpBias},
     .defaults = R"(hidden_size=2560 intermediate_size=6400 vocab_size=73448 num_hidden_layers=62
       num_attention_heads=40 attention_bias=false mlp_bias=false kv_lora_rank=256 q_lora_rank=768
       qk_nope_head_dim=64 qk_rope_head_dim=32 v_head_dim=hidden_size/num_attention_heads
       tie_word_embeddings=true)"},
    {.model_types = {"deepseek"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kV2Gate, kSparseExperts, kSharedExperts, kDenseMlp,
                    kDraft},
     .defaults = R"(hidden_size=4096 intermediate_size=11008 vocab_size=102400 num_hidden_layers=30
       num_attention_heads=32 attention_bias=false moe_intermediate_size=1407 first_k_dense_replace=0
       moe_layer_freq=1 tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok"},
     .mlp = {sparse_behind_first, "first_k_dense_replace, moe_layer_freq"},
     .router = kSoftmaxIfConfigured},
    {.model_types = {"deepseek_v2"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kV2Gate, kSparseExperts, kSharedExperts, kDenseMlp,
                    kDraft},
     .defaults = R"(hidden_size=4096 intermediate_size=11008 vocab_size=102400 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false n_routed_experts=num_experts num_experts=64
       n_shared_experts=2 moe_intermediate_size=1407 first_k_dense_replace=0 kv_lora_rank=512
       q_lora_rank=1536 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128 tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "first_k_dense_replace, moe_layer_freq"},
     // transformers ignores norm_topk_prob for this family.
     .router = {{.renormalized = Renormalized::kNever, .scaling = 1, .groups = ExpertGroups::kIfConfigured}},
     .traits = {{.pairs = RopePairs::kNeighbours, .positions = 2048}},
     .activations = FamilyActivations::kSilu},
    {.model_types = {"deepseek_v3", "kimi_k2", "deepseek_v32"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kRoutedGate, kSparseExperts, kSharedExperts,
                    kDenseMlp, kDraft, kLatentIndexer},
     .defaults = R"(hidden_size=7168 intermediate_size=18432 vocab_size=129280 num_hidden_layers=61
       num_attention_heads=128 attention_bias=false n_routed_experts=num_local_experts
       num_local_experts=256 num_experts_per_tok=8 n_shared_experts=1 moe_intermediate_size=2048
       first_k_dense_replace=3 kv_lora_rank=512 q_lora_rank=1536 qk_nope_head_dim=128 qk_rope_head_dim=64
       v_head_dim=128 index_head_dim=128 index_n_heads=64 num_nextn_predict_layers=1
       tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "first_k_dense_replace, moe_layer_freq"},
     .drafts = "num_nextn_predict_layers",
     .router = grouped_sigmoid(2.5, 8, 4),
     .traits = {{.types = 2, .pairs = RopePairs::kAsConfigured, .positions = 4096}},
     .activations = FamilyActivations::kSilu,
     .class_names = {nullptr, "deepseek_v3"},
     .shares_draft_ends = true},
    {.model_types = {"glm_moe_dsa"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kRoutedGate, kSparseExperts, kSharedExperts,
                    kDenseMlp, kDraft, kLatentIndexer},
     .defaults = R"(hidden_size=6144 intermediate_size=12288 vocab_size=154880 num_hidden_layers=78
       num_attention_heads=64 attention_bias=false n_routed_experts=num_local_experts num_local_experts=256
       num_experts_per_tok=8 n_shared_experts=1 moe_intermediate_size=2048 first_k_dense_replace=3
       kv_lora_rank=512 q_lora_rank=2048 qk_nope_head_dim=192 qk_rope_head_dim=64 v_head_dim=256
       index_head_dim=128 index_n_heads=32 tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types, first_k_dense_replace"},
     .drafts = "num_nextn_predict_layers",
     .router = grouped_sigmoid(2.5),
     .activations = FamilyActivations::kSilu},
    {.model_types = {"glm4_moe_lite"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kRoutedGate, kSparseExperts, kSharedExperts,
                    kDenseMlp, kDraft},
     .defaults = R"(hidden_size=2048 intermediate_size=10240 vocab_size=154880 num_hidden_layers=47
       num_attention_heads=20 attention_bias=false n_routed_experts=num_local_experts num_local_experts=64
       num_experts_per_tok=4 n_shared_experts=1 moe_intermediate_size=1536 first_k_dense_replace=1
       kv_lora_rank=512 q_lora_rank=768 qk_nope_head_dim=192 qk_rope_head_dim=64 v_head_dim=256
       tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types, first_k_dense_replace"},
     .drafts = "num_nextn_predict_layers",
     .router = grouped_sigmoid(1.8)},
    {.model_types = {"glm4_moe", "glm4v_moe_text"},
     .parameters = {kFrame, kTwoNorms, kQkvBiased, kQkNorms, kRoutedGate, kSparseExperts, kSharedExperts,
                    kDenseMlp, kDraft},
     .defaults = R"(hidden_size=4096 intermediate_size=10944 vocab_size=151552 num_hidden_layers=46
       num_attention_heads=96 num_key_value_heads=8 attention_bias=false use_qk_norm=false
       n_routed_experts=num_local_experts num_local_experts=128 num_experts_per_tok=8 n_shared_experts=1
       moe_intermediate_size=1408 first_k_dense_replace=1 tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "first_k_dense_replace"},
     .drafts = "num_nextn_predict_layers",
     .outer_type = "glm4v_moe",
     .router = grouped_sigmoid(1),
     .traits = {{.epsilon = 1e-5, .rotated = 0.5, .positions = 131072}},
     .activations = FamilyActivations::kSilu},
    {.model_types = {"solar_open"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kRoutedGate, kSparseExperts, kSharedExperts,
                    kDenseMlp, kDraft},
     .defaults = "n_routed_experts=num_local_experts first_k_dense_replace=0 tie_word_embeddings=false",
     .experts = {"n_routed_experts", "num_experts_per_tok"},
     .mlp = {sparse_behind_first, "first_k_dense_replace"}},
    {.model_types = {"dots1"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHeadNorms, kRoutedGate, kSparseExperts,
                    kSharedExperts, kDenseMlp, kDraft},
     .defaults = R"(hidden_size=4608 intermediate_size=10944 vocab_size=152064 num_hidden_layers=62
       num_attention_heads=32 num_key_value_heads=32 attention_bias=false
       n_routed_experts=num_local_experts moe_intermediate_size=1408 first_k_dense_replace=0
       tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "first_k_dense_replace"},
     .router = grouped_sigmoid(1, 1, 1, Renormalized::kIfConfigured)},
    {.model_types = {"deepseek_v4"},
     .parameters = {kV4, kV4Streams, kV4Head},
     .defaults = kV4Defaults,
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {v4_mlp, "num_hash_layers, mlp_layer_types"},
     .is_open = true,
     .router = {{.scores = RouterScores::kSqrtSoftplus, .correction = "gate.bias", .scaling = 1.5}},
     .traits = {{.pairs = RopePairs::kNeighbours, .positions = 1048576, .compressed = true}},
     .parts = {{{.parameters = kV4Compressors},
                {.parameters = kV4Draft,
                 .layers = "mtp.#.",
                 .count = "num_nextn_predict_layers",
                 .repeats_layers = true,
                 .mlp = "sparse"}}}},
    // Source of the names: vLLM 0.33, models/deepseek_v41. The additions of this model, a tower and tables of
    // n-grams, are left open.
    {.model_types = {"deepseek_v41"},
     .parameters = {kV4, kV4Streams, kV4Head},
     .defaults = kV4Defaults,
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {v4_mlp, "num_hash_layers, mlp_layer_types"},
     .is_open = true},
};

}  // namespace
}  // namespace families::latent

std::span<const FamilyShapes> latent_families() { return families::latent::kFamilies; }

}  // namespace twofour
