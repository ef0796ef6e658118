#include "formats/families/rows.h"

// Families whose layers differ from Llama's in norms: LayerNorm with a bias, one norm for attention and MLP,
// norms without parameters.

namespace twofour {
namespace families::layer_norm {
namespace {

constexpr FamilyParameter kBiasedFrame[] = {
    {Kind::kEmbedding, "model.embed_tokens", "vocab_size", "hidden_size"},
    {Kind::kNorm, "model.norm", "hidden_size", "", "", ""},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may"},
};
constexpr FamilyParameter kTwoBiasedNorms[] = {
    {Kind::kNorm, "model.layers.#.input_layernorm", "hidden_size", "", "", ""},
    {Kind::kNorm, "model.layers.#.post_attention_layernorm", "hidden_size", "", "", ""},
};
constexpr auto kUpDown = up_down("mlp_bias");

/// OLMo's norms have no parameters.
constexpr FamilyParameter kBareFrame[] = {
    {Kind::kEmbedding, "model.embed_tokens", "vocab_size", "hidden_size"},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may"},
};

/// Cohere's attention and MLP read the same normed inputs.
constexpr FamilyParameter kOneNorm[] = {
    {Kind::kNorm, "model.layers.#.input_layernorm", "hidden_size"},
};
constexpr FamilyParameter kCohereNorms[] = {
    {Kind::kNorm, "model.layers.#.input_layernorm", "hidden_size"},
    {Kind::kMatrix, "model.layers.#.self_attn.q_norm.weight", "num_attention_heads", "head_dim",
     "use_qk_norm"},
    {Kind::kMatrix, "model.layers.#.self_attn.k_norm.weight", "num_key_value_heads", "head_dim",
     "use_qk_norm"},
};

constexpr auto kStarcoderAttention = attention("use_bias", "use_bias");
constexpr FamilyParameter kStarcoderMlp[] = {
    {Kind::kLinear, "model.layers.#.mlp.c_fc", "intermediate_size", "hidden_size", "", "use_bias"},
    {Kind::kLinear, "model.layers.#.mlp.c_proj", "hidden_size", "intermediate_size", "", "use_bias"},
};

constexpr auto kStablelmAttention = attention("use_qkv_bias", nullptr);
constexpr FamilyParameter kStablelmNorms[] = {
    {Kind::kNorm, "model.layers.#.input_layernorm", "hidden_size", "", "", ""},
    {Kind::kNorm, "model.layers.#.post_attention_layernorm", "hidden_size", "", "!use_parallel_residual", ""},
    {Kind::kNorm, "model.layers.#.self_attn.q_layernorm.norms.#", "head_dim", "", "qk_layernorm"},
    {Kind::kNorm, "model.layers.#.self_attn.k_layernorm.norms.#", "head_dim", "", "qk_layernorm"},
};

constexpr FamilyParameter kPersimmon[] = {
    {Kind::kEmbedding, "model.embed_tokens", "vocab_size", "hidden_size"},
    {Kind::kNorm, "model.final_layernorm", "hidden_size", "", "", ""},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may"},
    {Kind::kLinear, "model.layers.#.self_attn.query_key_value", "3*hidden_size", "hidden_size", "", ""},
    {Kind::kLinear, "model.layers.#.self_attn.dense", "hidden_size", "hidden_size", "", ""},
    {Kind::kNorm, "model.layers.#.self_attn.q_layernorm", "hidden_size/num_attention_heads", "",
     "qk_layernorm", ""},
    {Kind::kNorm, "model.layers.#.self_attn.k_layernorm", "hidden_size/num_attention_heads", "",
     "qk_layernorm", ""},
    {Kind::kLinear, "model.layers.#.mlp.dense_h_to_4h", "intermediate_size", "hidden_size", "", ""},
    {Kind::kLinear, "model.layers.#.mlp.dense_4h_to_h", "hidden_size", "intermediate_size", "", ""},
};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"nemotron"},
     .parameters = {kBiasedFrame, kTwoBiasedNorms, kBiasedAttention, kUpDown},
     .defaults = R"({"hidden_size": 6144, "intermediate_size": 24576, "vocab_size": 256000,
       "num_hidden_layers": 32, "num_attention_heads": 48, "attention_bias": false, "mlp_bias": false,
       "tie_word_embeddings": false})",
     .norms_add_one = true},
    {.model_types = {"olmo"},
     .parameters = {kBareFrame, kBiasedAttention, kMlp},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 50304,
       "num_hidden_layers": 32, "num_attention_heads": 32, "attention_bias": false,
       "tie_word_embeddings": false})"},
    {.model_types = {"cohere"},
     .parameters = {kFrame, kCohereNorms, kBiasedAttention, kMlp},
     .defaults = R"({"hidden_size": 8192, "intermediate_size": 22528, "vocab_size": 256000,
       "num_hidden_layers": 40, "num_attention_heads": 64, "attention_bias": false, "use_qk_norm": false,
       "tie_word_embeddings": true})"},
    {.model_types = {"cohere2"},
     .parameters = {kFrame, kOneNorm, kBiasedAttention, kMlp},
     .defaults = R"({"hidden_size": 8192, "intermediate_size": 22528, "vocab_size": 256000,
       "num_hidden_layers": 40, "num_attention_heads": 64, "attention_bias": false,
       "tie_word_embeddings": true})"},
    {.model_types = {"starcoder2"},
     .parameters = {kBiasedFrame, kTwoBiasedNorms, kStarcoderAttention, kStarcoderMlp},
     .defaults = R"({"hidden_size": 3072, "intermediate_size": 12288, "vocab_size": 49152,
       "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2, "use_bias": true,
       "tie_word_embeddings": true})"},
    {.model_types = {"stablelm"},
     .parameters = {kBiasedFrame, kStablelmNorms, kStablelmAttention, kMlp},
     .defaults = R"({"hidden_size": 2560, "intermediate_size": 6912, "vocab_size": 50304,
       "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "use_qkv_bias": false,
       "qk_layernorm": false, "use_parallel_residual": false, "tie_word_embeddings": false})"},
    {.model_types = {"persimmon"},
     .parameters = {kPersimmon, kTwoBiasedNorms},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 16384, "vocab_size": 262144,
       "num_hidden_layers": 36, "num_attention_heads": 64, "qk_layernorm": true,
       "tie_word_embeddings": false})",
     .norms_add_one = true},
};

}  // namespace
}  // namespace families::layer_norm

std::span<const FamilyShapes> layer_norm_families() { return families::layer_norm::kFamilies; }

}  // namespace twofour
