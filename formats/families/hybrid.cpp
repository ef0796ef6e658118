#include "formats/families/rows.h"

// Families whose layers are of several kinds: convolutions in LFM2; Mamba in Jamba, Granite 4 and Nemotron-H;
// lightning or sparse attention in MiniMax; a second MLP beside the experts in Gemma-4.

namespace twofour {
namespace families::hybrid {
namespace {

/// LFM2. It has short convolutions between layers of attention.
std::string_view lfm2_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view configured = sizes.text("layer_types", layer); !configured.empty())
    return configured;
  const bool all = sizes.stated("full_attn_idxs") == nullptr;
  return all || sizes.lists("full_attn_idxs", layer) ? "full_attention" : "conv";
}
/// The width of the MLP is left open, because it follows from intermediate_size and three more keys by
/// fractions.
constexpr FamilyBlock kLfm2Mlp{".feed_forward.{w1,w3,~w2}  linear [?, hidden_size]"};
std::string_view lfm2_mlp(const FamilySizes& sizes, int64_t layer) {
  return layer < sizes.number("num_dense_layers").value_or(0) ? "dense" : "sparse";
}
constexpr FamilyBlock kLfm2Frame{R"(
  model.embed_tokens    embedding [vocab_size, hidden_size]
  model.embedding_norm  norm [hidden_size]
  lm_head               linear [vocab_size, hidden_size]  may
  .{operator,ffn}_norm  norm [hidden_size]
)"};
constexpr FamilyBlock kLfm2Mixer{R"(
  .conv.conv                  convolution [hidden_size, conv_L_cache]  @conv bias=conv_bias
  .conv.in_proj               linear [3*hidden_size, hidden_size]  @conv bias=conv_bias
  .conv.out_proj              linear [hidden_size, hidden_size]  @conv bias=conv_bias
  if @full_attention
  .self_attn.q_proj           linear [num_attention_heads*head_dim, hidden_size]
  .self_attn.{k,v}_proj       linear [num_key_value_heads*head_dim, hidden_size]
  .self_attn.out_proj         linear [hidden_size, num_attention_heads*head_dim]
  .self_attn.{q,k}_layernorm  norm [head_dim]
)"};
constexpr FamilyBlock kLfm2Block{R"(
  .feed_forward.{w1,w3,~w2}                     linear [intermediate_size, hidden_size]  @dense
  if @sparse
  .feed_forward.gate                            router [num_experts, hidden_size]
  .feed_forward.expert_bias                     vector [num_experts]  use_expert_bias
  .feed_forward.experts.#.{w1,w3,~w2}           linear [moe_intermediate_size, hidden_size]
  // llm-compressor uses these names.
  .feed_forward.experts.#.{gate,up,~down}_proj  linear [moe_intermediate_size, hidden_size]
)"};

/// Gemma-4. The sizes of attention also depend on per_layer_config or global_head_dim, so they are left open.
constexpr FamilyBlock kGemma4{R"(
  if hidden_size_per_layer_input
  .post_per_layer_input_norm           norm [hidden_size]
  .per_layer_{input_gate,~projection}  linear [hidden_size_per_layer_input, hidden_size]
  if enable_moe_block
  .router.scale                        vector [hidden_size]
  .router.per_expert_scale             vector [num_experts]
  .router.proj                         router [num_experts, hidden_size]
  .experts.gate_up_proj                row_stack [2*moe_intermediate_size, hidden_size]
  .experts.down_proj                   row_stack [hidden_size, moe_intermediate_size]
  .experts.#.{gate,up,~down}_proj      linear [moe_intermediate_size, hidden_size]
)"};

/// Jamba. Layers with attention and layers with experts recur with separate periods.
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
constexpr FamilyBlock kJamba{R"(
  model.embed_tokens                            embedding [vocab_size, hidden_size]
  model.final_layernorm                         norm [hidden_size]
  lm_head                                       linear [vocab_size, hidden_size]  may
  .{input,pre_ff}_layernorm                     norm [hidden_size]
  .feed_forward.{gate,up,~down}_proj            linear [intermediate_size, hidden_size]  @dense
  .feed_forward.router                          router [num_experts, hidden_size]  @sparse
  .feed_forward.experts.#.{gate,up,~down}_proj  linear [intermediate_size, hidden_size]  @sparse
)"};
constexpr FamilyBlock kJambaAttention{kAttention, {"", "", "@full_attention"}};
constexpr FamilyBlock kJambaMixer{R"(
  if @mamba
  .mamba.A_log            matrix [mamba_expand*hidden_size, mamba_d_state]
  .mamba.D                vector [mamba_expand*hidden_size]
  .mamba.conv1d           convolution [mamba_expand*hidden_size, mamba_d_conv]  bias=mamba_conv_bias
  .mamba.in_proj          linear [2*mamba_expand*hidden_size, hidden_size]  bias=mamba_proj_bias
  .mamba.x_proj           linear [mamba_dt_rank+2*mamba_d_state, mamba_expand*hidden_size]
  .mamba.dt_proj          linear [mamba_expand*hidden_size, mamba_dt_rank]  bias
  .mamba.out_proj         linear [hidden_size, mamba_expand*hidden_size]  bias=mamba_proj_bias
  .mamba.dt_layernorm     norm [mamba_dt_rank]
  .mamba.{b,c}_layernorm  norm [mamba_d_state]
)"};

/// Granite 4. A layer has either mamba or attention, and either experts or only a shared MLP.
constexpr FamilyBlock kGraniteAttention{kAttention,
                                        {"bias=attention_bias", "bias=attention_bias", "@full_attention"}};
constexpr FamilyBlock kGraniteHybrid{R"(
  Convolved = mamba_expand*hidden_size+2*mamba_n_groups*mamba_d_state
  Projected = 2*mamba_expand*hidden_size+2*mamba_n_groups*mamba_d_state+mamba_n_heads
  if @linear_attention
  .mamba.{A_log,D,dt_bias}                vector [mamba_n_heads]
  .mamba.conv1d                           convolution [Convolved, mamba_d_conv]  bias=mamba_conv_bias
  .mamba.in_proj                          linear [Projected, hidden_size]  bias=mamba_proj_bias
  .mamba.norm                             norm [mamba_expand*hidden_size]
  .mamba.out_proj                         linear [hidden_size, mamba_expand*hidden_size]  bias=mamba_proj_bias
  if num_local_experts
  .block_sparse_moe.router.layer          router [num_local_experts, hidden_size]
  .block_sparse_moe.input_linear.weight   row_stack [2*intermediate_size, hidden_size]
  .block_sparse_moe.output_linear.weight  row_stack [hidden_size, intermediate_size]
  if
  .shared_mlp.input_linear                linear [2*shared_intermediate_size, hidden_size]
  .shared_mlp.output_linear               linear [hidden_size, shared_intermediate_size]
)"};

/// Nemotron-H. Each layer is either mamba, attention, experts or an MLP.
std::string_view nemotron_mixer(const FamilySizes& sizes, int64_t layer) {
  const std::string_view pattern = sizes.text("hybrid_override_pattern");
  std::string_view configured = sizes.text("layers_block_type", layer);
  if (configured.empty()) configured = sizes.text("layer_types", layer);
  if (configured.empty() && layer < static_cast<int64_t>(pattern.size()))
    configured = pattern.substr(static_cast<size_t>(layer), 1);
  if (configured == "M" || configured == "linear_attention") return "mamba";
  if (configured == "*" || configured == "full_attention") return "attention";
  if (configured == "E") return "moe";
  if (configured == "-") return "mlp";
  return configured;
}
constexpr FamilyBlock kNemotronFrame{R"(
  . = backbone.layers.#
  backbone.embeddings     embedding [vocab_size, hidden_size]
  backbone.norm_f         norm [hidden_size]
  lm_head                 linear [vocab_size, hidden_size]  may
  .norm                   norm [hidden_size]
  .mixer.q_proj           linear [num_attention_heads*head_dim, hidden_size]  @attention bias=attention_bias
  .mixer.{k,v}_proj       linear [num_key_value_heads*head_dim, hidden_size]  @attention bias=attention_bias
  .mixer.o_proj           linear [hidden_size, num_attention_heads*head_dim]  @attention bias=attention_bias
  .mixer.{up,~down}_proj  linear [intermediate_size, hidden_size]  @mlp bias=mlp_bias
)"};
constexpr FamilyBlock kNemotronMamba{R"(
  . = backbone.layers.#
  Convolved = mamba_num_heads*mamba_head_dim+2*n_groups*ssm_state_size
  Projected = 2*mamba_num_heads*mamba_head_dim+2*n_groups*ssm_state_size+mamba_num_heads
  if @mamba
  .mixer.{A_log,D,dt_bias}  vector [mamba_num_heads]
  .mixer.conv1d             convolution [Convolved, conv_kernel]  bias=use_conv_bias
  .mixer.in_proj            linear [Projected, hidden_size]  bias=use_bias
  .mixer.norm               norm [mamba_num_heads*mamba_head_dim]
  .mixer.out_proj           linear [hidden_size, mamba_num_heads*mamba_head_dim]  bias=use_bias
)"};
/// If the config has a latent size, the inputs of experts are narrower than the layer.
constexpr FamilyBlock kNemotronExperts{R"(
  . = backbone.layers.#
  Shared = moe_shared_expert_intermediate_size
  if @moe
  .mixer.gate                            router [n_routed_experts, hidden_size]
  .mixer.gate.e_score_correction_bias    vector [n_routed_experts]
  .mixer.experts.#.{up,~down}_proj       linear [moe_intermediate_size, moe_latent_size]
  .mixer.shared_experts.{up,~down}_proj  linear [Shared, hidden_size]  bias=mlp_bias
  .mixer.{fc1,~fc2}_latent_proj          linear [moe_latent_size, hidden_size]  may bias=mlp_bias
)"};

/// A draft has two layers: attention first, then experts.
constexpr FamilyBlock kNemotronDraftFirst{R"(
  . = mtp.layers.#
  .eh_proj        linear [hidden_size, 2*hidden_size]
  .{enorm,hnorm}  norm [hidden_size]
)"};
constexpr FamilyBlock kNemotronDraftLast{"mtp.layers.#.final_layernorm  norm [hidden_size]"};

// MiniMax-Text-01 and MiniMax-M3.

/// MiniMax-Text-01. It has lightning attention between layers of full attention.
constexpr FamilyBlock kFullAttention{kAttention, {"", "", "@full_attention"}};
constexpr FamilyBlock kMiniMax{R"(
  .block_sparse_moe.gate                   router [num_local_experts, hidden_size]
  .block_sparse_moe.experts.#.{w1,w3,~w2}  linear [intermediate_size, hidden_size]
  if @linear_attention
  .self_attn.qkv_proj                      linear [3*num_attention_heads*head_dim, hidden_size]
  .self_attn.out_proj                      linear [hidden_size, num_attention_heads*head_dim]
  .self_attn.output_gate                   linear [num_attention_heads*head_dim, hidden_size]
  .self_attn.norm                          norm [num_attention_heads*head_dim]
)"};

/// MiniMax-M3. It has layers with a sparse-attention indexer, and a few dense layers. The names are those of
/// the published files; transformers renames them (conversion_mapping.py).
std::string_view m3_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view configured = sizes.text("layer_types", layer); !configured.empty())
    return configured;
  const bool sparse = sizes.number("sparse_attention_config.sparse_attention_freq", layer).value_or(0) != 0;
  return sparse ? "minimax_m3_sparse" : "full_attention";
}
constexpr FamilyBlock kM3Block{R"(
  if @minimax_m3_sparse
  .self_attn.index_q_proj                                linear [index_n_heads*index_head_dim, hidden_size]
  .self_attn.index_k_proj                                linear [index_head_dim, hidden_size]
  .self_attn.index_{q,k}_norm                            norm [index_head_dim]
  if @dense
  .mlp.{gate,up,~down}_proj                              linear [dense_intermediate_size, hidden_size]
  if @sparse
  .block_sparse_moe.gate                                 router [num_local_experts, hidden_size]
  .block_sparse_moe.e_score_correction_bias              vector [num_local_experts]
  .block_sparse_moe.shared_experts.{gate,up,~down}_proj  linear [shared_intermediate_size, hidden_size]
  .block_sparse_moe.experts.#.{w1,w3,~w2}                linear [intermediate_size, hidden_size]
)"};
/// The parameters of a draft other than those of its layer, which is a layer with experts. Source: vLLM 0.33,
/// models/minimax_m3.
constexpr FamilyBlock kM3Draft{R"(
  . = model.mtp.layers.#
  .{enorm,hnorm}    norm [hidden_size]
  .eh_proj          linear [hidden_size, 2*hidden_size]
  .final_layernorm  norm [hidden_size]
)"};
constexpr FamilyBlock kM3Vision{R"(
  . = vision_tower.vision_model.encoder.layers.#
  Width = vision_config.hidden_size
  multi_modal_projector.linear_1                        linear [projector_hidden_size, Width]  bias
  multi_modal_projector.linear_2                        linear [hidden_size, projector_hidden_size]  bias
  patch_merge_mlp.linear_1                              linear [projector_hidden_size, 4*hidden_size]  bias
  patch_merge_mlp.linear_2                              linear [hidden_size, projector_hidden_size]  bias
  vision_tower.vision_model.embeddings.patch_embedding  two_patches [Width, vision_config.patch_size]
  vision_tower.vision_model.pre_layrnorm                norm [Width]  bias
  .layer_{norm1,norm2}                                  norm [Width]  bias
  .self_attn.{q,k,v,out}_proj                           linear [Width, Width]  bias
  .mlp.{fc1,~fc2}                                       linear [vision_config.intermediate_size, Width]  bias
)"};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"lfm2"},
     .parameters = {kLfm2Frame, kLfm2Mixer, kLfm2Mlp},
     .defaults = R"(hidden_size=2560 vocab_size=65536 num_hidden_layers=32 num_attention_heads=32
       num_key_value_heads=8 conv_bias=false conv_L_cache=3 tie_word_embeddings=true)",
     .mixer = {lfm2_mixer, "layer_types, full_attn_idxs"},
     .adjusts_width = true},
    {.model_types = {"lfm2_moe"},
     .parameters = {kLfm2Frame, kLfm2Mixer, kLfm2Block},
     .defaults = R"(hidden_size=2048 intermediate_size=7168 vocab_size=65536 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=8 num_experts=32 num_experts_per_tok=4
       moe_intermediate_size=1792 num_dense_layers=2 conv_bias=false conv_L_cache=3 use_expert_bias=true
       tie_word_embeddings=true)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {lfm2_mlp, "num_dense_layers"},
     .mixer = {lfm2_mixer, "layer_types"}},
    {.model_types = {"gemma4_text"},
     .parameters = {kFrame, kFourNorms, kMlp, kGemma4},
     .defaults = R"(num_key_value_heads=4 head_dim=256 enable_moe_block=false
       hidden_size_per_layer_input=256 tie_word_embeddings=true)",
     .experts = {"num_experts", "top_k_experts", kRowStacks},
     .is_open = true,
     .outer_type = "gemma4",
     .activations = FamilyActivations::kGelu},
    {.model_types = {"jamba"},
     .parameters = {kJamba, kJambaAttention, kJambaMixer},
     .defaults = R"(hidden_size=4096 intermediate_size=14336 vocab_size=65536 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=8 num_experts=num_local_experts num_local_experts=16
       num_experts_per_tok=2 attn_layer_period=8 attn_layer_offset=4 expert_layer_period=2
       expert_layer_offset=1 mamba_d_state=16 mamba_d_conv=4 mamba_expand=2 mamba_conv_bias=true
       mamba_proj_bias=false tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {jamba_mlp, "expert_layer_period, expert_layer_offset"},
     .mixer = {jamba_mixer, "attn_layer_period, attn_layer_offset"}},
    {.model_types = {"granitemoehybrid"},
     .parameters = {kFrame, kTwoNorms, kGraniteAttention, kGraniteHybrid},
     .defaults = R"(hidden_size=4096 intermediate_size=11008 vocab_size=32000 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false num_local_experts=8 num_experts_per_tok=2
       shared_intermediate_size=1024 mamba_n_heads=128 mamba_n_groups=1 mamba_d_state=256 mamba_d_conv=4
       mamba_expand=2 mamba_conv_bias=true mamba_proj_bias=false tie_word_embeddings=false)",
     .experts = {"num_local_experts", "num_experts_per_tok", kRowStacks},
     .mixer = {mixer_by_types, "layer_types"},
     .is_open = true},
    {.model_types = {"nemotron_h"},
     .parameters = {kNemotronFrame, kNemotronMamba, kNemotronExperts},
     .defaults = R"(moe_latent_size=hidden_size hidden_size=4096 intermediate_size=21504 vocab_size=131072
       num_attention_heads=32 num_key_value_heads=8 head_dim=128 ssm_state_size=128 mamba_num_heads=128
       mamba_head_dim=64 n_groups=8 conv_kernel=4 n_routed_experts=8 num_experts_per_tok=2
       moe_intermediate_size=7688 moe_shared_expert_intermediate_size=7688 attention_bias=false
       mlp_bias=false use_conv_bias=true use_bias=false tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok"},
     .mixer = {nemotron_mixer, "layers_block_type, hybrid_override_pattern"},
     .is_open = true,
     .router = grouped_sigmoid(1),
     .traits = {{.epsilon = 1e-5, .positions = 4096, .one_block = true}},
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
    {.model_types = {"minimax"},
     .parameters = {kFrame, kTwoNorms, kFullAttention, kMiniMax},
     .defaults = R"(hidden_size=4096 intermediate_size=14336 vocab_size=32000 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=8 num_local_experts=num_experts num_experts=8
       num_experts_per_tok=2 tie_word_embeddings=false)",
     .experts = {"num_local_experts", "num_experts_per_tok", kApart},
     .mixer = {mixer_by_types, "layer_types"},
     .is_open = true,
     .router = kSoftmax},
    {.model_types = {"minimax_m3_vl_text", "minimax_m3_vl"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kHeadNorms, kM3Block},
     .defaults = R"(hidden_size=6144 intermediate_size=3072 vocab_size=200064 num_hidden_layers=60
       num_attention_heads=64 num_key_value_heads=4 head_dim=128 num_local_experts=num_experts
       num_experts=128 num_experts_per_tok=4 dense_intermediate_size=12288 shared_intermediate_size=3072
       index_n_heads=sparse_attention_config.sparse_num_index_heads
       index_head_dim=sparse_attention_config.sparse_index_dim tie_word_embeddings=false)",
     .experts = {"num_local_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types, moe_layer_freq"},
     .mixer = {m3_mixer, "layer_types, sparse_attention_config.sparse_attention_freq"},
     .parts = {{{.parameters = kM3Draft,
                 .layers = "model.mtp.layers.#.transformer_layer.",
                 .count = "num_mtp_modules",
                 .repeats_layers = true,
                 .mlp = "sparse",
                 .mixer = "minimax_m3_sparse"},
                {.parameters = kM3Vision,
                 .layers = "vision_tower.vision_model.encoder.layers.#.",
                 .count = "vision_config.num_hidden_layers",
                 .is_tower = true}}},
     .norms_add_one = true},
};

}  // namespace
}  // namespace families::hybrid

std::span<const FamilyShapes> hybrid_families() { return families::hybrid::kFamilies; }

}  // namespace twofour
