#pragma once
#include <array>

#include "formats/families/family.h"
#include "formats/families/sizes.h"

/// Parameters that many families have, for the rows.
namespace twofour::families {

using Kind = ParameterKind;

inline constexpr ExpertStacks kApart{};
inline constexpr ExpertStacks kRowStacks{.files = ExpertFiles::kRowStacks};
inline constexpr ExpertStacks kColumnStacks{.files = ExpertFiles::kColumnStacks};

inline constexpr FamilyRouter kSoftmax{};
inline constexpr FamilyRouter kSoftmaxIfSaid{.renormalized = Renormalized::kIfSaid};
/// DeepSeek-V3's, with a correction, and what is built like it.
constexpr FamilyRouter grouped_sigmoid(double scaling, int groups = 1, int kept = 1,
                                       Renormalized renormalized = Renormalized::kUnlessSaid) {
  return {.scores = RouterScores::kSigmoid,
          .renormalized = renormalized,
          .correction = "gate.e_score_correction_bias",
          .scaling = scaling,
          .groups = ExpertGroups::kByTwo,
          .group_count = groups,
          .kept_groups = kept};
}

/// The embedding, the norm behind the last layer, the head where it is not the embedding.
inline constexpr FamilyParameter kFrame[] = {
    {Kind::kEmbedding, "model.embed_tokens", "vocab_size", "hidden_size"},
    {Kind::kNorm, "model.norm", "hidden_size"},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may"},
};
inline constexpr FamilyParameter kTwoNorms[] = {
    {Kind::kNorm, "model.layers.#.input_layernorm", "hidden_size"},
    {Kind::kNorm, "model.layers.#.post_attention_layernorm", "hidden_size"},
};
/// Norms behind attention and MLP in place of those before them.
inline constexpr FamilyParameter kNormsBehind[] = {
    {Kind::kNorm, "model.layers.#.post_attention_layernorm", "hidden_size"},
    {Kind::kNorm, "model.layers.#.post_feedforward_layernorm", "hidden_size"},
};
inline constexpr FamilyParameter kFourNorms[] = {
    {Kind::kNorm, "model.layers.#.input_layernorm", "hidden_size"},
    {Kind::kNorm, "model.layers.#.post_attention_layernorm", "hidden_size"},
    {Kind::kNorm, "model.layers.#.pre_feedforward_layernorm", "hidden_size"},
    {Kind::kNorm, "model.layers.#.post_feedforward_layernorm", "hidden_size"},
};

/// Queries, keys, values and output; conditions of their biases, and of the layers that have them.
constexpr std::array<FamilyParameter, 4> attention(const char* qkv_bias, const char* output_bias,
                                                   const char* when = "") {
  return {{
      {Kind::kLinear, "model.layers.#.self_attn.q_proj", "num_attention_heads*head_dim", "hidden_size", when,
       qkv_bias},
      {Kind::kLinear, "model.layers.#.self_attn.k_proj", "num_key_value_heads*head_dim", "hidden_size", when,
       qkv_bias},
      {Kind::kLinear, "model.layers.#.self_attn.v_proj", "num_key_value_heads*head_dim", "hidden_size", when,
       qkv_bias},
      {Kind::kLinear, "model.layers.#.self_attn.o_proj", "hidden_size", "num_attention_heads*head_dim", when,
       output_bias},
  }};
}
inline constexpr auto kPlainAttention = attention(nullptr, nullptr);
inline constexpr auto kBiasedAttention = attention("attention_bias", "attention_bias");
/// Of layers that are of attention, where others are not.
inline constexpr auto kFullAttention = attention(nullptr, nullptr, "@full_attention");

/// Norms of each head's queries and keys.
inline constexpr FamilyParameter kHeadNorms[] = {
    {Kind::kNorm, "model.layers.#.self_attn.q_norm", "head_dim"},
    {Kind::kNorm, "model.layers.#.self_attn.k_norm", "head_dim"},
};
/// The same over all heads at once.
inline constexpr FamilyParameter kWideNorms[] = {
    {Kind::kNorm, "model.layers.#.self_attn.q_norm", "num_attention_heads*head_dim"},
    {Kind::kNorm, "model.layers.#.self_attn.k_norm", "num_key_value_heads*head_dim"},
};

constexpr std::array<FamilyParameter, 3> mlp(const char* when = "", const char* bias = nullptr) {
  return {{
      {Kind::kLinear, "model.layers.#.mlp.gate_proj", "intermediate_size", "hidden_size", when, bias},
      {Kind::kLinear, "model.layers.#.mlp.up_proj", "intermediate_size", "hidden_size", when, bias},
      {Kind::kLinear, "model.layers.#.mlp.down_proj", "hidden_size", "intermediate_size", when, bias},
  }};
}
inline constexpr auto kMlp = mlp();
inline constexpr auto kDenseMlp = mlp("@dense");

/// An MLP without a gate.
constexpr std::array<FamilyParameter, 2> up_down(const char* bias) {
  return {{
      {Kind::kLinear, "model.layers.#.mlp.up_proj", "intermediate_size", "hidden_size", "", bias},
      {Kind::kLinear, "model.layers.#.mlp.down_proj", "hidden_size", "intermediate_size", "", bias},
  }};
}

/// Experts each with their own matrices, I their width.
constexpr std::array<FamilyParameter, 3> experts(const char* width, const char* when = "@sparse") {
  return {{
      {Kind::kLinear, "model.layers.#.mlp.experts.#.gate_proj", width, "hidden_size", when},
      {Kind::kLinear, "model.layers.#.mlp.experts.#.up_proj", width, "hidden_size", when},
      {Kind::kLinear, "model.layers.#.mlp.experts.#.down_proj", "hidden_size", width, when},
  }};
}
inline constexpr auto kSparseExperts = experts("moe_intermediate_size");
inline constexpr FamilyParameter kPlainGate[] = {
    {Kind::kRouter, "model.layers.#.mlp.gate", "num_experts", "hidden_size", "@sparse"},
};
/// The same in stacks, as transformers has them.
inline constexpr FamilyParameter kExpertStacks[] = {
    {Kind::kRowStack, "model.layers.#.mlp.experts.gate_up_proj", "2*moe_intermediate_size", "hidden_size",
     "@sparse may"},
    {Kind::kRowStack, "model.layers.#.mlp.experts.down_proj", "hidden_size", "moe_intermediate_size",
     "@sparse may"},
};
/// A shared expert with a gate, as of Qwen2-MoE.
inline constexpr FamilyParameter kSharedExpert[] = {
    {Kind::kRouter, "model.layers.#.mlp.shared_expert_gate", "1", "hidden_size", "@sparse"},
    {Kind::kLinear, "model.layers.#.mlp.shared_expert.gate_proj", "shared_expert_intermediate_size",
     "hidden_size", "@sparse"},
    {Kind::kLinear, "model.layers.#.mlp.shared_expert.up_proj", "shared_expert_intermediate_size",
     "hidden_size", "@sparse"},
    {Kind::kLinear, "model.layers.#.mlp.shared_expert.down_proj", "hidden_size",
     "shared_expert_intermediate_size", "@sparse"},
};
/// A router with a correction, shared experts of as many times the width of a routed one.
inline constexpr FamilyParameter kRoutedGate[] = {
    {Kind::kRouter, "model.layers.#.mlp.gate", "n_routed_experts", "hidden_size", "@sparse"},
    {Kind::kVector, "model.layers.#.mlp.gate.e_score_correction_bias", "n_routed_experts", "", "@sparse"},
};
inline constexpr const char* kSharedWidth = "n_shared_experts*moe_intermediate_size";
inline constexpr FamilyParameter kSharedExperts[] = {
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.gate_proj", kSharedWidth, "hidden_size",
     "@sparse n_shared_experts"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.up_proj", kSharedWidth, "hidden_size",
     "@sparse n_shared_experts"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.down_proj", "hidden_size", kSharedWidth,
     "@sparse n_shared_experts"},
};

