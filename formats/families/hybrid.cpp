#include "formats/families/rows.h"

namespace twofour {
namespace families::hybrid {
namespace {

/// LFM2: short convolutions between layers of attention.
std::string_view lfm2_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view said = sizes.text("layer_types", layer); !said.empty()) return said;
  const bool all = sizes.stated("full_attn_idxs") == nullptr;
  return all || sizes.lists("full_attn_idxs", layer) ? "full_attention" : "conv";
}
/// The width of the MLP follows from intermediate_size and three more keys, in fractions.
constexpr FamilyParameter kLfm2Mlp[] = {
    {Kind::kLinear, "model.layers.#.feed_forward.w1", kUnsaidSize, "hidden_size"},
    {Kind::kLinear, "model.layers.#.feed_forward.w3", kUnsaidSize, "hidden_size"},
    {Kind::kLinear, "model.layers.#.feed_forward.w2", "hidden_size", kUnsaidSize},
};
std::string_view lfm2_mlp(const FamilySizes& sizes, int64_t layer) {
  return layer < sizes.number("num_dense_layers").value_or(0) ? "dense" : "sparse";
}
constexpr FamilyParameter kLfm2Frame[] = {
    {Kind::kEmbedding, "model.embed_tokens", "vocab_size", "hidden_size"},
    {Kind::kNorm, "model.embedding_norm", "hidden_size"},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may"},
    {Kind::kNorm, "model.layers.#.operator_norm", "hidden_size"},
    {Kind::kNorm, "model.layers.#.ffn_norm", "hidden_size"},
};
constexpr FamilyParameter kLfm2Mixer[] = {
    {Kind::kConvolution, "model.layers.#.conv.conv", "hidden_size", "conv_L_cache", "@conv", "conv_bias"},
    {Kind::kLinear, "model.layers.#.conv.in_proj", "3*hidden_size", "hidden_size", "@conv", "conv_bias"},
    {Kind::kLinear, "model.layers.#.conv.out_proj", "hidden_size", "hidden_size", "@conv", "conv_bias"},
    {Kind::kLinear, "model.layers.#.self_attn.q_proj", "num_attention_heads*head_dim", "hidden_size",
     "@full_attention"},
    {Kind::kLinear, "model.layers.#.self_attn.k_proj", "num_key_value_heads*head_dim", "hidden_size",
     "@full_attention"},
    {Kind::kLinear, "model.layers.#.self_attn.v_proj", "num_key_value_heads*head_dim", "hidden_size",
     "@full_attention"},
    {Kind::kLinear, "model.layers.#.self_attn.out_proj", "hidden_size", "num_attention_heads*head_dim",
     "@full_attention"},
    {Kind::kNorm, "model.layers.#.self_attn.q_layernorm", "head_dim", "", "@full_attention"},
    {Kind::kNorm, "model.layers.#.self_attn.k_layernorm", "head_dim", "", "@full_attention"},
};
constexpr FamilyParameter kLfm2Block[] = {
    {Kind::kLinear, "model.layers.#.feed_forward.w1", "intermediate_size", "hidden_size", "@dense"},
    {Kind::kLinear, "model.layers.#.feed_forward.w3", "intermediate_size", "hidden_size", "@dense"},
    {Kind::kLinear, "model.layers.#.feed_forward.w2", "hidden_size", "intermediate_size", "@dense"},
    {Kind::kRouter, "model.layers.#.feed_forward.gate", "num_experts", "hidden_size", "@sparse"},
    {Kind::kVector, "model.layers.#.feed_forward.expert_bias", "num_experts", "", "@sparse use_expert_bias"},
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.w1", "moe_intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.w3", "moe_intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.w2", "hidden_size", "moe_intermediate_size",
     "@sparse"},
    // As llm-compressor names them.
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.gate_proj", "moe_intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.up_proj", "moe_intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.down_proj", "hidden_size", "moe_intermediate_size",
     "@sparse"},
};

/// Gemma-4: sizes of attention are in per_layer_config or global_head_dim too, and left open.
constexpr FamilyParameter kGemma4[] = {
    {Kind::kNorm, "model.layers.#.post_per_layer_input_norm", "hidden_size", "",
     "hidden_size_per_layer_input"},
    {Kind::kLinear, "model.layers.#.per_layer_input_gate", "hidden_size_per_layer_input", "hidden_size",
     "hidden_size_per_layer_input"},
    {Kind::kLinear, "model.layers.#.per_layer_projection", "hidden_size", "hidden_size_per_layer_input",
     "hidden_size_per_layer_input"},
    {Kind::kVector, "model.layers.#.router.scale", "hidden_size", "", "enable_moe_block"},
    {Kind::kVector, "model.layers.#.router.per_expert_scale", "num_experts", "", "enable_moe_block"},
    {Kind::kRouter, "model.layers.#.router.proj", "num_experts", "hidden_size", "enable_moe_block"},
    {Kind::kRowStack, "model.layers.#.experts.gate_up_proj", "2*moe_intermediate_size", "hidden_size",
     "enable_moe_block"},
    {Kind::kRowStack, "model.layers.#.experts.down_proj", "hidden_size", "moe_intermediate_size",
     "enable_moe_block"},
    {Kind::kLinear, "model.layers.#.experts.#.gate_proj", "moe_intermediate_size", "hidden_size",
     "enable_moe_block"},
    {Kind::kLinear, "model.layers.#.experts.#.up_proj", "moe_intermediate_size", "hidden_size",
     "enable_moe_block"},
    {Kind::kLinear, "model.layers.#.experts.#.down_proj", "hidden_size", "moe_intermediate_size",
     "enable_moe_block"},
};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"lfm2"},
     .parameters = {kLfm2Frame, kLfm2Mixer, kLfm2Mlp},
     .defaults = R"({"hidden_size": 2560, "vocab_size": 65536, "num_hidden_layers": 32,
       "num_attention_heads": 32, "num_key_value_heads": 8, "conv_bias": false, "conv_L_cache": 3,
       "tie_word_embeddings": true})",
     .mixer = lfm2_mixer,
     .mixer_keys = "layer_types, full_attn_idxs"},
    {.model_types = {"lfm2_moe"},
     .parameters = {kLfm2Frame, kLfm2Mixer, kLfm2Block},
     .defaults = R"({"hidden_size": 2048, "intermediate_size": 7168, "vocab_size": 65536,
       "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_experts": 32,
       "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "num_dense_layers": 2, "conv_bias": false,
       "conv_L_cache": 3, "use_expert_bias": true, "tie_word_embeddings": true})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .mlp = lfm2_mlp,
     .mixer = lfm2_mixer,
     .mlp_keys = "num_dense_layers",
     .mixer_keys = "layer_types",
     .stacks = kApart},
    {.model_types = {"gemma4_text"},
     .parameters = {kFrame, kFourNorms, kMlp, kGemma4},
     .defaults =
         R"({"num_key_value_heads": 4, "head_dim": 256, "enable_moe_block": false, "hidden_size_per_layer_input": 256,
       "tie_word_embeddings": true})",
     .experts = "num_experts",
     .top_k = "top_k_experts",
     .is_open = true,
     .outer_type = "gemma4",
     .stacks = kRowStacks},
};

}  // namespace
}  // namespace families::hybrid

std::span<const FamilyShapes> hybrid_families() { return families::hybrid::kFamilies; }

}  // namespace twofour
