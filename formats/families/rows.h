#pragma once
#include <array>

#include "formats/families/family.h"
#include "formats/families/sizes.h"

/// Parameters that several families share, for use in their rows.
namespace twofour::families {

inline constexpr ExpertStacks kApart{};
inline constexpr ExpertStacks kRowStacks{.files = ExpertFiles::kRowStacks};
inline constexpr ExpertStacks kColumnStacks{.files = ExpertFiles::kColumnStacks};

inline constexpr FamilyRouter kSoftmax{};
inline constexpr FamilyRouter kSoftmaxIfConfigured{.renormalized = Renormalized::kIfConfigured};
/// The router of DeepSeek-V3, which has a correction, and of families with the same router.
constexpr FamilyRouter grouped_sigmoid(double scaling, int groups = 1, int kept = 1,
                                       Renormalized renormalized = Renormalized::kUnlessConfigured) {
  return {.scores = RouterScores::kSigmoid,
          .renormalized = renormalized,
          .correction = "gate.e_score_correction_bias",
          .scaling = scaling,
          .groups = ExpertGroups::kByTwo,
          .group_count = groups,
          .kept_groups = kept};
}

/// The embedding, the norm after the last layer, and the head. The head may be missing if it equals the
/// embedding.
inline constexpr FamilyBlock kFrame{R"(
  model.embed_tokens  embedding [vocab_size, hidden_size]
  model.norm          norm [hidden_size]
  lm_head             linear [vocab_size, hidden_size]  may
)"};
inline constexpr FamilyBlock kTwoNorms{".{input,post_attention}_layernorm  norm [hidden_size]"};
/// Norms after attention and after the MLP. There are no norms before them.
inline constexpr FamilyBlock kNormsBehind{".post_{attention,feedforward}_layernorm  norm [hidden_size]"};
inline constexpr FamilyBlock kFourNorms{
    ".{input,post_attention,pre_feedforward,post_feedforward}_layernorm  norm [hidden_size]"};

/// Projections of queries, keys, values and the output. $1 is the bias of the first three, $2 is the output's
/// bias, and $3 is a condition.
inline constexpr const char* kAttention = R"(
  if $3
  .self_attn.q_proj      linear [num_attention_heads*head_dim, hidden_size]  $1
  .self_attn.{k,v}_proj  linear [num_key_value_heads*head_dim, hidden_size]  $1
  .self_attn.o_proj      linear [hidden_size, num_attention_heads*head_dim]  $2
)";
inline constexpr FamilyBlock kPlainAttention{kAttention};
inline constexpr FamilyBlock kBiasedAttention{kAttention, {"bias=attention_bias", "bias=attention_bias"}};
inline constexpr FamilyBlock kQkvBiased{kAttention, {"bias=attention_bias"}};
inline constexpr FamilyBlock kUseBias{kAttention, {"bias=use_bias", "bias=use_bias"}};

/// Norms of the queries and keys of each head.
inline constexpr FamilyBlock kHeadNorms{".self_attn.{q,k}_norm  norm [head_dim]"};
/// Norms over all heads at once.
inline constexpr FamilyBlock kWideNorms{R"(
  .self_attn.q_norm  norm [num_attention_heads*head_dim]
  .self_attn.k_norm  norm [num_key_value_heads*head_dim]
)"};

/// An MLP with a gate. $1 is a condition and $2 is a bias.
inline constexpr const char* kGatedMlp =
    ".mlp.{gate,up,~down}_proj  linear [intermediate_size, hidden_size]  $1 $2";
inline constexpr FamilyBlock kMlp{kGatedMlp};
inline constexpr FamilyBlock kDenseMlp{kGatedMlp, {"@dense"}};
inline constexpr FamilyBlock kMlpBias{kGatedMlp, {"", "bias=mlp_bias"}};
/// An MLP without a gate.
inline constexpr FamilyBlock kUpDown{
    ".mlp.{up,~down}_proj  linear [intermediate_size, hidden_size]  bias=mlp_bias"};

/// Experts with separate matrices.
inline constexpr FamilyBlock kSparseExperts{
    ".mlp.experts.#.{gate,up,~down}_proj  linear [moe_intermediate_size, hidden_size]  @sparse"};
inline constexpr FamilyBlock kPlainGate{".mlp.gate  router [num_experts, hidden_size]  @sparse"};
/// Experts in stacks. $1 is a condition.
inline constexpr const char* kStacks = R"(
  .mlp.experts.gate_up_proj  row_stack [2*moe_intermediate_size, hidden_size]  @sparse $1
  .mlp.experts.down_proj     row_stack [hidden_size, moe_intermediate_size]  @sparse $1
)";
/// Stacks of experts as transformers writes them.
inline constexpr FamilyBlock kExpertStacks{kStacks, {"may"}};
/// A shared expert with a gate, as in Qwen2-MoE.
inline constexpr FamilyBlock kSharedExpert{R"(
  if @sparse
  .mlp.shared_expert_gate                  router [1, hidden_size]
  .mlp.shared_expert.{gate,up,~down}_proj  linear [shared_expert_intermediate_size, hidden_size]
)"};
/// A router with a correction. The shared experts together are n_shared_experts times as wide as a routed
/// expert.
inline constexpr FamilyBlock kRoutedGate{R"(
  if @sparse
  .mlp.gate                          router [n_routed_experts, hidden_size]
  .mlp.gate.e_score_correction_bias  vector [n_routed_experts]
)"};
inline constexpr FamilyBlock kSharedExperts{R"(
  if @sparse n_shared_experts
  .mlp.shared_experts.{gate,up,~down}_proj  linear [n_shared_experts*moe_intermediate_size, hidden_size]
)"};
/// Experts with Mixtral's names.
inline constexpr FamilyBlock kMixtralBlock{R"(
  .block_sparse_moe.gate                   router [num_local_experts, hidden_size]
  .block_sparse_moe.experts.#.{w1,w3,~w2}  linear [intermediate_size, hidden_size]
)"};