inline constexpr const char* kLatentHeads =
    "num_attention_heads*qk_nope_head_dim+num_attention_heads*qk_rope_head_dim";

inline constexpr const char* kLatentKeysAndValues =
    "num_attention_heads*qk_nope_head_dim+num_attention_heads*v_head_dim";

/// Queries and keys through low ranks, or queries straight where there is no rank. Source:
/// modeling_deepseek_v3.py.
inline constexpr FamilyParameter kLatentAttention[] = {
    {Kind::kLinear, "model.layers.#.self_attn.q_proj", kLatentHeads, "hidden_size", "!q_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.q_a_proj", "q_lora_rank", "hidden_size", "q_lora_rank",
     "attention_bias"},
    {Kind::kNorm, "model.layers.#.self_attn.q_a_layernorm", "q_lora_rank", "", "q_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.q_b_proj", kLatentHeads, "q_lora_rank", "q_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.kv_a_proj_with_mqa", "kv_lora_rank+qk_rope_head_dim",
     "hidden_size", "", "attention_bias"},
    {Kind::kNorm, "model.layers.#.self_attn.kv_a_layernorm", "kv_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.kv_b_proj", kLatentKeysAndValues, "kv_lora_rank"},
    {Kind::kLinear, "model.layers.#.self_attn.o_proj", "hidden_size", "num_attention_heads*v_head_dim", "",
     "attention_bias"},
};

constexpr std::array<FamilyParameter, 3> experts_w(const char* width) {
  return {{
      {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w1", width, "hidden_size"},
      {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w3", width, "hidden_size"},
      {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w2", "hidden_size", width},
  }};
}

/// Every decoder_sparse_step-th layer that mlp_only_layers does not list.
inline std::string_view sparse_by_step(const FamilySizes& sizes, int64_t layer) {
  const int64_t step = std::max<int64_t>(sizes.number("decoder_sparse_step").value_or(1), 1);
  const bool sparse = (layer + 1) % step == 0 && !sizes.lists("mlp_only_layers", layer) &&
                      sizes.number(sizes.family().experts).value_or(0) > 0;
  return sparse ? "sparse" : "dense";
}
/// All behind the first few, or as mlp_layer_types says.
inline std::string_view sparse_behind_first(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view said = sizes.text("mlp_layer_types", layer); !said.empty()) return said;
  const int64_t every = std::max<int64_t>(sizes.number("moe_layer_freq", layer).value_or(1), 1);
  if (sizes.is_list("moe_layer_freq"))
    return sizes.number("moe_layer_freq", layer).value_or(1) != 0 ? "sparse" : "dense";
  return layer >= sizes.number("first_k_dense_replace").value_or(0) && layer % every == 0 ? "sparse"
                                                                                          : "dense";
}
/// layer_types, with the names that configs of earlier versions have; where it is absent every
/// full_attention_interval-th layer is of attention.
inline std::string_view mixer_by_types(const FamilySizes& sizes, int64_t layer) {
  std::string_view said = sizes.text("layer_types", layer);
  if (said.empty()) {
    const int64_t every = std::max<int64_t>(sizes.number("full_attention_interval").value_or(4), 1);
    return (layer + 1) % every == 0 ? "full_attention" : "linear_attention";
  }
  if (said == "attention" || said == "sliding_attention" || said == "qwen_sparse_attention")
    said = "full_attention";
  if (said == "mamba") said = "linear_attention";
  return said;
}

}  // namespace twofour::families
