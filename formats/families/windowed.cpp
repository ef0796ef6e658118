#include "formats/families/rows.h"

// Families whose layers of a window have sizes of their own, or gates behind attention.

namespace twofour {
namespace families::windowed {
namespace {

/// Hy3. Source: modeling_hy_v3.py.
constexpr FamilyBlock kHyDense{kGatedMlp, {"@dense", "bias=mlp_bias"}};
constexpr FamilyBlock kHyBlock{R"(
  Shared = num_shared_experts*moe_intermediate_size
  if @sparse
  .mlp.router.gate                      router [num_experts, hidden_size]
  .mlp.expert_bias                      vector [num_experts]
  .mlp.shared_mlp.{gate,up,~down}_proj  linear [Shared, hidden_size]  num_shared_experts
)"};

/// Laguna: heads counted layer by layer, a gate for each. Source: modeling_laguna.py.
constexpr FamilyBlock kLaguna{R"(
  Queries = num_attention_heads_per_layer*head_dim
  .self_attn.q_proj      linear [Queries, hidden_size]  bias=attention_bias
  .self_attn.{k,v}_proj  linear [num_key_value_heads*head_dim, hidden_size]  bias=attention_bias
  .self_attn.o_proj      linear [hidden_size, Queries]  bias=attention_bias
  .self_attn.g_proj      linear [num_attention_heads_per_layer, hidden_size]  !gating=per-element
  .self_attn.g_proj      linear [Queries, hidden_size]  gating=per-element
  if @sparse
  .mlp.experts.e_score_correction_bias  vector [num_experts]
  .mlp.shared_expert.{gate,up,~down}_proj  linear [shared_expert_intermediate_size, hidden_size]
)"};

/// Layer types as config.json has them, or by a list of which layers have a window.
std::string_view mimo_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view said = sizes.text("layer_types", layer); !said.empty()) return said;
  if (!sizes.is_list("hybrid_layer_pattern"))
    return layer == 0 || (layer + 1) % 6 == 0 ? "full_attention" : "sliding_attention";
  return sizes.number("hybrid_layer_pattern", layer).value_or(0) != 0 ? "sliding_attention"
                                                                      : "full_attention";
}
/// MiMo-V2-Flash. Source: modeling_mimo_v2_flash.py.
constexpr FamilyBlock kMimo{R"(
  .self_attn.q_proj               linear [num_attention_heads*head_dim, hidden_size]  bias=attention_bias
  if @full_attention
  .self_attn.k_proj               linear [num_key_value_heads*head_dim, hidden_size]  bias=attention_bias
  .self_attn.v_proj               linear [num_key_value_heads*v_head_dim, hidden_size]  bias=attention_bias
  if @sliding_attention
  .self_attn.k_proj               linear [2*num_key_value_heads*head_dim, hidden_size]  bias=attention_bias
  .self_attn.v_proj               linear [2*num_key_value_heads*v_head_dim, hidden_size]  bias=attention_bias
  if
  .self_attn.o_proj               linear [hidden_size, num_attention_heads*v_head_dim]
  .self_attn.attention_sink_bias  vector [num_attention_heads]  @sliding_attention
)"};

/// Step-3.5 and 3.7. Sources: modeling_step3p7.py; of the drafts vLLM 0.33, step3p5_mtp.py.
std::string_view step_mixer(const FamilySizes& sizes, int64_t layer) {
  const std::string_view said = sizes.text("layer_types", layer);
  return said.empty() ? "full_attention" : said;
}
std::string_view step_mlp(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view said = sizes.text("mlp_layer_types", layer); !said.empty()) return said;
  const std::string_view all = sizes.text("moe_layers_enum");
  if (all.empty()) return layer > 0 ? "sparse" : "dense";
  // "3,4,5"
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find(',', at), all.size());
    int64_t number = 0;
    for (const char c : all.substr(at, end - at)) {
      if (c >= '0' && c <= '9') number = 10 * number + (c - '0');
    }
    if (number == layer) return "sparse";
    at = end + 1;
  }
  return "dense";
}
constexpr FamilyBlock kStep{R"(
  Queries = num_attention_heads*head_dim
  SlidingQueries = num_sliding_attention_heads*head_dim
  .self_attn.q_proj      linear [Queries, hidden_size]  @full_attention bias=attention_bias
  .self_attn.q_proj      linear [SlidingQueries, hidden_size]  @sliding_attention bias=attention_bias
  .self_attn.{k,v}_proj  linear [num_key_value_heads*head_dim, hidden_size]  bias=attention_bias
  .self_attn.o_proj      linear [hidden_size, Queries]  @full_attention bias=attention_bias
  .self_attn.o_proj      linear [hidden_size, SlidingQueries]  @sliding_attention bias=attention_bias
  .self_attn.g_proj      linear [num_attention_heads, hidden_size]  @full_attention may
  .self_attn.g_proj      linear [num_sliding_attention_heads, hidden_size]  @sliding_attention may
  if @sparse
  .moe.gate              router [n_routed_experts, hidden_size]
  .moe.router_bias       vector [n_routed_experts]  may
  .moe.{gate,up,~down}_proj.weight  row_stack [moe_intermediate_size, hidden_size]
  // As llm-compressor takes them apart.
  .moe.experts.#.{gate,up,~down}_proj  linear [moe_intermediate_size, hidden_size]
  .share_expert.{gate,up,~down}_proj  linear [share_expert_dim, hidden_size]
  if @draft
  .eh_proj               linear [hidden_size, 2*hidden_size]
  .{enorm,hnorm}         norm [hidden_size]
)"};

