#include "formats/families/rows.h"

namespace twofour {
namespace families::hybrid {
namespace {

/// Attention whose queries come with gates of their own size.
constexpr FamilyParameter kGatedAttention[] = {
    {Kind::kLinear, "model.layers.#.self_attn.q_proj",
     "num_attention_heads*head_dim+attn_output_gate*num_attention_heads*head_dim", "hidden_size",
     "@full_attention", "attention_bias"},
    {Kind::kLinear, "model.layers.#.self_attn.k_proj", "num_key_value_heads*head_dim", "hidden_size",
     "@full_attention", "attention_bias"},
    {Kind::kLinear, "model.layers.#.self_attn.v_proj", "num_key_value_heads*head_dim", "hidden_size",
     "@full_attention", "attention_bias"},
    {Kind::kLinear, "model.layers.#.self_attn.o_proj", "hidden_size", "num_attention_heads*head_dim",
     "@full_attention", "attention_bias"},
    {Kind::kNorm, "model.layers.#.self_attn.q_norm", "head_dim", "", "@full_attention"},
    {Kind::kNorm, "model.layers.#.self_attn.k_norm", "head_dim", "", "@full_attention"},
};

constexpr const char* kValues = "linear_num_value_heads*linear_value_head_dim";
constexpr const char* kKeysAndValues =
    "2*linear_num_key_heads*linear_key_head_dim+linear_num_value_heads*linear_value_head_dim";

constexpr std::array<FamilyParameter, 5> delta_frame() {
  return {{
      {Kind::kVector, "model.layers.#.linear_attn.A_log", "linear_num_value_heads", "", "@linear_attention"},
      {Kind::kVector, "model.layers.#.linear_attn.dt_bias", "linear_num_value_heads", "",
       "@linear_attention"},
      {Kind::kConvolution, "model.layers.#.linear_attn.conv1d", kKeysAndValues, "linear_conv_kernel_dim",
       "@linear_attention"},
      {Kind::kNorm, "model.layers.#.linear_attn.norm", "linear_value_head_dim", "", "@linear_attention"},
      {Kind::kLinear, "model.layers.#.linear_attn.out_proj", "hidden_size", kValues, "@linear_attention"},
  }};
}
constexpr auto kDelta = delta_frame();
/// Qwen3-Next puts the projections of one layer into two.
constexpr FamilyParameter kQwen3NextDelta[] = {
    kDelta[0],
    kDelta[1],
    kDelta[2],
    kDelta[3],
    kDelta[4],
    {Kind::kLinear, "model.layers.#.linear_attn.in_proj_qkvz",
     "2*linear_num_key_heads*linear_key_head_dim+2*linear_num_value_heads*linear_value_head_dim",
     "hidden_size", "@linear_attention"},
    {Kind::kLinear, "model.layers.#.linear_attn.in_proj_ba", "2*linear_num_value_heads", "hidden_size",
     "@linear_attention"},
};
constexpr FamilyParameter kQwen35Delta[] = {
    kDelta[0],
    kDelta[1],
    kDelta[2],
    kDelta[3],
    kDelta[4],
    {Kind::kLinear, "model.layers.#.linear_attn.in_proj_qkv", kKeysAndValues, "hidden_size",
     "@linear_attention"},
    {Kind::kLinear, "model.layers.#.linear_attn.in_proj_z", kValues, "hidden_size", "@linear_attention"},
    {Kind::kLinear, "model.layers.#.linear_attn.in_proj_a", "linear_num_value_heads", "hidden_size",
     "@linear_attention"},
    {Kind::kLinear, "model.layers.#.linear_attn.in_proj_b", "linear_num_value_heads", "hidden_size",
     "@linear_attention"},
};

constexpr auto kExperts = experts("moe_intermediate_size");
constexpr FamilyParameter kQwenBlock[] = {
    {Kind::kRouter, "model.layers.#.mlp.gate", "num_experts", "hidden_size", "@sparse"},
    kExperts[0],
    kExperts[1],
    kExperts[2],
    {Kind::kRowStack, "model.layers.#.mlp.experts.gate_up_proj", "2*moe_intermediate_size", "hidden_size",
     "@sparse may"},
    {Kind::kRowStack, "model.layers.#.mlp.experts.down_proj", "hidden_size", "moe_intermediate_size",
     "@sparse may"},
    {Kind::kRouter, "model.layers.#.mlp.shared_expert_gate", "1", "hidden_size", "@sparse"},
    {Kind::kLinear, "model.layers.#.mlp.shared_expert.gate_proj", "shared_expert_intermediate_size",
     "hidden_size", "@sparse"},
    {Kind::kLinear, "model.layers.#.mlp.shared_expert.up_proj", "shared_expert_intermediate_size",
     "hidden_size", "@sparse"},
    {Kind::kLinear, "model.layers.#.mlp.shared_expert.down_proj", "hidden_size",
     "shared_expert_intermediate_size", "@sparse"},
};
std::string_view all_sparse(const FamilySizes&, int64_t) { return "sparse"; }

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
constexpr auto kFullAttention = attention(nullptr, nullptr, "@full_attention");
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

/// LFM2: short convolutions between layers of attention.
std::string_view lfm2_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view said = sizes.text("layer_types", layer); !said.empty()) return said;
  return sizes.lists("full_attn_idxs", layer) ? "full_attention" : "conv";
}
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

/// Gemma-4: sizes of attention are in per_layer_config or global_head_dim too, and left open.
constexpr FamilyParameter kGemma4[] = {
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

/// MiniMax-Text-01: lightning attention between layers of full attention.
constexpr FamilyParameter kMiniMax[] = {
    {Kind::kRouter, "model.layers.#.block_sparse_moe.gate", "num_local_experts", "hidden_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w1", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w3", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w2", "hidden_size", "intermediate_size"},
    {Kind::kLinear, "model.layers.#.self_attn.qkv_proj", "3*num_attention_heads*head_dim", "hidden_size",
     "@linear_attention"},
    {Kind::kLinear, "model.layers.#.self_attn.out_proj", "hidden_size", "num_attention_heads*head_dim",
     "@linear_attention"},
    {Kind::kLinear, "model.layers.#.self_attn.output_gate", "num_attention_heads*head_dim", "hidden_size",
     "@linear_attention"},
    {Kind::kNorm, "model.layers.#.self_attn.norm", "num_attention_heads*head_dim", "", "@linear_attention"},
};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"qwen3_next"},
     .parameters = {kFrame, kTwoNorms, kGatedAttention, kQwen3NextDelta, kDenseMlp, kQwenBlock},
     .defaults =
         R"({"attn_output_gate": true, "hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 151936,
       "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
       "attention_bias": false, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
       "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1, "linear_num_key_heads": 16,
       "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
       "linear_conv_kernel_dim": 4, "tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_by_step,
     .mixer = mixer_by_types,
     .mlp_keys = "decoder_sparse_step, mlp_only_layers",
     .mixer_keys = "layer_types, full_attention_interval"},
    {.model_types = {"qwen3_5_moe_text"},
     .parameters = {kFrame, kTwoNorms, kGatedAttention, kQwen35Delta, kQwenBlock},
     .defaults =
         R"({"attn_output_gate": true, "hidden_size": 2048, "vocab_size": 248320, "num_hidden_layers": 40,
       "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "attention_bias": false,
       "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
       "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
       "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
       "tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .mlp = all_sparse,
     .mixer = mixer_by_types,
     .mixer_keys = "layer_types, full_attention_interval"},
    {.model_types = {"qwen3_5_text"},
     .parameters = {kFrame, kTwoNorms, kGatedAttention, kQwen35Delta, kMlp},
     .defaults =
         R"({"attn_output_gate": true, "hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 248320,
       "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
       "attention_bias": false, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
       "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
       "tie_word_embeddings": false})",
     .mixer = mixer_by_types,
     .mixer_keys = "layer_types, full_attention_interval"},
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
     .mixer_keys = "attn_layer_period, attn_layer_offset"},
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
     .mixer_keys = "layer_types"},
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
     .is_open = true},
    {.model_types = {"nemotron_h"},
     .parameters = {kNemotronFrame, kNemotronMamba, kNemotronExperts},
     .defaults =
         R"({"moe_latent_size": "hidden_size", "num_key_value_heads": 8, "attention_bias": false, "mlp_bias": false,
       "use_conv_bias": true, "mamba_proj_bias": false, "tie_word_embeddings": false})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mixer = nemotron_mixer,
     .mixer_keys = "layers_block_type, hybrid_override_pattern",
     .is_open = true},
    {.model_types = {"minimax"},
     .parameters = {kFrame, kTwoNorms, kFullAttention, kMiniMax},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000,
       "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
       "num_local_experts": "num_experts", "num_experts": 8, "num_experts_per_tok": 2,
       "tie_word_embeddings": false})",
     .experts = "num_local_experts",
     .top_k = "num_experts_per_tok",
     .mixer = mixer_by_types,
     .mixer_keys = "layer_types",
     .is_open = true},
    {.model_types = {"gemma4_text"},
     .parameters = {kFrame, kFourNorms, kMlp, kGemma4},
     .defaults = R"({"num_key_value_heads": 4, "head_dim": 256, "enable_moe_block": false,
       "tie_word_embeddings": true})",
     .experts = "num_experts",
     .top_k = "top_k_experts",
     .is_open = true},
};

}  // namespace
}  // namespace families::hybrid

std::span<const FamilyShapes> hybrid_families() { return families::hybrid::kFamilies; }

}  // namespace twofour
