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
  // As llm-compressor names them.
  .feed_forward.experts.#.{gate,up,~down}_proj  linear [moe_intermediate_size, hidden_size]
)"};

/// Gemma-4: sizes of attention are in per_layer_config or global_head_dim too, and left open.
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

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"lfm2"},
     .parameters = {kLfm2Frame, kLfm2Mixer, kLfm2Mlp},
     .defaults = R"(hidden_size=2560 vocab_size=65536 num_hidden_layers=32 num_attention_heads=32
       num_key_value_heads=8 conv_bias=false conv_L_cache=3 tie_word_embeddings=true)",
     .mixer = {lfm2_mixer, "layer_types, full_attn_idxs"}},
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
     .outer_type = "gemma4"},
};

}  // namespace
}  // namespace families::hybrid

std::span<const FamilyShapes> hybrid_families() { return families::hybrid::kFamilies; }

}  // namespace twofour
