#include "formats/families/rows.h"

// Families whose files hold experts of floats in stacks.

namespace twofour {
namespace families::stacked {
namespace {

/// Qwen3-VL's stacks lie the other way; quantizers take them apart.
constexpr FamilyParameter kQwen3VlSparse[] = {
    {Kind::kRouter, "model.layers.#.mlp.gate", "num_experts", "hidden_size", "@sparse"},
    {Kind::kColumnStack, "model.layers.#.mlp.experts.gate_up_proj", "2*moe_intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kColumnStack, "model.layers.#.mlp.experts.down_proj", "hidden_size", "moe_intermediate_size",
     "@sparse"},
};

constexpr FamilyParameter kGraniteBlock[] = {
    {Kind::kRouter, "model.layers.#.block_sparse_moe.router.layer", "num_local_experts", "hidden_size",
     "num_local_experts"},
    {Kind::kRowStack, "model.layers.#.block_sparse_moe.input_linear.weight", "2*intermediate_size",
     "hidden_size", "num_local_experts"},
    {Kind::kRowStack, "model.layers.#.block_sparse_moe.output_linear.weight", "hidden_size",
     "intermediate_size", "num_local_experts"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.gate_proj", "intermediate_size",
     "hidden_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.up_proj", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.down_proj", "hidden_size",
     "intermediate_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w1", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w3", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.w2", "hidden_size", "intermediate_size"},
};
constexpr FamilyParameter kGraniteShared[] = {
    {Kind::kLinear, "model.layers.#.shared_mlp.input_linear", "2*shared_intermediate_size", "hidden_size",
     "shared_intermediate_size"},
    {Kind::kLinear, "model.layers.#.shared_mlp.output_linear", "hidden_size", "shared_intermediate_size",
     "shared_intermediate_size"},
};

constexpr FamilyParameter kGptOss[] = {
    {Kind::kVector, "model.layers.#.self_attn.sinks", "num_attention_heads"},
    {Kind::kRouter, "model.layers.#.mlp.router", "num_local_experts", "hidden_size", "", ""},
    {Kind::kColumnStack, "model.layers.#.mlp.experts.gate_up_proj", "2*intermediate_size", "hidden_size"},
    {Kind::kStackVector, "model.layers.#.mlp.experts.gate_up_proj_bias", "2*intermediate_size"},
    {Kind::kColumnStack, "model.layers.#.mlp.experts.down_proj", "hidden_size", "intermediate_size"},
    {Kind::kStackVector, "model.layers.#.mlp.experts.down_proj_bias", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.gate_proj", "intermediate_size", "hidden_size", "alias",
     "may"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.up_proj", "intermediate_size", "hidden_size", "alias",
     "may"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.down_proj", "hidden_size", "intermediate_size", "alias",
     "may"},
};

/// Every interleave_moe_layer_step-th layer, or those that moe_layers lists.
std::string_view llama4_mlp(const FamilySizes& sizes, int64_t layer) {
  if (sizes.is_list("moe_layers")) return sizes.lists("moe_layers", layer) ? "sparse" : "dense";
  const int64_t step = std::max<int64_t>(sizes.number("interleave_moe_layer_step").value_or(1), 1);
  return (layer + 1) % step == 0 ? "sparse" : "dense";
}
constexpr FamilyParameter kLlama4Block[] = {
    {Kind::kLinear, "model.layers.#.feed_forward.gate_proj", "intermediate_size_mlp", "hidden_size",
     "@dense"},
    {Kind::kLinear, "model.layers.#.feed_forward.up_proj", "intermediate_size_mlp", "hidden_size", "@dense"},
    {Kind::kLinear, "model.layers.#.feed_forward.down_proj", "hidden_size", "intermediate_size_mlp",
     "@dense"},
    {Kind::kRouter, "model.layers.#.feed_forward.router", "num_local_experts", "hidden_size", "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.shared_expert.gate_proj", "intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.shared_expert.up_proj", "intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.shared_expert.down_proj", "hidden_size", "intermediate_size",
     "@sparse"},
    {Kind::kColumnStack, "model.layers.#.feed_forward.experts.gate_up_proj", "2*intermediate_size",
     "hidden_size", "@sparse"},
    {Kind::kColumnStack, "model.layers.#.feed_forward.experts.down_proj", "hidden_size", "intermediate_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.gate_proj", "intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.up_proj", "intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kLinear, "model.layers.#.feed_forward.experts.#.down_proj", "hidden_size", "intermediate_size",
     "@sparse"},
};

/// Inkling: rows of gate and up in turn, shared experts in stacks of their own, convolutions behind keys,
/// values, attention and MLP. Names: conversion_mapping.py; sizes: modeling_inkling.py.
std::string_view inkling_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view said = sizes.text("layer_types", layer); !said.empty()) return said;
  const bool local =
      sizes.is_list("local_layer_ids") ? sizes.lists("local_layer_ids", layer) : (layer + 1) % 6 != 0;
  return local ? "hybrid_sliding" : "hybrid";
}
std::string_view inkling_mlp(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view said = sizes.text("mlp_layer_types", layer); !said.empty()) return said;
  return layer < sizes.number("dense_mlp_idx").value_or(0) ? "dense" : "sparse";
}
constexpr FamilyParameter kInklingFrame[] = {
    {Kind::kEmbedding, "model.llm.embed", "vocab_size", "hidden_size"},
    {Kind::kNorm, "model.llm.embed_norm", "hidden_size"},
    {Kind::kNorm, "model.llm.norm", "hidden_size"},
    {Kind::kLinear, "model.llm.unembed", kUnsaidSize, "hidden_size", "may"},
    {Kind::kNorm, "model.llm.layers.#.attn_norm", "hidden_size"},
    {Kind::kNorm, "model.llm.layers.#.mlp_norm", "hidden_size"},
    {Kind::kConvolution, "model.llm.layers.#.attn_sconv", "hidden_size", "conv_kernel_size"},
    {Kind::kConvolution, "model.llm.layers.#.mlp_sconv", "hidden_size", "conv_kernel_size"},
};
constexpr std::array<FamilyParameter, 10> inkling_attention(const char* when, const char* queries,
                                                            const char* keys, const char* head,
                                                            const char* relative, const char* extent) {
  return {{
      {Kind::kLinear, "model.llm.layers.#.attn.wq_du", queries, "hidden_size", when},
      {Kind::kLinear, "model.llm.layers.#.attn.wk_dv", keys, "hidden_size", when},
      {Kind::kLinear, "model.llm.layers.#.attn.wv_dv", keys, "hidden_size", when},
      {Kind::kLinear, "model.llm.layers.#.attn.wr_du", relative, "hidden_size", when},
      {Kind::kLinear, "model.llm.layers.#.attn.wo_ud", "hidden_size", queries, when},
      {Kind::kNorm, "model.llm.layers.#.attn.q_norm", head, "", when},
      {Kind::kNorm, "model.llm.layers.#.attn.k_norm", head, "", when},
      {Kind::kConvolution, "model.llm.layers.#.attn.k_sconv", keys, "conv_kernel_size", when},
      {Kind::kConvolution, "model.llm.layers.#.attn.v_sconv", keys, "conv_kernel_size", when},
      {Kind::kMatrix, "model.llm.layers.#.attn.rel_logits_proj.proj", "d_rel", extent, when},
  }};
}
constexpr auto kInklingFull =
    inkling_attention("@hybrid", "num_attention_heads*head_dim", "num_key_value_heads*head_dim", "head_dim",
                      "num_attention_heads*d_rel", "rel_extent");
