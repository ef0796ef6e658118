#include "formats/families/rows.h"

// Families with linear attention between layers of full attention: Qwen3-Next, Qwen3.5, Kimi-Linear, Ling-3.0.

namespace twofour {
namespace families::delta {
namespace {

/// Attention that projects queries and their gates together. $1 is the size of both.
constexpr const char* kGated = R"(
  if @full_attention
  .self_attn.q_proj      linear [$1, hidden_size]  bias=attention_bias
  .self_attn.{k,v}_proj  linear [num_key_value_heads*head_dim, hidden_size]  bias=attention_bias
  .self_attn.o_proj      linear [hidden_size, num_attention_heads*head_dim]  bias=attention_bias
  .self_attn.{q,k}_norm  norm [head_dim]
)";
constexpr FamilyBlock kGatedAttention{
    kGated, {"num_attention_heads*head_dim+attn_output_gate*num_attention_heads*head_dim"}};
constexpr FamilyBlock kQwen4Attention{kGated, {"2*num_attention_heads*head_dim"}};

/// Qwen3-Next stores the projections of one layer as two matrices.
constexpr FamilyBlock kQwen3NextDelta{R"(
  KeysAndValues = 2*linear_num_key_heads*linear_key_head_dim+linear_num_value_heads*linear_value_head_dim
  All = 2*linear_num_key_heads*linear_key_head_dim+2*linear_num_value_heads*linear_value_head_dim
  if @linear_attention
  .linear_attn.in_proj_qkvz     linear [All, hidden_size]
  .linear_attn.in_proj_ba       linear [2*linear_num_value_heads, hidden_size]
  .linear_attn.conv1d           convolution [KeysAndValues, linear_conv_kernel_dim]
  .linear_attn.{A_log,dt_bias}  vector [linear_num_value_heads]
  .linear_attn.norm             norm [linear_value_head_dim]
  .linear_attn.out_proj         linear [hidden_size, linear_num_value_heads*linear_value_head_dim]
)"};
constexpr FamilyBlock kQwen35Delta{R"(
  KeysAndValues = 2*linear_num_key_heads*linear_key_head_dim+linear_num_value_heads*linear_value_head_dim
  Values = linear_num_value_heads*linear_value_head_dim
  if @linear_attention
  .linear_attn.{A_log,dt_bias}  vector [linear_num_value_heads]
  .linear_attn.conv1d           convolution [KeysAndValues, linear_conv_kernel_dim]
  .linear_attn.norm             norm [linear_value_head_dim]
  .linear_attn.out_proj         linear [hidden_size, Values]
  .linear_attn.in_proj_qkv      linear [KeysAndValues, hidden_size]
  .linear_attn.in_proj_z        linear [Values, hidden_size]
  .linear_attn.in_proj_{a,b}    linear [linear_num_value_heads, hidden_size]
)"};

std::string_view all_sparse(const FamilySizes&, int64_t) { return "sparse"; }

// The tower that reads images. Its sizes are in vision_config.
constexpr FamilyBlock kVision{R"(
  . = model.visual.blocks.#
  Width = vision_config.hidden_size
  Merged = vision_config.spatial_merge_size*vision_config.spatial_merge_size*vision_config.hidden_size
  model.visual.patch_embed.proj   two_patches [Width, vision_config.patch_size]  bias
  model.visual.pos_embed          embedding [vision_config.num_position_embeddings, Width]
  model.visual.merger.norm        norm [Width]  bias
  model.visual.merger.linear_fc1  linear [Merged, Merged]  bias
  model.visual.merger.linear_fc2  linear [vision_config.out_hidden_size, Merged]  bias
  .{norm1,norm2}                  norm [Width]  bias
  .attn.qkv                       linear [3*vision_config.hidden_size, Width]  bias
  .attn.proj                      linear [Width, Width]  bias
  .mlp.linear_{fc1,~fc2}          linear [vision_config.intermediate_size, Width]  bias
)"};
constexpr FamilyPart kTower{.parameters = kVision,
                            .layers = "model.visual.blocks.#.",
                            .count = "vision_config.depth",
                            .is_tower = true};

constexpr FamilyBlock kDraft{R"(
  mtp.fc                                               linear [hidden_size, 2*hidden_size]
  mtp.{norm,pre_fc_norm_embedding,pre_fc_norm_hidden}  norm [hidden_size]
)"};
constexpr FamilyPart draft(const FamilyBlock& parameters, const char* mlp) {
  return {.parameters = parameters,
          .layers = "mtp.layers.#.",
          .count = "mtp_num_hidden_layers",
          .repeats_layers = true,
          .mlp = mlp,
          .mixer = "full_attention"};
}

// Qwen4-Exp. It has several residual streams, a sparse-attention indexer, and tables of n-grams. Source of
// names and sizes: modeling_qwen4_exp.py.
constexpr const char* kHyperConnection = R"(
  Streams = hc_count*hidden_size
  .$1_hyper_connection.hc_norm                      norm [Streams]
  .$1_hyper_connection.input_mix_weight_{down,~up}  linear [hc_lowrank, Streams]
  .$1_hyper_connection.block_inject_weight          linear [hc_count, Streams]
)";
constexpr FamilyBlock kAttentionStreams{kHyperConnection, {"attn"}};
constexpr FamilyBlock kMlpStreams{kHyperConnection, {"mlp"}};
constexpr FamilyBlock kQwen4{R"(
  Streams = hc_count*hidden_size
  QueriesAndKeys = indexer_n_heads*indexer_head_dim+indexer_kv_heads*indexer_head_dim
  model.embed_tokens                                        embedding [vocab_size, hidden_size]
  lm_head                                                   linear [vocab_size, hidden_size]  may
  model.hyper_connection_mixer.hc_norm                      norm [Streams]
  model.hyper_connection_mixer.input_mix_weight_{down,~up}  linear [hc_lowrank, Streams]
  if @full_attention indexer_n_heads
  .self_attn.indexer.index_qk_proj                          linear [QueriesAndKeys, hidden_size]
  .self_attn.indexer.{q,k}_layernorm                        norm [indexer_head_dim]
  if ple_layer_ids:1
  .ple.key_proj                                             linear [Streams, ple_embed_dim]
  .ple.value_proj                                           linear [hidden_size, ple_embed_dim]
  .ple.norm_{key,query,conv}                                norm [Streams]
  .ple.conv1d                                               convolution [Streams, ple_conv_kernel_size]
  .ple.ple_embedding.{layer_multipliers,ngram_heads_offsets,ngram_heads_vocab_sizes}  any  may
)"};
/// Tables of n-grams. Rows refers to the whole table. The hash of each head has a prime number of values,
/// about ngram_vocab_size_base.
constexpr FamilyBlock kNgrams{R"(
  Rows = 2*heads_per_ngram*ngram_vocab_size_base/split_ngram_parts
  if ple_layer_ids:1
  .ple.ple_embedding.ngram_embedding.shard_#  embedding [Rows, ple_embed_dim/heads_per_ngram/2]
)"};
constexpr FamilyBlock kQwen4Draft{R"(
  Streams = hc_count*hidden_size
  mtp.fc_{embedding,hidden}                               linear [hidden_size, hidden_size]
  mtp.pre_fc_norm_embedding                               norm [hidden_size]
  mtp.pre_fc_norm_hidden                                  norm [Streams]
  mtp.hyper_connection_mixer.hc_norm                      norm [Streams]
  mtp.hyper_connection_mixer.input_mix_weight_{down,~up}  linear [hc_lowrank, Streams]
)"};

// Kimi-Linear, Kimi-K3 and Ling-3.0. They have linear attention by deltas between layers of latent attention.

/// full_attn_layers counts layers from one.
std::string_view kimi_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view configured = sizes.text("layer_types", layer); !configured.empty())
    return configured;
  return sizes.lists("linear_attn_config.full_attn_layers", layer + 1) ? "full_attention"
                                                                       : "linear_attention";
}

