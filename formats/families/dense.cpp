#include "formats/families/rows.h"

// Families whose layers all have the same attention and one MLP: Llama, Mistral, Qwen3, Gemma-3, GLM-4, OLMo.

namespace twofour {
namespace families::dense {
namespace {

constexpr FamilyBlock kQwen2Attention{kAttention, {"bias"}};
constexpr FamilyBlock kSeedAttention{kAttention, {"bias=attention_bias", "bias=attention_out_bias"}};
constexpr FamilyBlock kMlpUseBias{kGatedMlp, {"", "bias=use_bias"}};

constexpr FamilyBlock kFusedGateUp{R"(
  .mlp.gate_up_proj  linear [2*intermediate_size, hidden_size]
  .mlp.down_proj     linear [hidden_size, intermediate_size]
)"};
constexpr FamilyBlock kFusedQkv{R"(
  .self_attn.qkv_proj  linear [num_attention_heads*head_dim+2*num_key_value_heads*head_dim, hidden_size]
  .self_attn.o_proj    linear [hidden_size, num_attention_heads*head_dim]
)"};
constexpr FamilyBlock kGlm4Norms{
    ".{input,post_attention,post_self_attn,post_mlp}_layernorm  norm [hidden_size]"};
constexpr FamilyBlock kHunyuanNorms{".self_attn.{query,key}_layernorm  norm [head_dim]"};
constexpr FamilyBlock kBareUpDown{".mlp.{up,~down}_proj  linear [intermediate_size, hidden_size]"};

/// Apertus. Its activation has two parameters in each layer.
constexpr FamilyBlock kApertus{R"(
  .{attention,feedforward}_layernorm  norm [hidden_size]
  .mlp.act_fn.alpha_{p,n}             vector [1]  hidden_act=xielu
  .mlp.act_fn.{beta,eps}              any  may
)"};
constexpr FamilyBlock kBitnetNorms{R"(
  .self_attn.attn_sub_norm  norm [hidden_size]
  .mlp.ffn_sub_norm         norm [intermediate_size]
)"};

// Families that differ from Llama in the norms of their layers: LayerNorm with a bias, one norm for both
// attention and MLP, or norms without parameters.

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
    {.model_types = {"llama"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kMlpBias},
     .defaults = R"(hidden_size=4096 intermediate_size=11008 vocab_size=32000 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false mlp_bias=false tie_word_embeddings=false)",
     .traits = {{.states_theta = true, .positions = 2048}},
     .activations = FamilyActivations::kSiluOrRelu},
    {.model_types = {"smollm3"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kMlpBias},
     .defaults = R"(hidden_size=2048 intermediate_size=11008 vocab_size=128256 num_hidden_layers=36
       num_attention_heads=16 num_key_value_heads=4 attention_bias=false mlp_bias=false
       tie_word_embeddings=true)"},
    {.model_types = {"granite"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kMlpBias},
     .defaults = R"(hidden_size=4096 intermediate_size=11008 vocab_size=32000 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false mlp_bias=false tie_word_embeddings=false)"},
    {.model_types = {"mistral", "ministral3"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kMlp},
     .defaults = R"(hidden_size=4096 intermediate_size=14336 vocab_size=32000 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=8 tie_word_embeddings=false)",
     .traits = {{.windows = WindowRule::kAllOrConfigured,
                 .window = 4096,
                 .states_theta = true,
                 .positions = 131072}},
     .activations = FamilyActivations::kSiluOrRelu},
    {.model_types = {"qwen2"},
     .parameters = {kFrame, kTwoNorms, kQwen2Attention, kMlp},
     .defaults = R"(hidden_size=4096 intermediate_size=22016 vocab_size=151936 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=32 tie_word_embeddings=false)",
     .traits = {{.windows = WindowRule::kFrom, .window = 4096, .states_theta = true, .positions = 32768}},
     .activations = FamilyActivations::kSilu},
    {.model_types = {"qwen3", "qwen3_vl_text"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHeadNorms, kMlp},
     .defaults = R"(hidden_size=4096 intermediate_size=22016 vocab_size=151936 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=32 head_dim=128 attention_bias=false
       tie_word_embeddings=false)",
     .traits = {{.windows = WindowRule::kFrom, .window = 4096, .states_theta = true, .positions = 32768}},
     .activations = FamilyActivations::kSilu},
    {.model_types = {"olmo2", "olmo3"},
     .parameters = {kFrame, kNormsBehind, kBiasedAttention, kWideNorms, kMlp},
     .defaults = R"(hidden_size=4096 intermediate_size=11008 vocab_size=50304 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false tie_word_embeddings=false)",
     .activations = FamilyActivations::kSilu},
    {.model_types = {"exaone4"},
     .parameters = {kFrame, kNormsBehind, kPlainAttention, kHeadNorms, kMlp},
     .defaults = R"(hidden_size=4096 intermediate_size=16384 vocab_size=102400 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=32 tie_word_embeddings=false)"},
    {.model_types = {"phi3"},
     .parameters = {kFrame, kTwoNorms, kFusedQkv, kFusedGateUp},
     .defaults = R"(hidden_size=3072 intermediate_size=8192 vocab_size=32064 num_hidden_layers=32
       num_attention_heads=32 tie_word_embeddings=false)",
     .activations = FamilyActivations::kSilu},
    {.model_types = {"glm4"},
     .parameters = {kFrame, kGlm4Norms, kQkvBiased, kFusedGateUp},
     .defaults = R"(hidden_size=4096 intermediate_size=13696 vocab_size=151552 num_hidden_layers=40
       num_attention_heads=32 num_key_value_heads=2 head_dim=128 attention_bias=true
       tie_word_embeddings=false)",
     .activations = FamilyActivations::kSilu},
    {.model_types = {"gemma2"},
     .parameters = {kFrame, kFourNorms, kBiasedAttention, kMlp},
     .defaults = R"(hidden_size=2304 intermediate_size=9216 vocab_size=256000 num_hidden_layers=26
       num_attention_heads=8 num_key_value_heads=4 head_dim=256 attention_bias=false
       tie_word_embeddings=true)",
     .norms_add_one = true,
     .activations = FamilyActivations::kGelu},
    {.model_types = {"gemma3_text"},
     .parameters = {kFrame, kFourNorms, kBiasedAttention, kHeadNorms, kMlp},
     .defaults = R"(hidden_size=2304 intermediate_size=9216 vocab_size=262208 num_hidden_layers=26
       num_attention_heads=8 num_key_value_heads=4 head_dim=256 attention_bias=false
       tie_word_embeddings=true)",
     .traits = {{.windows = WindowRule::kPattern,
                 .window = 4096,
                 .theta = 1e6,
                 .positions = 131072,
                 .window_theta = 10000,
                 .gemma = true}},
     .norms_add_one = true,
     .activations = FamilyActivations::kGelu},
    {.model_types = {"seed_oss"},
     .parameters = {kFrame, kTwoNorms, kSeedAttention, kMlpBias},
     .defaults = R"(hidden_size=4096 intermediate_size=27648 vocab_size=155136 num_hidden_layers=64
       num_attention_heads=80 num_key_value_heads=8 head_dim=128 attention_bias=true
       attention_out_bias=false mlp_bias=false tie_word_embeddings=false)",
     .activations = FamilyActivations::kSilu},
    {.model_types = {"ernie4_5"},
     .parameters = {kFrame, kTwoNorms, kUseBias, kMlpUseBias},
     .defaults = R"(hidden_size=1024 intermediate_size=3072 vocab_size=103424 num_hidden_layers=18
       num_attention_heads=16 num_key_value_heads=2 head_dim=128 use_bias=false tie_word_embeddings=true)"},
    {.model_types = {"hunyuan_v1_dense"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHunyuanNorms, kMlp},
     .defaults = R"(hidden_size=4096 intermediate_size=11008 vocab_size=290943 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false tie_word_embeddings=false)",
     .class_names = {"hunyuan_dense_v1"}},
    {.model_types = {"arcee"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kUpDown},
     .defaults = R"(hidden_size=2560 intermediate_size=18432 vocab_size=32000 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false mlp_bias=false tie_word_embeddings=false)"},
    {.model_types = {"gemma"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kMlp},
     .defaults = R"(hidden_size=3072 intermediate_size=24576 vocab_size=256000 num_hidden_layers=28
       num_attention_heads=16 num_key_value_heads=16 head_dim=256 attention_bias=false
       tie_word_embeddings=true)",
     .norms_add_one = true,
     .activations = FamilyActivations::kGelu},
    {.model_types = {"glm"},
     .parameters = {kFrame, kTwoNorms, kQkvBiased, kFusedGateUp},
     .defaults = R"(hidden_size=4096 intermediate_size=13696 vocab_size=151552 num_hidden_layers=40
       num_attention_heads=32 num_key_value_heads=2 head_dim=128 attention_bias=true
       tie_word_embeddings=false)"},
    {.model_types = {"helium"},
     .parameters = {kFrame, kTwoNorms, kQkvBiased, kMlpBias},
     .defaults = R"(hidden_size=2560 intermediate_size=7040 vocab_size=48000 num_hidden_layers=24
       num_attention_heads=20 num_key_value_heads=20 head_dim=128 attention_bias=false mlp_bias=false
       tie_word_embeddings=false)"},
    {.model_types = {"apertus"},
     .parameters = {kFrame, kApertus, kBiasedAttention, kHeadNorms, kBareUpDown},
     .defaults = R"(hidden_size=4096 intermediate_size=14336 vocab_size=131072 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false tie_word_embeddings=false)"},
    {.model_types = {"bitnet"},
     .parameters = {kFrame, kTwoNorms, kBitnetNorms, kBiasedAttention, kMlp},
     .defaults = R"(hidden_size=2560 intermediate_size=6912 vocab_size=128256 num_hidden_layers=30
       num_attention_heads=20 num_key_value_heads=5 attention_bias=false tie_word_embeddings=false)"},
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
}  // namespace families::dense

std::span<const FamilyShapes> dense_families() { return families::dense::kFamilies; }

}  // namespace twofour
