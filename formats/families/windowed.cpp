#include "formats/families/rows.h"

// Families whose window layers have sizes of their own, MiMo-V2-Flash and Step-3.5, and families with
// structures of their own: Hy4, LongCat-Flash, Zaya.

namespace twofour {
namespace families::windowed {
namespace {

/// Hy3. Source: modeling_hy_v3.py.
constexpr FamilyBlock kHyDense{kGatedMlp, {"@dense", "bias=mlp_bias"}};
constexpr FamilyBlock kHyBlock{R"(
  Shared = num_shared_experts*moe_intermediate_size
  if @sparse
  .mlp.router.gate                      router [num_experts, hidden_size]
  .mlp.expert_bias                      vector [num_experts]
  .mlp.shared_mlp.{gate,up,~down}_proj  linear [Shared, hidden_size]  num_shared_experts
)"};

/// Laguna. The number of heads differs by layer, and each head has a gate. Source: modeling_laguna.py.
constexpr FamilyBlock kLaguna{R"(
  Queries = num_attention_heads_per_layer*head_dim
  .self_attn.q_proj      linear [Queries, hidden_size]  bias=attention_bias
  .self_attn.{k,v}_proj  linear [num_key_value_heads*head_dim, hidden_size]  bias=attention_bias
  .self_attn.o_proj      linear [hidden_size, Queries]  bias=attention_bias
  .self_attn.g_proj      linear [num_attention_heads_per_layer, hidden_size]  !gating=per-element
  .self_attn.g_proj      linear [Queries, hidden_size]  gating=per-element
  if @sparse
  .mlp.experts.e_score_correction_bias  vector [num_experts]
  .mlp.shared_expert.{gate,up,~down}_proj  linear [shared_expert_intermediate_size, hidden_size]
)"};

/// The mixer: from layer_types, otherwise from hybrid_layer_pattern, the list of window layers.
std::string_view mimo_mixer(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view configured = sizes.text("layer_types", layer); !configured.empty())
    return configured;
  if (!sizes.is_list("hybrid_layer_pattern"))
    return layer == 0 || (layer + 1) % 6 == 0 ? "full_attention" : "sliding_attention";
  return sizes.number("hybrid_layer_pattern", layer).value_or(0) != 0 ? "sliding_attention"
                                                                      : "full_attention";
}
/// MiMo-V2-Flash. Source: modeling_mimo_v2_flash.py.
constexpr FamilyBlock kMimo{R"(
  .self_attn.q_proj               linear [num_attention_heads*head_dim, hidden_size]  bias=attention_bias
  if @full_attention
  .self_attn.k_proj               linear [num_key_value_heads*head_dim, hidden_size]  bias=attention_bias
  .self_attn.v_proj               linear [num_key_value_heads*v_head_dim, hidden_size]  bias=attention_bias
  if @sliding_attention
  .self_attn.k_proj               linear [2*num_key_value_heads*head_dim, hidden_size]  bias=attention_bias
  .self_attn.v_proj               linear [2*num_key_value_heads*v_head_dim, hidden_size]  bias=attention_bias
  if
  .self_attn.o_proj               linear [hidden_size, num_attention_heads*v_head_dim]
  .self_attn.attention_sink_bias  vector [num_attention_heads]  @sliding_attention
)"};

/// Step-3.5 and 3.7. Sources: modeling_step3p7.py; for the drafts, vLLM 0.33, step3p5_mtp.py.
std::string_view step_mixer(const FamilySizes& sizes, int64_t layer) {
  const std::string_view configured = sizes.text("layer_types", layer);
  return configured.empty() ? "full_attention" : configured;
}
std::string_view step_mlp(const FamilySizes& sizes, int64_t layer) {
  if (const std::string_view configured = sizes.text("mlp_layer_types", layer); !configured.empty())
    return configured;
  const std::string_view all = sizes.text("moe_layers_enum");
  if (all.empty()) return layer > 0 ? "sparse" : "dense";
  // Reads numbers from a text such as "3,4,5".
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find(',', at), all.size());
    int64_t number = 0;
    for (const char c : all.substr(at, end - at)) {
      if (c >= '0' && c <= '9') number = 10 * number + (c - '0');
    }
    if (number == layer) return "sparse";
    at = end + 1;
  }
  return "dense";
}
constexpr FamilyBlock kStep{R"(
  Queries = num_attention_heads*head_dim
  SlidingQueries = num_sliding_attention_heads*head_dim
  .self_attn.q_proj      linear [Queries, hidden_size]  @full_attention bias=attention_bias
  .self_attn.q_proj      linear [SlidingQueries, hidden_size]  @sliding_attention bias=attention_bias
  .self_attn.{k,v}_proj  linear [num_key_value_heads*head_dim, hidden_size]  bias=attention_bias
  .self_attn.o_proj      linear [hidden_size, Queries]  @full_attention bias=attention_bias
  .self_attn.o_proj      linear [hidden_size, SlidingQueries]  @sliding_attention bias=attention_bias
  .self_attn.g_proj      linear [num_attention_heads, hidden_size]  @full_attention may
  .self_attn.g_proj      linear [num_sliding_attention_heads, hidden_size]  @sliding_attention may
  if @sparse
  .moe.gate              router [n_routed_experts, hidden_size]
  .moe.router_bias       vector [n_routed_experts]  may
  .moe.{gate,up,~down}_proj.weight  row_stack [moe_intermediate_size, hidden_size]
  // llm-compressor writes one linear for each expert.
  .moe.experts.#.{gate,up,~down}_proj  linear [moe_intermediate_size, hidden_size]
  .share_expert.{gate,up,~down}_proj  linear [share_expert_dim, hidden_size]
  if @draft
  .eh_proj               linear [hidden_size, 2*hidden_size]
  .{enorm,hnorm}         norm [hidden_size]
)"};

