#include "formats/families/rows.h"

namespace twofour {
namespace families::mamba {
namespace {

/// Jamba: attention and experts each in layers of their own period.
bool in_period(const FamilySizes& sizes, int64_t layer, const char* period, const char* offset) {
  const int64_t every = std::max<int64_t>(sizes.number(period).value_or(1), 1);
  return layer % every == sizes.number(offset).value_or(0);
}
std::string_view jamba_mixer(const FamilySizes& sizes, int64_t layer) {
  return in_period(sizes, layer, "attn_layer_period", "attn_layer_offset") ? "full_attention" : "mamba";
}
std::string_view jamba_mlp(const FamilySizes& sizes, int64_t layer) {
  return in_period(sizes, layer, "expert_layer_period", "expert_layer_offset") &&
                 sizes.number("num_experts").value_or(0) > 1
             ? "sparse"
             : "dense";
}
constexpr const char* kInner = "mamba_expand*hidden_size";
constexpr FamilyParameter kJamba[] = {
    {Kind::kEmbedding, "model.embed_tokens", "vocab_size", "hidden_size"},
    {Kind::kNorm, "model.final_layernorm", "hidden_size"},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may"},
    {Kind::kNorm, "model.layers.#.input_layernorm", "hidden_size"},
    {Kind::kNorm, "model.layers.#.pre_ff_layernorm", "hidden_size"},
    {Kind::kLinear, "model.layers.#.feed_forward.gate_proj", "intermediate_size", "hidden_size", "@dense"},
    {Kind::kLinear, "model.layers.#.feed_forward.up_proj", "intermediate_size", "hidden_size", "@dense"},
    {Kind::kLinear, "model.layers.#.feed_forward.down_proj", "hidden_size", "intermediate_size", "@dense"},
    {Kind::kRouter, "model.layers.#.feed_forward.router", "num_experts", "hidden_size", "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.gate_proj", "intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.up_proj", "intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.down_proj", "hidden_size", "intermediate_size",
     "@sparse"},
};
constexpr FamilyParameter kJambaMixer[] = {
    {Kind::kMatrix, "model.layers.#.mamba.A_log", kInner, "mamba_d_state", "@mamba"},
    {Kind::kVector, "model.layers.#.mamba.D", kInner, "", "@mamba"},
    {Kind::kConvolution, "model.layers.#.mamba.conv1d", kInner, "mamba_d_conv", "@mamba", "mamba_conv_bias"},
    {Kind::kLinear, "model.layers.#.mamba.in_proj", "2*mamba_expand*hidden_size", "hidden_size", "@mamba",
     "mamba_proj_bias"},
    {Kind::kLinear, "model.layers.#.mamba.x_proj", "mamba_dt_rank+2*mamba_d_state", kInner, "@mamba"},
    {Kind::kLinear, "model.layers.#.mamba.dt_proj", kInner, "mamba_dt_rank", "@mamba", ""},
    {Kind::kLinear, "model.layers.#.mamba.out_proj", "hidden_size", kInner, "@mamba", "mamba_proj_bias"},
    {Kind::kNorm, "model.layers.#.mamba.dt_layernorm", "mamba_dt_rank", "", "@mamba"},
    {Kind::kNorm, "model.layers.#.mamba.b_layernorm", "mamba_d_state", "", "@mamba"},
    {Kind::kNorm, "model.layers.#.mamba.c_layernorm", "mamba_d_state", "", "@mamba"},
};

/// Granite 4: mamba or attention, experts or a shared MLP alone.
constexpr auto kGraniteAttention = attention("attention_bias", "attention_bias", "@full_attention");
constexpr FamilyParameter kGraniteHybrid[] = {
    {Kind::kVector, "model.layers.#.mamba.A_log", "mamba_n_heads", "", "@linear_attention"},
    {Kind::kVector, "model.layers.#.mamba.D", "mamba_n_heads", "", "@linear_attention"},
    {Kind::kVector, "model.layers.#.mamba.dt_bias", "mamba_n_heads", "", "@linear_attention"},
    {Kind::kConvolution, "model.layers.#.mamba.conv1d",
     "mamba_expand*hidden_size+2*mamba_n_groups*mamba_d_state", "mamba_d_conv", "@linear_attention",
     "mamba_conv_bias"},
    {Kind::kLinear, "model.layers.#.mamba.in_proj",
     "2*mamba_expand*hidden_size+2*mamba_n_groups*mamba_d_state+mamba_n_heads", "hidden_size",
     "@linear_attention", "mamba_proj_bias"},
    {Kind::kNorm, "model.layers.#.mamba.norm", kInner, "", "@linear_attention"},
    {Kind::kLinear, "model.layers.#.mamba.out_proj", "hidden_size", kInner, "@linear_attention",
     "mamba_proj_bias"},
    {Kind::kRouter, "model.layers.#.block_sparse_moe.router.layer", "num_local_experts", "hidden_size",
     "num_local_experts"},
    {Kind::kRowStack, "model.layers.#.block_sparse_moe.input_linear.weight", "2*intermediate_size",
     "hidden_size", "num_local_experts"},
    {Kind::kRowStack, "model.layers.#.block_sparse_moe.output_linear.weight", "hidden_size",
     "intermediate_size", "num_local_experts"},
    {Kind::kLinear, "model.layers.#.shared_mlp.input_linear", "2*shared_intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.shared_mlp.output_linear", "hidden_size", "shared_intermediate_size"},
};

/// Nemotron-H: each layer is one of mamba, attention, experts and an MLP.
std::string_view nemotron_mixer(const FamilySizes& sizes, int64_t layer) {
  const std::string_view pattern = sizes.text("hybrid_override_pattern");
  std::string_view said = sizes.text("layers_block_type", layer);
  if (said.empty()) said = sizes.text("layer_types", layer);
  if (said.empty() && layer < static_cast<int64_t>(pattern.size()))
    said = pattern.substr(static_cast<size_t>(layer), 1);
  if (said == "M" || said == "linear_attention") return "mamba";
  if (said == "*" || said == "full_attention") return "attention";
  if (said == "E") return "moe";
  if (said == "-") return "mlp";
  return said;
}
constexpr const char* kNemotronWidth = "moe_latent_size";
constexpr FamilyParameter kNemotronFrame[] = {
    {Kind::kEmbedding, "backbone.embeddings", "vocab_size", "hidden_size"},
    {Kind::kNorm, "backbone.norm_f", "hidden_size"},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may"},
    {Kind::kNorm, "backbone.layers.#.norm", "hidden_size"},
    {Kind::kLinear, "backbone.layers.#.mixer.q_proj", "num_attention_heads*head_dim", "hidden_size",
     "@attention", "attention_bias"},
    {Kind::kLinear, "backbone.layers.#.mixer.k_proj", "num_key_value_heads*head_dim", "hidden_size",
     "@attention", "attention_bias"},
    {Kind::kLinear, "backbone.layers.#.mixer.v_proj", "num_key_value_heads*head_dim", "hidden_size",
     "@attention", "attention_bias"},
    {Kind::kLinear, "backbone.layers.#.mixer.o_proj", "hidden_size", "num_attention_heads*head_dim",
     "@attention", "attention_bias"},
    {Kind::kLinear, "backbone.layers.#.mixer.up_proj", "intermediate_size", "hidden_size", "@mlp",
     "mlp_bias"},
    {Kind::kLinear, "backbone.layers.#.mixer.down_proj", "hidden_size", "intermediate_size", "@mlp",
     "mlp_bias"},
};
constexpr FamilyParameter kNemotronMamba[] = {
    {Kind::kVector, "backbone.layers.#.mixer.A_log", "mamba_num_heads", "", "@mamba"},
    {Kind::kVector, "backbone.layers.#.mixer.D", "mamba_num_heads", "", "@mamba"},
    {Kind::kVector, "backbone.layers.#.mixer.dt_bias", "mamba_num_heads", "", "@mamba"},
    {Kind::kConvolution, "backbone.layers.#.mixer.conv1d",
     "mamba_num_heads*mamba_head_dim+2*n_groups*ssm_state_size", "conv_kernel", "@mamba", "use_conv_bias"},
    {Kind::kLinear, "backbone.layers.#.mixer.in_proj",
     "2*mamba_num_heads*mamba_head_dim+2*n_groups*ssm_state_size+mamba_num_heads", "hidden_size", "@mamba",
     "mamba_proj_bias"},
    {Kind::kNorm, "backbone.layers.#.mixer.norm", "mamba_num_heads*mamba_head_dim", "", "@mamba"},
    {Kind::kLinear, "backbone.layers.#.mixer.out_proj", "hidden_size", "mamba_num_heads*mamba_head_dim",
     "@mamba", "mamba_proj_bias"},
};
/// With a latent size experts see less than the layer's width.
constexpr FamilyParameter kNemotronExperts[] = {
    {Kind::kRouter, "backbone.layers.#.mixer.gate", "n_routed_experts", "hidden_size", "@moe"},
    {Kind::kVector, "backbone.layers.#.mixer.gate.e_score_correction_bias", "n_routed_experts", "", "@moe"},
    {Kind::kLinear, "backbone.layers.#.mixer.experts.#.up_proj", "moe_intermediate_size", kNemotronWidth,
     "@moe"},
    {Kind::kLinear, "backbone.layers.#.mixer.experts.#.down_proj", kNemotronWidth, "moe_intermediate_size",
     "@moe"},
    {Kind::kLinear, "backbone.layers.#.mixer.shared_experts.up_proj", "moe_shared_expert_intermediate_size",
     "hidden_size", "@moe"},
    {Kind::kLinear, "backbone.layers.#.mixer.shared_experts.down_proj", "hidden_size",
     "moe_shared_expert_intermediate_size", "@moe"},
    {Kind::kLinear, "backbone.layers.#.mixer.fc1_latent_proj", "moe_latent_size", "hidden_size", "@moe may"},
    {Kind::kLinear, "backbone.layers.#.mixer.fc2_latent_proj", "hidden_size", "moe_latent_size", "@moe may"},
};

/// A draft is two layers: attention, then experts.
constexpr FamilyParameter kNemotronDraftFirst[] = {
    {Kind::kLinear, "mtp.layers.#.eh_proj", "hidden_size", "2*hidden_size"},
    {Kind::kNorm, "mtp.layers.#.enorm", "hidden_size"},
    {Kind::kNorm, "mtp.layers.#.hnorm", "hidden_size"},
};
constexpr FamilyParameter kNemotronDraftLast[] = {
    {Kind::kNorm, "mtp.layers.#.final_layernorm", "hidden_size"},
};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"jamba"},
     .parameters = {kJamba, kFullAttention, kJambaMixer},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 65536,
       "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
       "num_experts": "num_local_experts", "num_local_experts": 16, "num_experts_per_tok": 2,
       "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1,
       "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true,
       "mamba_proj_bias": false, "tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .mlp = jamba_mlp,
     .mixer = jamba_mixer,
     .mlp_keys = "expert_layer_period, expert_layer_offset",
     .mixer_keys = "attn_layer_period, attn_layer_offset",
     .stacks = kApart},
    {.model_types = {"granitemoehybrid"},
     .parameters = {kFrame, kTwoNorms, kGraniteAttention, kGraniteHybrid},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000,
       "num_hidden_layers": 32, "num_attention_heads": 32, "attention_bias": false, "num_local_experts": 8,
       "num_experts_per_tok": 2, "shared_intermediate_size": 1024, "mamba_n_heads": 128,
       "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2,
       "mamba_conv_bias": true, "mamba_proj_bias": false, "tie_word_embeddings": false})",
     .experts = "num_local_experts",
     .top_k = "num_experts_per_tok",
     .mixer = mixer_by_types,
     .mixer_keys = "layer_types",
     .is_open = true,
     .stacks = kRowStacks},
    {.model_types = {"nemotron_h"},
     .parameters = {kNemotronFrame, kNemotronMamba, kNemotronExperts},
     .defaults =
         R"({"moe_latent_size": "hidden_size", "hidden_size": 4096, "intermediate_size": 21504, "vocab_size": 131072,
       "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "ssm_state_size": 128,
       "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4, "n_routed_experts": 8,
       "num_experts_per_tok": 2, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
       "attention_bias": false, "mlp_bias": false,
       "use_conv_bias": true, "mamba_proj_bias": false, "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mixer = nemotron_mixer,
     .mixer_keys = "layers_block_type, hybrid_override_pattern",
     .is_open = true,
     .router = grouped_sigmoid(1),
     .parts = {{{.parameters = kNemotronDraftFirst,
                 .layers = "mtp.layers.#.",
                 .count = "num_nextn_predict_layers",
                 .repeats_layers = true,
                 .mixer = "attention"},
                {.parameters = kNemotronDraftLast,
                 .layers = "mtp.layers.#.",
                 .count = "num_nextn_predict_layers",
                 .first = "1",
                 .repeats_layers = true,
                 .mixer = "moe"}}}},
};

}  // namespace
}  // namespace families::mamba

std::span<const FamilyShapes> mamba_families() { return families::mamba::kFamilies; }

}  // namespace twofour