/// Muse-Glimmer. Source: modeling_muse_glimmer.py.
constexpr FamilyBlock kMuseGate{".self_attn.gate_proj  linear [num_attention_heads*head_dim, hidden_size]"};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"hy_v3"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHeadNorms, kHyDense, kHyBlock, kSparseExperts},
     .defaults = R"(hidden_size=4096 intermediate_size=13312 vocab_size=120832 num_hidden_layers=80
       num_attention_heads=64 num_key_value_heads=8 head_dim=128 attention_bias=false mlp_bias=false
       num_experts=num_local_experts num_local_experts=192 num_experts_per_tok=8 num_shared_experts=1
       moe_intermediate_size=1536 first_k_dense_replace=1 tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types, first_k_dense_replace"}},
    {.model_types = {"laguna"},
     .parameters = {kFrame, kTwoNorms, kHeadNorms, kDenseMlp, kLaguna, kPlainGate, kSparseExperts},
     .defaults = R"(hidden_size=2048 intermediate_size=8192 vocab_size=100352 num_hidden_layers=40
       num_attention_heads=48 num_key_value_heads=8 head_dim=128
       num_attention_heads_per_layer=num_attention_heads attention_bias=false num_experts=256
       num_experts_per_tok=8 moe_intermediate_size=512 shared_expert_intermediate_size=512
       first_k_dense_replace=1 tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types"}},
    {.model_types = {"mimo_v2_flash"},
     .parameters = {kFrame, kTwoNorms, kDenseMlp, kMimo, kRoutedGate, kSparseExperts},
     .defaults = R"(hidden_size=4096 intermediate_size=16384 vocab_size=152576 num_hidden_layers=48
       num_attention_heads=64 num_key_value_heads=4 head_dim=192 v_head_dim=128 attention_bias=false
       n_routed_experts=num_local_experts num_local_experts=256 num_experts_per_tok=8
       moe_intermediate_size=2048 first_k_dense_replace=1 tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types, moe_layer_freq"},
     .mixer = {mimo_mixer, "layer_types, hybrid_layer_pattern"}},
    {.model_types = {"step3p5"},
     .parameters = {kFrame, kTwoNorms, kHeadNorms, kDenseMlp, kStep},
     .defaults = R"(hidden_size=4096 intermediate_size=11264 vocab_size=128815 num_hidden_layers=45
       num_attention_heads=64 num_key_value_heads=num_attention_groups num_attention_groups=8 head_dim=128
       attention_bias=false num_sliding_attention_heads=attention_other_setting.num_attention_heads
       n_routed_experts=moe_num_experts moe_num_experts=288 num_experts_per_tok=moe_top_k moe_top_k=8
       moe_intermediate_size=1280 share_expert_dim=share_expert_dims share_expert_dims=1280
       num_nextn_predict_layers=num_mtp_layers tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok"},
     .mlp = {step_mlp, "mlp_layer_types, moe_layers_enum"},
     .mixer = {step_mixer, "layer_types"},
     .drafts = "num_nextn_predict_layers",
     .outer_type = "step3p7",
     .norms_add_one = true},
    {.model_types = {"muse_glimmer_text"},
     .parameters = {kFrame, kFourNorms, kBiasedAttention, kMlp, kMuseGate},
     .defaults = R"(hidden_size=6656 intermediate_size=19968 vocab_size=202048 num_hidden_layers=52
       num_attention_heads=32 num_key_value_heads=2 head_dim=128 attention_bias=false
       tie_word_embeddings=false)",
     .outer_type = "muse_glimmer",
     .norms_add_one = true},
};

}  // namespace
}  // namespace families::windowed

std::span<const FamilyShapes> windowed_families() { return families::windowed::kFamilies; }

}  // namespace twofour