/// Muse-Glimmer. Source: modeling_muse_glimmer.py.
constexpr FamilyBlock kMuseGate{".self_attn.gate_proj  linear [num_attention_heads*head_dim, hidden_size]"};

/// Experts in stacks, or separate after quantizers have split them.
constexpr FamilyBlock kStackedExperts{kStacks};

/// Mistral-4. Source: modeling_mistral4.py.
constexpr FamilyBlock kMistral4Gate{".mlp.gate  router [n_routed_experts, hidden_size]  @sparse"};

/// Hy4. It has a sparse-attention indexer, gates after attention, and residual streams. Source:
/// modeling_hy_v4.py.
constexpr FamilyBlock kHy4Gate{R"(
  .self_attn.linear_gate           linear [num_attention_heads*v_head_dim, hidden_size]
  .self_attn.learnable_sink_param  vector [num_attention_heads]
)"};
constexpr FamilyBlock kHy4Indexer{kIndexer, {"indexer_types=full", "bias"}};
constexpr FamilyBlock kHy4{R"(
  Shared = n_shared_experts*moe_intermediate_size
  if @dense
  .mlp.{linear_gate,up_proj,~down_proj}                 linear [intermediate_size, hidden_size]
  if @sparse n_shared_experts
  .mlp.shared_experts.{linear_gate,up_proj,~down_proj}  linear [Shared, hidden_size]
  if
  .hc_pre.hc_attn_layer.hc_fn                           matrix [2*hc_mult, hc_mult*hidden_size]
  .hc_pre.hc_attn_layer.hc_base                         vector [2*hc_mult]
  .hc_pre.hc_attn_layer.hc_scale                        vector [2]
  .hc_pre.hc_mlp_layer.hc_fn                            matrix [2*hc_mult, hc_mult*hidden_size]
  .hc_pre.hc_mlp_layer.hc_base                          vector [2*hc_mult]
  .hc_pre.hc_mlp_layer.hc_scale                         vector [2]
  model.hc_pre.hc_head.hc_head_fn                       matrix [hc_mult, hc_mult*hidden_size]
  model.hc_pre.hc_head.hc_head_base                     vector [hc_mult]
  model.hc_pre.hc_head.hc_head_scale                    vector [1]
)"};