/// Latent attention, with queries and keys through low ranks. If queries have no rank, they are projected
/// directly. $1 is the block, $2 is the biases, and $3 is a condition. Source: modeling_deepseek_v3.py.
inline constexpr const char* kLatent = R"(
  Heads = num_attention_heads*qk_nope_head_dim+num_attention_heads*qk_rope_head_dim
  KeysAndValues = num_attention_heads*qk_nope_head_dim+num_attention_heads*v_head_dim
  if $3
  .$1.q_proj              linear [Heads, hidden_size]  !q_lora_rank
  .$1.q_a_proj            linear [q_lora_rank, hidden_size]  q_lora_rank $2
  .$1.q_a_layernorm       norm [q_lora_rank]  q_lora_rank
  .$1.q_b_proj            linear [Heads, q_lora_rank]  q_lora_rank
  .$1.kv_a_proj_with_mqa  linear [kv_lora_rank+qk_rope_head_dim, hidden_size]  $2
  .$1.kv_a_layernorm      norm [kv_lora_rank]
  .$1.kv_b_proj           linear [KeysAndValues, kv_lora_rank]
  .$1.o_proj              linear [hidden_size, num_attention_heads*v_head_dim]  $2
)";
inline constexpr FamilyBlock kLatentAttention{kLatent, {"self_attn", "bias=attention_bias"}};
/// The index that chooses the tokens that attention sees. $1 is a condition and $2 is the bias of the index's
/// norm.
inline constexpr const char* kIndexer = R"(
  if $1
  .self_attn.indexer.wq_b          linear [index_n_heads*index_head_dim, q_lora_rank]
  .self_attn.indexer.wk            linear [index_head_dim, hidden_size]
  .self_attn.indexer.k_norm        norm [index_head_dim]  $2
  .self_attn.indexer.weights_proj  linear [index_n_heads, hidden_size]
)";
/// Mixes hc_mult residual streams. $1 is the module with the mixes and $2 is a condition.
inline constexpr const char* kStreams = R"(
  Mixes = 2*hc_mult+hc_mult*hc_mult
  . = $1
  if $2
  .hc_attn_fn     matrix [Mixes, hc_mult*hidden_size]
  .hc_attn_base   vector [Mixes]
  .hc_attn_scale  vector [3]
  .hc_ffn_fn      matrix [Mixes, hc_mult*hidden_size]
  .hc_ffn_base    vector [Mixes]
  .hc_ffn_scale   vector [3]
)";
/// The class "sparse" for every decoder_sparse_step-th layer that mlp_only_layers does not list.
inline std::string_view sparse_by_step(const FamilySizes& sizes, int64_t layer) {
  const int64_t step = std::max<int64_t>(sizes.number("decoder_sparse_step").value_or(1), 1);
  const bool sparse = (layer + 1) % step == 0 && !sizes.lists("mlp_only_layers", layer) &&
                      sizes.number(sizes.family().experts.count).value_or(0) > 0;
  return sparse ? "sparse" : "dense";
}
/// The class in mlp_layer_types or, without it, "sparse" for all layers after the first few.
inline std::string_view sparse_behind_first(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view configured = sizes.text("mlp_layer_types", layer); !configured.empty())
    return configured;
  const int64_t every = std::max<int64_t>(sizes.number("moe_layer_freq", layer).value_or(1), 1);
  if (sizes.is_list("moe_layer_freq"))
    return sizes.number("moe_layer_freq", layer).value_or(1) != 0 ? "sparse" : "dense";
  return layer >= sizes.number("first_k_dense_replace").value_or(0) && layer % every == 0 ? "sparse"
                                                                                          : "dense";
}
/// The class in layer_types, where classes may have their names of earlier versions. Without layer_types,
/// every full_attention_interval-th layer has full attention.
inline std::string_view mixer_by_types(const FamilySizes& sizes, int64_t layer) {
  std::string_view configured = sizes.text("layer_types", layer);
  if (configured.empty()) {
    const int64_t every = std::max<int64_t>(sizes.number("full_attention_interval").value_or(4), 1);
    return (layer + 1) % every == 0 ? "full_attention" : "linear_attention";
  }
  if (configured == "attention" || configured == "sliding_attention" || configured == "qwen_sparse_attention")
    configured = "full_attention";
  if (configured == "mamba") configured = "linear_attention";
  return configured;
}

}  // namespace twofour::families