/// Source: modeling_kimi_linear.py. Source for Kimi-K3, whose gates have no low rank: the headers of its
/// files.
constexpr FamilyBlock kKimiDelta{R"(
  Width = linear_num_heads*linear_head_dim
  if @linear_attention
  .self_attn.{q,k,v}_proj    linear [Width, hidden_size]
  .self_attn.{q,k,v}_conv1d  convolution [Width, linear_conv_kernel_dim]
  .self_attn.f_a_proj        linear [linear_head_dim, hidden_size]
  .self_attn.f_b_proj        linear [Width, linear_head_dim]
  .self_attn.b_proj          linear [linear_num_heads, hidden_size]
  .self_attn.dt_bias         vector [Width]
  .self_attn.o_norm          norm [linear_head_dim]
  .self_attn.o_proj          linear [hidden_size, Width]
)"};
constexpr FamilyBlock kKimiGates{R"(
  Width = linear_num_heads*linear_head_dim
  if @linear_attention
  .self_attn.g_proj    linear [Width, hidden_size]  use_full_rank_gate
  .self_attn.A_log     vector [linear_head_dim]  use_full_rank_gate
  .self_attn.g_a_proj  linear [linear_head_dim, hidden_size]  !use_full_rank_gate
  .self_attn.g_b_proj  linear [Width, linear_head_dim]  !use_full_rank_gate
  // [1, 1, H, 1]
  .self_attn.A_log     any  !use_full_rank_gate
)"};
constexpr FamilyBlock kKimiLatent{kLatent, {"self_attn", "", "@full_attention"}};
constexpr FamilyBlock kKimiGate{R"(
  if @full_attention mla_use_output_gate
  .self_attn.g_proj  linear [num_attention_heads*v_head_dim, hidden_size]
)"};
constexpr FamilyBlock kKimiBlock{R"(
  Shared = num_shared_experts*moe_intermediate_size
  if @sparse
  .block_sparse_moe.gate                          router [num_experts, hidden_size]
  .block_sparse_moe.gate.e_score_correction_bias  vector [num_experts]
  .block_sparse_moe.shared_experts.{gate,up,~down}_proj  linear [Shared, hidden_size]  num_shared_experts
  if @sparse !routed_expert_hidden_size
  .block_sparse_moe.experts.#.{w1,w3,~w2}         linear [moe_intermediate_size, hidden_size]
  if @sparse routed_expert_hidden_size
  .block_sparse_moe.experts.#.{w1,w3,~w2}         linear [moe_intermediate_size, routed_expert_hidden_size]
)"};
/// Kimi-K3. The inputs of experts are narrower than the layer, and layers attend to residuals.
constexpr FamilyBlock kKimiK3{R"(
  if attn_res_block_size
  model.output_attn_res_norm                 norm [hidden_size]
  model.output_attn_res_proj                 linear [1, hidden_size]
  .self_attention_res_norm                   norm [hidden_size]
  .self_attention_res_proj                   linear [1, hidden_size]
  .mlp_res_norm                              norm [hidden_size]
  .mlp_res_proj                              linear [1, hidden_size]
  if @sparse routed_expert_hidden_size
  .block_sparse_moe.routed_expert_down_proj  linear [routed_expert_hidden_size, hidden_size]
  if @sparse latent_moe_use_norm
  .block_sparse_moe.routed_expert_norm       norm [routed_expert_hidden_size]
  if @sparse routed_expert_hidden_size
  .block_sparse_moe.routed_expert_up_proj    linear [hidden_size, routed_expert_hidden_size]
)"};
/// Source: vLLM 0.33, models/kimi_k3, kimi_k25_vit.py.
constexpr FamilyBlock kKimiVision{R"(
  . = vision_tower.encoder.blocks.#
  Width = vision_config.vt_hidden_size
  Merged = 4*vision_config.vt_hidden_size
  vision_tower.patch_embed.proj            patches [Width, vision_config.patch_size]
  vision_tower.patch_embed.pos_emb.weight  grid [vision_config.init_pos_emb_height, Width]
  vision_tower.encoder.final_layernorm     norm [Width]
  mm_projector.proj.0                      linear [Merged, Merged]
  mm_projector.proj.2                      linear [hidden_size, Merged]
  mm_projector.post_norm                   norm [hidden_size]
  .{norm0,norm1}                           norm [Width]
  .wqkv                                    linear [3*vision_config.qkv_hidden_size, Width]
  .wo                                      linear [Width, vision_config.qkv_hidden_size]
  .mlp.{fc0,~fc1}                          linear [vision_config.vt_intermediate_size, Width]
)"};

