#include "formats/families/rows.h"

// Qwen3-Next, Qwen3.5 and Qwen4-Exp: linear attention between layers of full attention.

namespace twofour {
namespace families::qwen {
namespace {

constexpr const char* kFull = "@full_attention";

/// Attention whose queries come with gates of their own size.
constexpr std::array<FamilyParameter, 6> gated_attention(const char* queries) {
  return {{
      {Kind::kLinear, "model.layers.#.self_attn.q_proj", queries, "hidden_size", kFull, "attention_bias"},
      {Kind::kLinear, "model.layers.#.self_attn.k_proj", "num_key_value_heads*head_dim", "hidden_size", kFull,
       "attention_bias"},
      {Kind::kLinear, "model.layers.#.self_attn.v_proj", "num_key_value_heads*head_dim", "hidden_size", kFull,
       "attention_bias"},
      {Kind::kLinear, "model.layers.#.self_attn.o_proj", "hidden_size", "num_attention_heads*head_dim", kFull,
       "attention_bias"},
      {Kind::kNorm, "model.layers.#.self_attn.q_norm", "head_dim", "", kFull},
      {Kind::kNorm, "model.layers.#.self_attn.k_norm", "head_dim", "", kFull},
  }};
}
constexpr auto kGatedAttention =
    gated_attention("num_attention_heads*head_dim+attn_output_gate*num_attention_heads*head_dim");
constexpr auto kQwen4Attention = gated_attention("2*num_attention_heads*head_dim");

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
    {Kind::kLinear, "model.layers.#.linear_attn.in_proj_qkvz",
     "2*linear_num_key_heads*linear_key_head_dim+2*linear_num_value_heads*linear_value_head_dim",
     "hidden_size", "@linear_attention"},
    {Kind::kLinear, "model.layers.#.linear_attn.in_proj_ba", "2*linear_num_value_heads", "hidden_size",
     "@linear_attention"},
    kDelta[2],
    kDelta[0],
    kDelta[1],
    kDelta[3],
    kDelta[4],
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

std::string_view all_sparse(const FamilySizes&, int64_t) { return "sparse"; }

// The tower that reads images. Sizes: vision_config.
constexpr const char* kVisionWidth = "vision_config.hidden_size";
constexpr const char* kMerged =
    "vision_config.spatial_merge_size*vision_config.spatial_merge_size*vision_config.hidden_size";
constexpr FamilyParameter kVision[] = {
    {Kind::kTwoPatches, "model.visual.patch_embed.proj", kVisionWidth, "vision_config.patch_size", "", ""},
    {Kind::kEmbedding, "model.visual.pos_embed", "vision_config.num_position_embeddings", kVisionWidth},
    {Kind::kNorm, "model.visual.merger.norm", kVisionWidth, "", "", ""},
    {Kind::kLinear, "model.visual.merger.linear_fc1", kMerged, kMerged, "", ""},
    {Kind::kLinear, "model.visual.merger.linear_fc2", "vision_config.out_hidden_size", kMerged, "", ""},
    {Kind::kNorm, "model.visual.blocks.#.norm1", kVisionWidth, "", "", ""},
    {Kind::kNorm, "model.visual.blocks.#.norm2", kVisionWidth, "", "", ""},
    {Kind::kLinear, "model.visual.blocks.#.attn.qkv", "3*vision_config.hidden_size", kVisionWidth, "", ""},
    {Kind::kLinear, "model.visual.blocks.#.attn.proj", kVisionWidth, kVisionWidth, "", ""},
    {Kind::kLinear, "model.visual.blocks.#.mlp.linear_fc1", "vision_config.intermediate_size", kVisionWidth,
     "", ""},
    {Kind::kLinear, "model.visual.blocks.#.mlp.linear_fc2", kVisionWidth, "vision_config.intermediate_size",
     "", ""},
};
constexpr FamilyPart kTower{.parameters = kVision,
                            .layers = "model.visual.blocks.#.",
                            .count = "vision_config.depth",
                            .is_tower = true};

constexpr FamilyParameter kDraft[] = {
    {Kind::kLinear, "mtp.fc", "hidden_size", "2*hidden_size"},
    {Kind::kNorm, "mtp.norm", "hidden_size"},
    {Kind::kNorm, "mtp.pre_fc_norm_embedding", "hidden_size"},
    {Kind::kNorm, "mtp.pre_fc_norm_hidden", "hidden_size"},
};
constexpr FamilyPart draft(const char* mlp) {
  return {.parameters = kDraft,
          .layers = "mtp.layers.#.",
          .count = "mtp_num_hidden_layers",
          .repeats_layers = true,
          .mlp = mlp,
          .mixer = "full_attention"};
}

// Qwen4-Exp: several streams of residuals, an index of tokens, tables of n-grams. Names and sizes:
// modeling_qwen4_exp.py.
constexpr const char* kStreams = "hc_count*hidden_size";
constexpr std::array<FamilyParameter, 4> hyper_connection(const char* norm, const char* down, const char* up,
                                                          const char* inject) {
  return {{
      {Kind::kNorm, norm, kStreams},
      {Kind::kLinear, down, "hc_lowrank", kStreams},
      {Kind::kLinear, up, kStreams, "hc_lowrank"},
      {Kind::kLinear, inject, "hc_count", kStreams},
  }};
}
constexpr auto kAttentionStreams =
    hyper_connection("model.layers.#.attn_hyper_connection.hc_norm",
                     "model.layers.#.attn_hyper_connection.input_mix_weight_down",
                     "model.layers.#.attn_hyper_connection.input_mix_weight_up",
                     "model.layers.#.attn_hyper_connection.block_inject_weight");
constexpr auto kMlpStreams = hyper_connection("model.layers.#.mlp_hyper_connection.hc_norm",
                                              "model.layers.#.mlp_hyper_connection.input_mix_weight_down",
                                              "model.layers.#.mlp_hyper_connection.input_mix_weight_up",
                                              "model.layers.#.mlp_hyper_connection.block_inject_weight");
constexpr FamilyParameter kQwen4[] = {
    {Kind::kEmbedding, "model.embed_tokens", "vocab_size", "hidden_size"},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may"},
    {Kind::kNorm, "model.hyper_connection_mixer.hc_norm", kStreams},
    {Kind::kLinear, "model.hyper_connection_mixer.input_mix_weight_down", "hc_lowrank", kStreams},
    {Kind::kLinear, "model.hyper_connection_mixer.input_mix_weight_up", kStreams, "hc_lowrank"},
    {Kind::kLinear, "model.layers.#.self_attn.indexer.index_qk_proj",
     "indexer_n_heads*indexer_head_dim+indexer_kv_heads*indexer_head_dim", "hidden_size",
     "@full_attention indexer_n_heads"},
    {Kind::kNorm, "model.layers.#.self_attn.indexer.q_layernorm", "indexer_head_dim", "",
     "@full_attention indexer_n_heads"},
    {Kind::kNorm, "model.layers.#.self_attn.indexer.k_layernorm", "indexer_head_dim", "",
     "@full_attention indexer_n_heads"},
    {Kind::kLinear, "model.layers.#.ple.key_proj", kStreams, "ple_embed_dim", "ple_layer_ids:1"},
    {Kind::kLinear, "model.layers.#.ple.value_proj", "hidden_size", "ple_embed_dim", "ple_layer_ids:1"},
    {Kind::kNorm, "model.layers.#.ple.norm_key", kStreams, "", "ple_layer_ids:1"},
    {Kind::kNorm, "model.layers.#.ple.norm_query", kStreams, "", "ple_layer_ids:1"},
    {Kind::kNorm, "model.layers.#.ple.norm_conv", kStreams, "", "ple_layer_ids:1"},
    {Kind::kConvolution, "model.layers.#.ple.conv1d", kStreams, "ple_conv_kernel_size", "ple_layer_ids:1"},
    {Kind::kAny, "model.layers.#.ple.ple_embedding.layer_multipliers", "", "", "ple_layer_ids:1 may"},
    {Kind::kAny, "model.layers.#.ple.ple_embedding.ngram_heads_offsets", "", "", "ple_layer_ids:1 may"},
    {Kind::kAny, "model.layers.#.ple.ple_embedding.ngram_heads_vocab_sizes", "", "", "ple_layer_ids:1 may"},
};
/// Rows of the whole table: as many hashes of about ngram_vocab_size_base as there are heads, each a prime.
constexpr FamilyParameter kNgrams[] = {
    {Kind::kEmbedding, "model.layers.#.ple.ple_embedding.ngram_embedding.shard_#",
     "2*heads_per_ngram*ngram_vocab_size_base/split_ngram_parts", "ple_embed_dim/heads_per_ngram/2",
     "ple_layer_ids:1"},
};
constexpr FamilyParameter kQwen4Draft[] = {
    {Kind::kLinear, "mtp.fc_embedding", "hidden_size", "hidden_size"},
    {Kind::kLinear, "mtp.fc_hidden", "hidden_size", "hidden_size"},
    {Kind::kNorm, "mtp.pre_fc_norm_embedding", "hidden_size"},
    {Kind::kNorm, "mtp.pre_fc_norm_hidden", kStreams},
    {Kind::kNorm, "mtp.hyper_connection_mixer.hc_norm", kStreams},
    {Kind::kLinear, "mtp.hyper_connection_mixer.input_mix_weight_down", "hc_lowrank", kStreams},
    {Kind::kLinear, "mtp.hyper_connection_mixer.input_mix_weight_up", kStreams, "hc_lowrank"},
};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"qwen3_next"},
     .parameters = {kFrame, kTwoNorms, kQwen3NextDelta, kGatedAttention, kDenseMlp, kPlainGate,
                    kSparseExperts, kExpertStacks, kSharedExpert},
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
     .mixer_keys = "layer_types, full_attention_interval",
     .stacks = kApart,
     .router = {{.renormalized = Renormalized::kUnlessSaid}},
     .norms_add_one = true},
    {.model_types = {"qwen3_5_moe_text"},
     .parameters = {kFrame, kTwoNorms, kGatedAttention, kQwen35Delta, kPlainGate, kSparseExperts,
                    kExpertStacks, kSharedExpert},
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
     .mixer_keys = "layer_types, full_attention_interval",
     .outer_type = "qwen3_5_moe",
     .stacks = kApart,
     .router = kSoftmax,
     .parts = {{draft("sparse"), kTower}},
     .norms_add_one = true},
    {.model_types = {"qwen3_5_text"},
     .parameters = {kFrame, kTwoNorms, kGatedAttention, kQwen35Delta, kMlp},
     .defaults =
         R"({"attn_output_gate": true, "hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 248320,
       "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
       "attention_bias": false, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
       "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
       "tie_word_embeddings": false})",
     .mixer = mixer_by_types,
     .mixer_keys = "layer_types, full_attention_interval",
     .parts = {{draft(""), kTower}},
     .norms_add_one = true},
    {.model_types = {"qwen4_exp_text"},
     .parameters = {kQwen4, kQwen4Attention, kQwen35Delta, kAttentionStreams, kMlpStreams, kPlainGate,
                    kSparseExperts, kExpertStacks, kSharedExpert},
     .defaults =
         R"({"hidden_size": 2048, "vocab_size": 248320, "num_hidden_layers": 40,
       "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "attention_bias": false,
       "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
       "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
       "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "hc_count": 4,
       "hc_lowrank": 320, "ple_embed_dim": "hidden_size", "ple_conv_kernel_size": 4,
       "tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .mlp = all_sparse,
     .mixer = mixer_by_types,
     .mixer_keys = "layer_types, full_attention_interval",
     .outer_type = "qwen4_exp",
     .stacks = kApart,
     .parts = {{{.parameters = kQwen4Draft,
                 .layers = "mtp.layers.#.",
                 .count = "mtp_num_hidden_layers",
                 .repeats_layers = true,
                 .mlp = "sparse",
                 .mixer = "full_attention"},
                {.parameters = kNgrams, .count = "split_ngram_parts", .is_table = true},
                kTower}},
     .norms_add_one = true},
};

}  // namespace
}  // namespace families::qwen

std::span<const FamilyShapes> qwen_families() { return families::qwen::kFamilies; }

}  // namespace twofour
