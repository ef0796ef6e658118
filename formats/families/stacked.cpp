#include "formats/families/rows.h"

// Families whose files store experts in floats as stacks.

namespace twofour {
namespace families::stacked {
namespace {

/// The stacks of Qwen3-VL are transposed. Quantizers split them.
constexpr FamilyBlock kQwen3VlSparse{R"(
  .mlp.gate                  router [num_experts, hidden_size]  @sparse
  .mlp.experts.gate_up_proj  column_stack [2*moe_intermediate_size, hidden_size]  @sparse
  .mlp.experts.down_proj     column_stack [hidden_size, moe_intermediate_size]  @sparse
)"};

constexpr FamilyBlock kGraniteBlock{R"(
  if num_local_experts
  .block_sparse_moe.router.layer                    router [num_local_experts, hidden_size]
  .block_sparse_moe.input_linear.weight             row_stack [2*intermediate_size, hidden_size]
  .block_sparse_moe.output_linear.weight            row_stack [hidden_size, intermediate_size]
  if
  .block_sparse_moe.experts.#.{gate,up,~down}_proj  linear [intermediate_size, hidden_size]
  .block_sparse_moe.experts.#.{w1,w3,~w2}           linear [intermediate_size, hidden_size]
  if shared_intermediate_size
  .shared_mlp.input_linear                          linear [2*shared_intermediate_size, hidden_size]
  .shared_mlp.output_linear                         linear [hidden_size, shared_intermediate_size]
)"};

constexpr FamilyBlock kGptOss{R"(
  .self_attn.sinks                     vector [num_attention_heads]
  .mlp.router                          router [num_local_experts, hidden_size]  bias
  .mlp.experts.gate_up_proj            column_stack [2*intermediate_size, hidden_size]
  .mlp.experts.gate_up_proj_bias       stack_vector [2*intermediate_size]
  .mlp.experts.down_proj               column_stack [hidden_size, intermediate_size]
  .mlp.experts.down_proj_bias          stack_vector [hidden_size]
  .mlp.experts.#.{gate,up,~down}_proj  linear [intermediate_size, hidden_size]  alias bias=may
)"};

/// The class "sparse" for the layers that moe_layers lists or, without that list, for every
/// interleave_moe_layer_step-th layer.
std::string_view llama4_mlp(const FamilySizes& sizes, int64_t layer) {
  if (sizes.is_list("moe_layers")) return sizes.lists("moe_layers", layer) ? "sparse" : "dense";
  const int64_t step = std::max<int64_t>(sizes.number("interleave_moe_layer_step").value_or(1), 1);
  return (layer + 1) % step == 0 ? "sparse" : "dense";
}
constexpr FamilyBlock kLlama4Block{R"(
  .feed_forward.{gate,up,~down}_proj                linear [intermediate_size_mlp, hidden_size]  @dense
  .feed_forward.router                              router [num_local_experts, hidden_size]  @sparse
  .feed_forward.shared_expert.{gate,up,~down}_proj  linear [intermediate_size, hidden_size]  @sparse
  .feed_forward.experts.gate_up_proj                column_stack [2*intermediate_size, hidden_size]  @sparse
  .feed_forward.experts.down_proj                   column_stack [hidden_size, intermediate_size]  @sparse
  .feed_forward.experts.#.{gate,up,~down}_proj      linear [intermediate_size, hidden_size]  @sparse
)"};

/// Inkling. Rows of gate and up alternate, and shared experts have their own stacks. Convolutions follow
/// keys, values, attention and the MLP. Source of names: conversion_mapping.py. Source of sizes:
/// modeling_inkling.py.
std::string_view inkling_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view configured = sizes.text("layer_types", layer); !configured.empty())
    return configured;
  const bool local =
      sizes.is_list("local_layer_ids") ? sizes.lists("local_layer_ids", layer) : (layer + 1) % 6 != 0;
  return local ? "hybrid_sliding" : "hybrid";
}
std::string_view inkling_mlp(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view configured = sizes.text("mlp_layer_types", layer); !configured.empty())
    return configured;
  return layer < sizes.number("dense_mlp_idx").value_or(0) ? "dense" : "sparse";
}
constexpr FamilyBlock kInklingFrame{R"(
  . = model.llm.layers.#
  model.llm.embed              embedding [vocab_size, hidden_size]
  model.llm.{embed_norm,norm}  norm [hidden_size]
  model.llm.unembed            linear [?, hidden_size]  may
  .{attn,mlp}_norm             norm [hidden_size]
  .{attn,mlp}_sconv            convolution [hidden_size, conv_kernel_size]
)"};
/// $1 is a condition, $2 is the prefix of the keys for sizes, and $3 is the number of relative positions.
constexpr const char* kInklingAttention = R"(
  . = model.llm.layers.#
  Queries = $2num_attention_heads*$2head_dim
  Keys = $2num_key_value_heads*$2head_dim
  if $1
  .attn.wq_du                 linear [Queries, hidden_size]
  .attn.{wk,wv}_dv            linear [Keys, hidden_size]
  .attn.wr_du                 linear [$2num_attention_heads*d_rel, hidden_size]
  .attn.wo_ud                 linear [hidden_size, Queries]
  .attn.{q,k}_norm            norm [$2head_dim]
  .attn.{k,v}_sconv           convolution [Keys, conv_kernel_size]
  .attn.rel_logits_proj.proj  matrix [d_rel, $3]
)";
constexpr FamilyBlock kInklingFull{kInklingAttention, {"@hybrid", "", "rel_extent"}};
constexpr FamilyBlock kInklingWindow{kInklingAttention, {"@hybrid_sliding", "swa_", "sliding_window_size"}};
constexpr FamilyBlock kInklingBlock{R"(
  . = model.llm.layers.#
  if @dense
  .mlp.w13_dn                                 linear [2*intermediate_size, hidden_size]
  .mlp.w2_md                                  linear [hidden_size, intermediate_size]
  .mlp.global_scale                           vector [1]
  if @sparse
  .mlp.gate                                   router [n_routed_experts+n_shared_experts, hidden_size]
  .mlp.gate.bias                              vector [n_routed_experts]
  .mlp.gate.global_scale                      vector [1]
  .mlp.experts.w13_weight                     row_stack [2*moe_intermediate_size, hidden_size]
  .mlp.experts.w2_weight                      row_stack [hidden_size, moe_intermediate_size]
  .mlp.shared_experts.shared_{w13,w2}_weight  any
)"};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"qwen3_vl_moe_text"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHeadNorms, kDenseMlp, kQwen3VlSparse,
                    kSparseExperts},
     .defaults = R"(hidden_size=2048 intermediate_size=5632 vocab_size=151936 num_hidden_layers=24
       num_attention_heads=16 num_key_value_heads=16 head_dim=128 attention_bias=false
       num_experts=num_local_experts num_local_experts=60 num_experts_per_tok=4 moe_intermediate_size=1408
       decoder_sparse_step=1)",
     .experts = {"num_experts", "num_experts_per_tok", kColumnStacks},
     .mlp = {sparse_by_step, "decoder_sparse_step, mlp_only_layers"},
     .outer_type = "qwen3_vl_moe",
     .router = kSoftmax},
    {.model_types = {"granitemoe", "granitemoeshared"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kGraniteBlock},
     .defaults = R"(hidden_size=4096 intermediate_size=11008 vocab_size=32000 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false num_local_experts=8 num_experts_per_tok=2
       shared_intermediate_size=0 tie_word_embeddings=false)",
     .experts = {"num_local_experts", "num_experts_per_tok", kRowStacks},
     .activations = FamilyActivations::kSilu},
    {.model_types = {"gpt_oss"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kGptOss},
     .defaults = R"(hidden_size=2880 intermediate_size=2880 vocab_size=201088 num_hidden_layers=36
       num_attention_heads=64 num_key_value_heads=8 head_dim=64 attention_bias=true
       num_local_experts=num_experts num_experts=128 num_experts_per_tok=experts_per_token
       experts_per_token=4 tie_word_embeddings=false)",
     .experts = {"num_local_experts",
                 "num_experts_per_tok",
                 {{.files = ExpertFiles::kColumnStacks, .rows = GateUpRows::kInterleaved, .has_bias = true}}},
     .router = kSoftmax,
     .traits = {{.windows = WindowRule::kAlternate,
                 .window = 128,
                 .epsilon = 1e-5,
                 .theta = 150000,
                 .positions = 131072}},
     .clamps_gates = true,
     .activations = FamilyActivations::kSilu},
    {.model_types = {"llama4_text"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kLlama4Block},
     .defaults = R"(hidden_size=5120 intermediate_size=8192 intermediate_size_mlp=16384 vocab_size=202048
       num_hidden_layers=48 num_attention_heads=40 num_key_value_heads=8 head_dim=128 attention_bias=false
       num_local_experts=16 num_experts_per_tok=1 interleave_moe_layer_step=1 tie_word_embeddings=false)",
     .experts = {"num_local_experts", "num_experts_per_tok", kColumnStacks},
     .mlp = {llama4_mlp, "moe_layers, interleave_moe_layer_step"},
     .outer_type = "llama4",
     .activations = FamilyActivations::kSilu},
    {.model_types = {"inkling_text"},
     .parameters = {kInklingFrame, kInklingFull, kInklingWindow, kInklingBlock},
     .defaults = R"(hidden_size=6144 intermediate_size=dense_intermediate_size
       dense_intermediate_size=24576 vocab_size=201024 num_hidden_layers=66 num_attention_heads=64
       num_key_value_heads=8 head_dim=128 swa_num_attention_heads=64 swa_num_key_value_heads=16
       swa_head_dim=128 sliding_window_size=512 d_rel=16 rel_extent=1024 conv_kernel_size=sconv_kernel_size
       sconv_kernel_size=4 n_routed_experts=256 n_shared_experts=2 num_experts_per_tok=6
       moe_intermediate_size=3072)",
     .experts = {"n_routed_experts", "num_experts_per_tok"},
     .mlp = {inkling_mlp, "mlp_layer_types, dense_mlp_idx"},
     .mixer = {inkling_mixer, "layer_types, local_layer_ids"},
     .outer_type = "inkling_mm_model"},
    {.model_types = {"openai_privacy_filter"},
     .parameters = {},
     .defaults = "",
     .experts = {.stacks = {{.files = ExpertFiles::kColumnStacks, .has_bias = true}}}},
};

}  // namespace
}  // namespace families::stacked

std::span<const FamilyShapes> stacked_families() { return families::stacked::kFamilies; }

}  // namespace twofour