/// GLM-5.3-Flash. It has a sparse-attention indexer in layers of latent attention, and residual streams.
/// Source: modeling_glm5_next.py.
std::string_view glm5_mixer(const FamilySizes& sizes, int64_t layer) {
  const std::string_view configured = sizes.text("layer_types", layer);
  if (configured == "deepseek_sparse_attention") return "full_attention";
  if (!configured.empty()) return configured;
  return layer % 4 == 3 ? "full_attention" : "linear_attention";
}
constexpr FamilyBlock kGlm5Delta{R"(
  if @linear_attention
  .self_attn.A_log     vector [linear_num_heads]
  .self_attn.g_a_proj  linear [linear_head_dim, hidden_size]
  .self_attn.g_b_proj  linear [linear_num_heads*linear_head_dim, linear_head_dim]
)"};
constexpr FamilyBlock kGlm5Indexer{kIndexer, {"@full_attention indexer_types=full", "bias"}};
constexpr FamilyBlock kGlm5Pool{R"(
  if @full_attention indexer_types=full
  .self_attn.indexer.index_kpool_compress_ape   matrix [index_kpool, index_head_dim]
  .self_attn.indexer.index_kpool_compress_gate  matrix [index_head_dim, hidden_size]
)"};
constexpr FamilyBlock kGlm5Streams{kStreams, {"model.layers.#"}};
/// Ling-3.0. Source: vLLM 0.33, models/bailing_moe_v3.py.
std::string_view ling_mixer(const FamilySizes& sizes, int64_t layer) {
  const int64_t every = std::max<int64_t>(sizes.number("layer_group_size").value_or(1), 1);
  const int64_t layers = sizes.number("num_hidden_layers").value_or(0);
  const bool full = (layer + 1) % every == 0 || layer >= layers / every * every;
  return full ? "full_attention" : "linear_attention";
}
constexpr FamilyBlock kLing{R"(
  Width = num_attention_heads*head_dim
  Heads = num_attention_heads*qk_nope_head_dim+num_attention_heads*qk_rope_head_dim
  KeysAndValues = num_attention_heads*qk_nope_head_dim+num_attention_heads*v_head_dim
  model.word_embeddings          embedding [vocab_size, hidden_size]
  model.norm                     norm [hidden_size]
  lm_head                        linear [vocab_size, hidden_size]  may
  if @linear_attention
  .attention.{q,k,v,f,g}_proj    linear [Width, hidden_size]
  .attention.b_proj              linear [num_attention_heads, hidden_size]
  .attention.o_proj              linear [hidden_size, Width]
  .attention.{q,k,v}_conv1d      convolution [Width, short_conv_kernel_size]
  .attention.A_log               vector [num_attention_heads]
  .attention.dt_bias             vector [Width]
  .attention.o_norm              norm [head_dim]
  if @full_attention
  .attention.q_proj              linear [Heads, hidden_size]  !q_lora_rank
  .attention.kv_a_proj_with_mqa  linear [kv_lora_rank+qk_rope_head_dim, hidden_size]
  .attention.kv_a_layernorm      norm [kv_lora_rank]
  .attention.kv_b_proj           linear [KeysAndValues, kv_lora_rank]
  if @full_attention gated_attention_proj_granularity_type=head_wise
  .attention.g_proj              linear [num_attention_heads, hidden_size]
  if @full_attention
  .attention.dense               linear [hidden_size, num_attention_heads*v_head_dim]
)"};
constexpr FamilyBlock kLingBlock{R"(
  Shared = num_shared_experts*moe_shared_expert_intermediate_size
  .mlp.gate                                 router [num_experts, hidden_size]  @sparse
  .mlp.gate.expert_bias                     vector [num_experts]  @sparse moe_router_enable_expert_bias
  .mlp.shared_experts.{gate,up,~down}_proj  linear [Shared, hidden_size]  @sparse num_shared_experts
  .eh_proj                                  linear [hidden_size, 2*hidden_size]  @draft
  .{enorm,hnorm,final_layernorm}            norm [hidden_size]  @draft
)"};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"qwen3_next"},
     .parameters = {kFrame, kTwoNorms, kQwen3NextDelta, kGatedAttention, kDenseMlp, kPlainGate,
                    kSparseExperts, kExpertStacks, kSharedExpert},
     .defaults = R"(attn_output_gate=true hidden_size=2048 intermediate_size=5632 vocab_size=151936
       num_hidden_layers=48 num_attention_heads=16 num_key_value_heads=2 head_dim=256 attention_bias=false
       num_experts=512 num_experts_per_tok=10 moe_intermediate_size=512 shared_expert_intermediate_size=512
       decoder_sparse_step=1 linear_num_key_heads=16 linear_num_value_heads=32 linear_key_head_dim=128
       linear_value_head_dim=128 linear_conv_kernel_dim=4 tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_by_step, "decoder_sparse_step, mlp_only_layers"},
     .mixer = {mixer_by_types, "layer_types, full_attention_interval"},
     .router = {{.renormalized = Renormalized::kUnlessConfigured}},
     .traits = {{.rotated = 0.25, .positions = 32768}},
     .norms_add_one = true,
     .activations = FamilyActivations::kSilu},
    {.model_types = {"qwen3_5_moe_text"},
     .parameters = {kFrame, kTwoNorms, kGatedAttention, kQwen35Delta, kPlainGate, kSparseExperts,
                    kExpertStacks, kSharedExpert},
     .defaults = R"(attn_output_gate=true hidden_size=2048 vocab_size=248320 num_hidden_layers=40
       num_attention_heads=16 num_key_value_heads=2 head_dim=256 attention_bias=false num_experts=256
       num_experts_per_tok=8 moe_intermediate_size=512 shared_expert_intermediate_size=512
       linear_num_key_heads=16 linear_num_value_heads=32 linear_key_head_dim=128 linear_value_head_dim=128
       linear_conv_kernel_dim=4 tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {all_sparse},
     .mixer = {mixer_by_types, "layer_types, full_attention_interval"},
     .outer_type = "qwen3_5_moe",
     .router = kSoftmax,
     .traits = {{.rotated = 0.25, .positions = 32768, .nested = true}},
     .parts = {{draft(kDraft, "sparse"), kTower}},
     .norms_add_one = true},
    {.model_types = {"qwen3_5_text"},
     .parameters = {kFrame, kTwoNorms, kGatedAttention, kQwen35Delta, kMlp},
     .defaults = R"(attn_output_gate=true hidden_size=4096 intermediate_size=12288 vocab_size=248320
       num_hidden_layers=32 num_attention_heads=16 num_key_value_heads=4 head_dim=256 attention_bias=false
       linear_num_key_heads=16 linear_num_value_heads=32 linear_key_head_dim=128 linear_value_head_dim=128
       linear_conv_kernel_dim=4 tie_word_embeddings=false)",
     .mixer = {mixer_by_types, "layer_types, full_attention_interval"},
     .traits = {{.rotated = 0.25, .positions = 32768, .nested = true}},
     .parts = {{draft(kDraft, ""), kTower}},
     .norms_add_one = true},
    {.model_types = {"qwen4_exp_text"},
     .parameters = {kQwen4, kQwen4Attention, kQwen35Delta, kAttentionStreams, kMlpStreams, kPlainGate,
                    kSparseExperts, kExpertStacks, kSharedExpert},
     .defaults = R"(hidden_size=2048 vocab_size=248320 num_hidden_layers=40 num_attention_heads=16
       num_key_value_heads=2 head_dim=256 attention_bias=false num_experts=512 num_experts_per_tok=10
       moe_intermediate_size=512 shared_expert_intermediate_size=512 linear_num_key_heads=16
       linear_num_value_heads=32 linear_key_head_dim=128 linear_value_head_dim=128 linear_conv_kernel_dim=4
       hc_count=4 hc_lowrank=320 ple_embed_dim=hidden_size ple_conv_kernel_size=4 tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {all_sparse},
     .mixer = {mixer_by_types, "layer_types, full_attention_interval"},
     .outer_type = "qwen4_exp",
     .parts = {{draft(kQwen4Draft, "sparse"),
                {.parameters = kNgrams, .count = "split_ngram_parts", .is_table = true},
                kTower}},
     .norms_add_one = true},
    {.model_types = {"kimi_linear"},
     .parameters = {kFrame, kTwoNorms, kKimiDelta, kKimiGates, kKimiLatent, kKimiGate, kKimiBlock, kDenseMlp,
                    kKimiK3},
     .defaults = R"(hidden_size=2304 intermediate_size=9216 vocab_size=163840 num_hidden_layers=27
       num_attention_heads=32 num_key_value_heads=32 moe_intermediate_size=1024
       num_experts=num_local_experts num_local_experts=256 num_experts_per_token=num_experts_per_tok
       num_experts_per_tok=8 num_shared_experts=n_shared_experts n_shared_experts=1 first_k_dense_replace=1
       kv_lora_rank=512 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128
       use_full_rank_gate=linear_attn_config.use_full_rank_gate
       linear_num_heads=linear_attn_config.num_heads linear_head_dim=linear_attn_config.head_dim
       linear_conv_kernel_dim=linear_attn_config.short_conv_kernel_size tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_token", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types, first_k_dense_replace"},
     .mixer = {kimi_mixer, "layer_types, linear_attn_config.full_attn_layers"},
     .outer_type = "kimi_k3",
     .parts = {{{.parameters = kKimiVision,
                 .layers = "vision_tower.encoder.blocks.#.",
                 .count = "vision_config.vt_num_hidden_layers",
                 .is_tower = true}}}},
    {.model_types = {"glm5_next_text"},
     .parameters = {kFrame, kTwoNorms, kKimiDelta, kKimiLatent, kKimiGate, kGlm5Delta, kGlm5Indexer,
                    kGlm5Pool, kGlm5Streams, kRoutedGate, kSharedExperts, kSparseExperts, kDenseMlp},
     .defaults = R"(hidden_size=4096 intermediate_size=12288 vocab_size=154880 num_hidden_layers=45
       num_attention_heads=64 moe_intermediate_size=2048 n_routed_experts=num_local_experts
       num_local_experts=288 num_experts_per_tok=8 n_shared_experts=1 first_k_dense_replace=3
       kv_lora_rank=512 q_lora_rank=1536 qk_nope_head_dim=256 qk_rope_head_dim=0 v_head_dim=256
       index_head_dim=128 index_n_heads=32 index_kpool=16 hc_mult=4
       linear_num_heads=linear_attn_config.num_heads linear_head_dim=linear_attn_config.head_dim
       linear_conv_kernel_dim=linear_attn_config.short_conv_kernel_size tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types"},
     .mixer = {glm5_mixer, "layer_types"},
     .outer_type = "glm5_next"},
    {.model_types = {"bailing_hybrid"},
     .parameters = {kLing, kTwoNorms, kLingBlock, kDenseMlp, kSparseExperts},
     .defaults = "tie_word_embeddings=false",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "first_k_dense_replace"},
     .mixer = {ling_mixer, "layer_group_size"},
     .drafts = "num_nextn_predict_layers",
     .class_names = {"bailing_moe_v3"},
     .lists_ends = true},
};

}  // namespace
}  // namespace families::delta

std::span<const FamilyShapes> delta_families() { return families::delta::kFamilies; }

}  // namespace twofour