/// LongCat-Flash. A layer has two blocks of attention and MLP. Some experts return their input. Source:
/// modeling_longcat_flash.py.
constexpr FamilyBlock kLongcatNorms{".{input,post_attention}_layernorm.#  norm [hidden_size]"};
constexpr FamilyBlock kLongcatAttention{kLatent, {"self_attn.#", "bias=attention_bias"}};
constexpr FamilyBlock kLongcat{R"(
  Choices = n_routed_experts+zero_expert_num
  .mlps.#.{gate,up,~down}_proj         linear [ffn_hidden_size, hidden_size]
  .mlp.router.classifier               router [Choices, hidden_size]
  .mlp.router.e_score_correction_bias  vector [Choices]
  .mlp.experts.#.{gate,up,~down}_proj  linear [expert_ffn_hidden_size, hidden_size]
)"};

/// Dots3-Note. Window layers have different sizes. Source: vLLM 0.33, models/dots3_note.
std::string_view dots_mixer(const FamilySizes& sizes, int64_t layer) {
  return sizes.text("layer_types", layer) == "sliding_attention" ? "sliding_attention" : "full_attention";
}
/// $1 is the prefix of the keys for sizes, and $2 is the class of the layers.
constexpr const char* kDots3 = R"(
  . = model.layers.#.self_attn
  Heads = $1num_attention_heads*$1qk_nope_head_dim+$1num_attention_heads*$1qk_rope_head_dim
  KeysAndValues = $1num_attention_heads*$1qk_nope_head_dim+$1num_attention_heads*$1v_head_dim
  Output = $1num_attention_heads*$1v_head_dim
  if $2
  .q_a_proj               linear [$1q_lora_rank, hidden_size]
  .q_a_layernorm          norm [$1q_lora_rank]
  .q_b_proj               linear [Heads, $1q_lora_rank]
  .kv_a_proj_with_mqa     linear [$1kv_lora_rank+$1qk_rope_head_dim, hidden_size]
  .kv_a_layernorm         norm [$1kv_lora_rank]
  .kv_b_proj              linear [KeysAndValues, $1kv_lora_rank]
  .o_proj                 linear [hidden_size, Output]
  .k_rope_only_layernorm  norm [$1qk_rope_head_dim]
  .g_proj                 linear [$1num_attention_heads, hidden_size]  $1attention_gate_type=headwise
  .g_proj                 linear [Output, hidden_size]  !$1attention_gate_type=headwise
)";
constexpr FamilyBlock kDots3Full{kDots3, {"", "@full_attention"}};
constexpr FamilyBlock kDots3Indexer{kIndexer, {"@full_attention may", "bias=may"}};
constexpr FamilyBlock kDots3Window{kDots3, {"swa_", "@sliding_attention"}};
/// Zaya. It has convolutions within attention, and a router of several layers. Source: modeling_zaya.py.
constexpr FamilyBlock kZayaAttention{R"(
  . = model.layers.#.self_attn
  Width = num_attention_heads*head_dim+num_key_value_heads*head_dim
  Half = num_key_value_heads*head_dim/2
  .qkv_proj.q_proj                    linear [num_attention_heads*head_dim, hidden_size]  bias=attention_bias
  .qkv_proj.k_proj                    linear [num_key_value_heads*head_dim, hidden_size]  bias=attention_bias
  .qkv_proj.v_proj_{current,delayed}  linear [Half, hidden_size]  bias=attention_bias
  .qkv_proj.conv_qk_depthwise         convolution [Width, cca_time0]  bias
  .qkv_proj.conv_qk_grouped.weight    any
  .qkv_proj.conv_qk_grouped.bias      vector [Width]
  .qk_norm.temp                       vector [num_key_value_heads]
  .o_proj                             linear [hidden_size, num_attention_heads*head_dim]  bias=attention_bias
)"};
constexpr FamilyBlock kZaya{R"(
  model.embed_tokens                      embedding [vocab_size, hidden_size]
  model.norm                              norm [hidden_size]
  lm_head                                 linear [vocab_size, hidden_size]  may bias=lm_head_bias
  model.input_hidden_states_{scale,bias}  vector [hidden_size]
  .mlp.gate.down_proj                     linear [router_hidden_size, hidden_size]  bias
  .mlp.gate.router_mlp.{fc1,fc2}          linear [router_hidden_size, router_hidden_size]  bias
  .mlp.gate.router_mlp.norm               norm [router_hidden_size]
  .mlp.gate.router_mlp.out_proj           linear [num_experts+1, router_hidden_size]
  .mlp.gate.balancing_biases              vector [num_experts+1]
  .mlp.gate.router_states_scale           vector [router_hidden_size]  may
  .mlp.experts.gate_up_proj               row_stack [2*moe_intermediate_size, hidden_size]
  .mlp.experts.down_proj                  row_stack [hidden_size, moe_intermediate_size]
  .mlp.experts.#.{gate,up,~down}_proj     linear [moe_intermediate_size, hidden_size]
  .post_{attention,mlp}_residual_scale.{hidden_states,residual}_{scale,bias}  vector [hidden_size]
)"};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"hy_v3"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHeadNorms, kHyDense, kHyBlock, kSparseExperts},
     .defaults = R"(hidden_size=4096 intermediate_size=13312 vocab_size=120832 num_hidden_layers=80
       num_attention_heads=64 num_key_value_heads=8 head_dim=128 attention_bias=false mlp_bias=false
       num_experts=num_local_experts num_local_experts=192 num_experts_per_tok=8 num_shared_experts=1
       moe_intermediate_size=1536 first_k_dense_replace=1 tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types, first_k_dense_replace"}},
    {.model_types = {"laguna"},
     .parameters = {kFrame, kTwoNorms, kHeadNorms, kDenseMlp, kLaguna, kPlainGate, kSparseExperts},
     .defaults = R"(hidden_size=2048 intermediate_size=8192 vocab_size=100352 num_hidden_layers=40
       num_attention_heads=48 num_key_value_heads=8 head_dim=128
       num_attention_heads_per_layer=num_attention_heads attention_bias=false num_experts=256
       num_experts_per_tok=8 moe_intermediate_size=512 shared_expert_intermediate_size=512
       first_k_dense_replace=1 tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types"}},
    {.model_types = {"mimo_v2_flash"},
     .parameters = {kFrame, kTwoNorms, kDenseMlp, kMimo, kRoutedGate, kSparseExperts},
     .defaults = R"(hidden_size=4096 intermediate_size=16384 vocab_size=152576 num_hidden_layers=48
       num_attention_heads=64 num_key_value_heads=4 head_dim=192 v_head_dim=128 attention_bias=false
       n_routed_experts=num_local_experts num_local_experts=256 num_experts_per_tok=8
       moe_intermediate_size=2048 first_k_dense_replace=1 tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types, moe_layer_freq"},
     .mixer = {mimo_mixer, "layer_types, hybrid_layer_pattern"}},
    {.model_types = {"step3p5"},
     .parameters = {kFrame, kTwoNorms, kHeadNorms, kDenseMlp, kStep},
     .defaults = R"(hidden_size=4096 intermediate_size=11264 vocab_size=128815 num_hidden_layers=45
       num_attention_heads=64 num_key_value_heads=num_attention_groups num_attention_groups=8 head_dim=128
       attention_bias=false num_sliding_attention_heads=attention_other_setting.num_attention_heads
       n_routed_experts=moe_num_experts moe_num_experts=288 num_experts_per_tok=moe_top_k moe_top_k=8
       moe_intermediate_size=1280 share_expert_dim=share_expert_dims share_expert_dims=1280
       num_nextn_predict_layers=num_mtp_layers tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok"},
     .mlp = {step_mlp, "mlp_layer_types, moe_layers_enum"},
     .mixer = {step_mixer, "layer_types"},
     .drafts = "num_nextn_predict_layers",
     .outer_type = "step3p7",
     .norms_add_one = true},
    {.model_types = {"muse_glimmer_text"},
     .parameters = {kFrame, kFourNorms, kBiasedAttention, kMlp, kMuseGate},
     .defaults = R"(hidden_size=6656 intermediate_size=19968 vocab_size=202048 num_hidden_layers=52
       num_attention_heads=32 num_key_value_heads=2 head_dim=128 attention_bias=false
       tie_word_embeddings=false)",
     .outer_type = "muse_glimmer",
     .norms_add_one = true},
    {.model_types = {"mistral4"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kDenseMlp, kMistral4Gate, kSharedExperts,
                    kStackedExperts, kSparseExperts},
     .defaults = R"(hidden_size=4096 intermediate_size=12288 vocab_size=131072 num_hidden_layers=36
       num_attention_heads=32 attention_bias=false n_routed_experts=num_local_experts num_local_experts=128
       num_experts_per_tok=4 n_shared_experts=1 moe_intermediate_size=2048 first_k_dense_replace=0
       kv_lora_rank=256 q_lora_rank=1024 qk_nope_head_dim=64 qk_rope_head_dim=64 v_head_dim=128
       tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok", kRowStacks},
     .mlp = {sparse_behind_first, "first_k_dense_replace"}},
    {.model_types = {"hy_v4"},
     .parameters = {kFrame, kTwoNorms, kLatentAttention, kHy4Gate, kHy4Indexer, kHy4, kRoutedGate,
                    kStackedExperts, kSparseExperts},
     .defaults = R"(hidden_size=2816 intermediate_size=6912 vocab_size=120832 num_hidden_layers=34
       num_attention_heads=32 attention_bias=false n_routed_experts=num_local_experts num_local_experts=256
       num_experts_per_tok=8 n_shared_experts=1 moe_intermediate_size=768 first_k_dense_replace=1
       kv_lora_rank=512 q_lora_rank=1536 qk_nope_head_dim=192 qk_rope_head_dim=64 v_head_dim=256
       index_head_dim=128 index_n_heads=16 hc_mult=4 tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "num_experts_per_tok", kRowStacks},
     .mlp = {sparse_behind_first, "mlp_layer_types"}},
    {.model_types = {"longcat_flash"},
     .parameters = {kFrame, kLongcatNorms, kLongcatAttention, kLongcat},
     .defaults = R"(hidden_size=6144 ffn_hidden_size=intermediate_size intermediate_size=12288
       vocab_size=131072 num_hidden_layers=num_layers num_layers=28 num_attention_heads=64
       attention_bias=false n_routed_experts=num_local_experts num_local_experts=512 zero_expert_num=256
       moe_topk=num_experts_per_tok num_experts_per_tok=12 expert_ffn_hidden_size=2048 kv_lora_rank=512
       q_lora_rank=1536 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128 tie_word_embeddings=false)",
     .experts = {"n_routed_experts", "moe_topk", kApart}},
    {.model_types = {"dots3_note"},
     .parameters = {kFrame, kTwoNorms, kDots3Full, kDots3Indexer, kDots3Window, kRoutedGate, kSharedExperts,
                    kSparseExperts, kDenseMlp},
     .defaults = "first_k_dense_replace=0 tie_word_embeddings=false",
     .experts = {"n_routed_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "first_k_dense_replace, moe_layer_freq"},
     .mixer = {dots_mixer, "layer_types"},
     .is_open = true},
    {.model_types = {"zaya"},
     .parameters = {kZaya, kTwoNorms, kZayaAttention},
     .defaults = R"(hidden_size=2048 vocab_size=262272 num_hidden_layers=40 num_attention_heads=8
       num_key_value_heads=2 head_dim=128 attention_bias=false lm_head_bias=false num_experts=16
       num_experts_per_tok=1 moe_intermediate_size=2048 router_hidden_size=256 cca_time0=2
       tie_word_embeddings=true)",
     .experts = {"num_experts", "num_experts_per_tok", kRowStacks}},
};

}  // namespace
}  // namespace families::windowed

std::span<const FamilyShapes> windowed_families() { return families::windowed::kFamilies; }

}  // namespace twofour