constexpr auto kInklingWindow = inkling_attention("@hybrid_sliding", "swa_num_attention_heads*swa_head_dim",
                                                  "swa_num_key_value_heads*swa_head_dim", "swa_head_dim",
                                                  "swa_num_attention_heads*d_rel", "sliding_window_size");
constexpr FamilyParameter kInklingBlock[] = {
    {Kind::kLinear, "model.llm.layers.#.mlp.w13_dn", "2*intermediate_size", "hidden_size", "@dense"},
    {Kind::kLinear, "model.llm.layers.#.mlp.w2_md", "hidden_size", "intermediate_size", "@dense"},
    {Kind::kVector, "model.llm.layers.#.mlp.global_scale", "1", "", "@dense"},
    {Kind::kRouter, "model.llm.layers.#.mlp.gate", "n_routed_experts+n_shared_experts", "hidden_size",
     "@sparse"},
    {Kind::kVector, "model.llm.layers.#.mlp.gate.bias", "n_routed_experts", "", "@sparse"},
    {Kind::kVector, "model.llm.layers.#.mlp.gate.global_scale", "1", "", "@sparse"},
    {Kind::kRowStack, "model.llm.layers.#.mlp.experts.w13_weight", "2*moe_intermediate_size", "hidden_size",
     "@sparse"},
    {Kind::kRowStack, "model.llm.layers.#.mlp.experts.w2_weight", "hidden_size", "moe_intermediate_size",
     "@sparse"},
    {Kind::kAny, "model.llm.layers.#.mlp.shared_experts.shared_w13_weight", "", "", "@sparse"},
    {Kind::kAny, "model.llm.layers.#.mlp.shared_experts.shared_w2_weight", "", "", "@sparse"},
};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"qwen3_vl_moe_text"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHeadNorms, kDenseMlp, kQwen3VlSparse,
                    kSparseExperts},
     .defaults = R"({"hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 151936,
       "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128,
       "attention_bias": false, "num_experts": "num_local_experts", "num_local_experts": 60,
       "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "decoder_sparse_step": 1})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_by_step,
     .mlp_keys = "decoder_sparse_step, mlp_only_layers",
     .outer_type = "qwen3_vl_moe",
     .stacks = kColumnStacks,
     .router = kSoftmax},
    {.model_types = {"granitemoe", "granitemoeshared"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kGraniteBlock, kGraniteShared},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000,
       "num_hidden_layers": 32, "num_attention_heads": 32, "attention_bias": false, "num_local_experts": 8,
       "num_experts_per_tok": 2, "shared_intermediate_size": 0, "tie_word_embeddings": false})",
     .experts = "num_local_experts",
     .top_k = "num_experts_per_tok",
     .stacks = kRowStacks},
    {.model_types = {"gpt_oss"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kGptOss},
     .defaults = R"({"hidden_size": 2880, "intermediate_size": 2880, "vocab_size": 201088,
       "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
       "attention_bias": true, "num_local_experts": "num_experts", "num_experts": 128,
       "num_experts_per_tok": "experts_per_token", "experts_per_token": 4, "tie_word_embeddings": false})",
     .experts = "num_local_experts",
     .top_k = "num_experts_per_tok",
     .stacks = {{.files = ExpertFiles::kColumnStacks, .rows = GateUpRows::kInterleaved, .has_bias = true}},
     .router = kSoftmax,
     .traits = {{.windows = WindowRule::kAlternate,
                 .window = 128,
                 .epsilon = 1e-5,
                 .theta = 150000,
                 .positions = 131072}},
     .clamps_gates = true},
    {.model_types = {"llama4_text"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kLlama4Block},
     .defaults = R"({"hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
       "vocab_size": 202048, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8,
       "head_dim": 128, "attention_bias": false, "num_local_experts": 16, "num_experts_per_tok": 1,
       "interleave_moe_layer_step": 1, "tie_word_embeddings": false})",
     .experts = "num_local_experts",
     .top_k = "num_experts_per_tok",
     .mlp = llama4_mlp,
     .mlp_keys = "moe_layers, interleave_moe_layer_step",
     .outer_type = "llama4",
     .stacks = kColumnStacks},
    {.model_types = {"inkling_text"},
     .parameters = {kInklingFrame, kInklingFull, kInklingWindow, kInklingBlock},
     .defaults = R"({"hidden_size": 6144, "intermediate_size": "dense_intermediate_size",
       "dense_intermediate_size": 24576, "vocab_size": 201024, "num_hidden_layers": 66,
       "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "swa_num_attention_heads": 64,
       "swa_num_key_value_heads": 16, "swa_head_dim": 128, "sliding_window_size": 512, "d_rel": 16,
       "rel_extent": 1024, "conv_kernel_size": "sconv_kernel_size", "sconv_kernel_size": 4,
       "n_routed_experts": 256, "n_shared_experts": 2, "num_experts_per_tok": 6,
       "moe_intermediate_size": 3072})",
     .experts = "n_routed_experts",
     .top_k = "num_experts_per_tok",
     .mlp = inkling_mlp,
     .mixer = inkling_mixer,
     .mlp_keys = "mlp_layer_types, dense_mlp_idx",
     .mixer_keys = "layer_types, local_layer_ids",
     .outer_type = "inkling_mm_model"},
    {.model_types = {"openai_privacy_filter"},
     .parameters = {},
     .defaults = "{}",
     .stacks = {{.files = ExpertFiles::kColumnStacks, .has_bias = true}}},
};

}  // namespace
}  // namespace families::stacked

std::span<const FamilyShapes> stacked_families() { return families::stacked::kFamilies; }

}  // namespace twofour
