#include "formats/families/rows.h"

// Families whose layers differ from Llama's in norms: LayerNorm with a bias, one norm for attention and MLP,
// norms without parameters.

namespace twofour {
namespace families::layer_norm {
namespace {

constexpr FamilyBlock kBiasedFrame{R"(
  model.embed_tokens  embedding [vocab_size, hidden_size]
  model.norm          norm [hidden_size]  bias
  lm_head             linear [vocab_size, hidden_size]  may
)"};
constexpr FamilyBlock kTwoBiasedNorms{".{input,post_attention}_layernorm  norm [hidden_size]  bias"};

/// OLMo's norms have no parameters.
constexpr FamilyBlock kBareFrame{R"(
  model.embed_tokens  embedding [vocab_size, hidden_size]
  lm_head             linear [vocab_size, hidden_size]  may
)"};

/// Cohere's attention and MLP read the same normed inputs.
constexpr FamilyBlock kOneNorm{".input_layernorm  norm [hidden_size]"};
constexpr FamilyBlock kCohereNorms{R"(
  .input_layernorm          norm [hidden_size]
  .self_attn.q_norm.weight  matrix [num_attention_heads, head_dim]  use_qk_norm
  .self_attn.k_norm.weight  matrix [num_key_value_heads, head_dim]  use_qk_norm
)"};

constexpr FamilyBlock kStarcoderMlp{
    ".mlp.c_{fc,~proj}  linear [intermediate_size, hidden_size]  bias=use_bias"};

constexpr FamilyBlock kStablelmAttention{kAttention, {"bias=use_qkv_bias"}};
constexpr FamilyBlock kStablelmNorms{R"(
  .input_layernorm                    norm [hidden_size]  bias
  .post_attention_layernorm           norm [hidden_size]  !use_parallel_residual bias
  .self_attn.{q,k}_layernorm.norms.#  norm [head_dim]  qk_layernorm
)"};

constexpr FamilyBlock kPersimmon{R"(
  model.embed_tokens             embedding [vocab_size, hidden_size]
  model.final_layernorm          norm [hidden_size]  bias
  lm_head                        linear [vocab_size, hidden_size]  may
  .self_attn.query_key_value     linear [3*hidden_size, hidden_size]  bias
  .self_attn.dense               linear [hidden_size, hidden_size]  bias
  .self_attn.{q,k}_layernorm     norm [hidden_size/num_attention_heads]  qk_layernorm bias
  .mlp.dense_{h_to_4h,~4h_to_h}  linear [intermediate_size, hidden_size]  bias
)"};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"nemotron"},
     .parameters = {kBiasedFrame, kTwoBiasedNorms, kBiasedAttention, kUpDown},
     .defaults = R"(hidden_size=6144 intermediate_size=24576 vocab_size=256000 num_hidden_layers=32
       num_attention_heads=48 attention_bias=false mlp_bias=false tie_word_embeddings=false)",
     .norms_add_one = true},
    {.model_types = {"olmo"},
     .parameters = {kBareFrame, kBiasedAttention, kMlp},
     .defaults = R"(hidden_size=4096 intermediate_size=11008 vocab_size=50304 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false tie_word_embeddings=false)"},
    {.model_types = {"cohere"},
     .parameters = {kFrame, kCohereNorms, kBiasedAttention, kMlp},
     .defaults = R"(hidden_size=8192 intermediate_size=22528 vocab_size=256000 num_hidden_layers=40
       num_attention_heads=64 attention_bias=false use_qk_norm=false tie_word_embeddings=true)"},
    {.model_types = {"cohere2"},
     .parameters = {kFrame, kOneNorm, kBiasedAttention, kMlp},
     .defaults = R"(hidden_size=8192 intermediate_size=22528 vocab_size=256000 num_hidden_layers=40
       num_attention_heads=64 attention_bias=false tie_word_embeddings=true)"},
    {.model_types = {"starcoder2"},
     .parameters = {kBiasedFrame, kTwoBiasedNorms, kUseBias, kStarcoderMlp},
     .defaults = R"(hidden_size=3072 intermediate_size=12288 vocab_size=49152 num_hidden_layers=30
       num_attention_heads=24 num_key_value_heads=2 use_bias=true tie_word_embeddings=true)"},
    {.model_types = {"stablelm"},
     .parameters = {kBiasedFrame, kStablelmNorms, kStablelmAttention, kMlp},
     .defaults = R"(hidden_size=2560 intermediate_size=6912 vocab_size=50304 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=32 use_qkv_bias=false qk_layernorm=false
       use_parallel_residual=false tie_word_embeddings=false)"},
    {.model_types = {"persimmon"},
     .parameters = {kPersimmon, kTwoBiasedNorms},
     .defaults = R"(hidden_size=4096 intermediate_size=16384 vocab_size=262144 num_hidden_layers=36
       num_attention_heads=64 qk_layernorm=true tie_word_embeddings=false)",
     .norms_add_one = true},
};

}  // namespace
}  // namespace families::layer_norm

std::span<const FamilyShapes> layer_norm_families() { return families::layer_norm::kFamilies; }

}  // namespace twofour
