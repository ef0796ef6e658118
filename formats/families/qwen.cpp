#include "formats/families/rows.h"

// Qwen3-Next, Qwen3.5 and Qwen4-Exp: linear attention between layers of full attention.

namespace twofour {
namespace families::qwen {
namespace {

/// Attention whose queries come with gates. Words: the size of both.
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

/// Qwen3-Next puts the projections of one layer into two.
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

// The tower that reads images. Sizes: vision_config.
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

// Qwen4-Exp: several streams of residuals, an index of tokens, tables of n-grams. Names and sizes:
// modeling_qwen4_exp.py.
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
/// Rows of the whole table: as many hashes of about ngram_vocab_size_base as there are heads, each a prime.
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
     .router = {{.renormalized = Renormalized::kUnlessSaid}},
     .norms_add_one = true},
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
     .parts = {{draft(kDraft, "sparse"), kTower}},
     .norms_add_one = true},
    {.model_types = {"qwen3_5_text"},
     .parameters = {kFrame, kTwoNorms, kGatedAttention, kQwen35Delta, kMlp},
     .defaults = R"(attn_output_gate=true hidden_size=4096 intermediate_size=12288 vocab_size=248320
       num_hidden_layers=32 num_attention_heads=16 num_key_value_heads=4 head_dim=256 attention_bias=false
       linear_num_key_heads=16 linear_num_value_heads=32 linear_key_head_dim=128 linear_value_head_dim=128
       linear_conv_kernel_dim=4 tie_word_embeddings=false)",
     .mixer = {mixer_by_types, "layer_types, full_attention_interval"},
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
};

}  // namespace
}  // namespace families::qwen

std::span<const FamilyShapes> qwen_families() { return families::qwen::kFamilies; }

}  // namespace twofour
