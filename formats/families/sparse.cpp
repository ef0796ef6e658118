#include "formats/families/rows.h"

// Families with ordinary attention and with experts that are stored apart: Qwen3-MoE, Mixtral, MiniMax-M2.

namespace twofour {
namespace families::sparse {
namespace {

constexpr FamilyBlock kQkvBias{kAttention, {"bias=qkv_bias"}};
constexpr FamilyBlock kOlmoExperts{R"(
  .mlp.gate                            router [num_experts, hidden_size]
  .mlp.experts.#.{gate,up,~down}_proj  linear [intermediate_size, hidden_size]
)"};

constexpr FamilyBlock kMixtralBlock{R"(
  .block_sparse_moe.gate                   router [num_local_experts, hidden_size]
  .block_sparse_moe.experts.#.{w1,w3,~w2}  linear [intermediate_size, hidden_size]
)"};
constexpr FamilyBlock kMiniMaxCorrection{R"(
  .block_sparse_moe.e_score_correction_bias  vector [num_local_experts]
  .mlp.e_score_correction_bias               vector [num_local_experts]  may
)"};
/// Names that llm-compressor and ModelOpt give to these experts and routers.
constexpr FamilyBlock kRenamedBlock{R"(
  .block_sparse_moe.experts.#.{gate,up,~down}_proj  linear [intermediate_size, hidden_size]  alias
  .mlp.gate                                         router [num_local_experts, hidden_size]  may alias
  .mlp.experts.#.{gate,up,~down}_proj               linear [intermediate_size, hidden_size]  alias
)"};
/// Embedding, norms and head of Phi. The head and the norms have biases.
constexpr FamilyBlock kPhiFrame{R"(
  model.embed_tokens                 embedding [vocab_size, hidden_size]
  model.norm                         norm [hidden_size]  bias
  lm_head                            linear [vocab_size, hidden_size]  may bias=lm_head_bias
  .{input,post_attention}_layernorm  norm [hidden_size]  bias
)"};
/// The experts of Phi. llm-compressor writes the router under the name that it has in the model.
constexpr FamilyBlock kPhiExperts{R"(
  .mlp.experts.#.{w1,w3,~w2}  linear [intermediate_size, hidden_size]
  .mlp.router                 router [num_local_experts, hidden_size]  may
)"};

std::string_view ernie_mlp(const FamilySizes& sizes, int64_t layer) {
  const int64_t every = std::max<int64_t>(sizes.number("moe_layer_interval").value_or(1), 1);
  const bool sparse = (layer + 1) % every == 0 &&
                      layer >= sizes.number("moe_layer_start_index").value_or(0) &&
                      layer <= sizes.number("moe_layer_end_index").value_or(INT64_MAX);
  return sparse ? "sparse" : "dense";
}
constexpr FamilyBlock kErnieFrame{R"(
  model.embed_tokens  embedding [vocab_size, hidden_size]
  model.norm          norm [hidden_size]
  lm_head             linear [vocab_size, hidden_size]  may bias=use_bias
)"};
constexpr FamilyBlock kErnieMlp{kGatedMlp, {"@dense", "bias=use_bias"}};
constexpr FamilyBlock kErnieGate{R"(
  .mlp.gate                                      router [moe_num_experts, hidden_size]  @sparse
  .mlp.moe_statics.e_score_correction_bias       matrix [1, moe_num_experts]  @sparse
  .mlp.gate.moe_statics.e_score_correction_bias  matrix [1, moe_num_experts]  @sparse may
)"};
constexpr FamilyBlock kErnieShared{R"(
  Width = moe_num_shared_experts*moe_intermediate_size
  if @sparse moe_num_shared_experts
  .mlp.shared_experts.{gate,up,~down}_proj  linear [Width, hidden_size]  bias=use_bias
)"};

constexpr FamilyBlock kHunyuanBlock{R"(
  .self_attn.{query,key}_layernorm      norm [head_dim]
  .mlp.gate.wg                          router [num_experts, hidden_size]
  .mlp.shared_mlp.{gate,up,~down}_proj  linear [intermediate_size, hidden_size]
  .mlp.experts.#.{gate,up,~down}_proj   linear [intermediate_size, hidden_size]
)"};

constexpr FamilyBlock kExaoneGate{R"(
  .mlp.gate                          router [num_experts, hidden_size]  @sparse
  .mlp.e_score_correction_bias       vector [num_experts]  @sparse
  .mlp.gate.e_score_correction_bias  vector [num_experts]  @sparse may
)"};
constexpr FamilyBlock kExaoneShared{R"(
  if @sparse num_shared_experts
  .mlp.shared_experts.{gate,up,~down}_proj  linear [num_shared_experts*moe_intermediate_size, hidden_size]
)"};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"qwen2_moe"},
     .parameters = {kFrame, kTwoNorms, kQkvBias, kDenseMlp, kPlainGate, kSparseExperts, kExpertStacks,
                    kSharedExpert},
     .defaults = R"(hidden_size=2048 intermediate_size=5632 vocab_size=151936 num_hidden_layers=24
       num_attention_heads=16 num_key_value_heads=16 qkv_bias=true num_experts=60 num_experts_per_tok=4
       moe_intermediate_size=1408 shared_expert_intermediate_size=5632 decoder_sparse_step=1
       tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_by_step, "decoder_sparse_step, mlp_only_layers"},
     .router = kSoftmaxIfConfigured,
     .traits = {{.windows = WindowRule::kEven, .window = 4096, .states_theta = true, .positions = 32768}},
     .activations = FamilyActivations::kSilu},
    {.model_types = {"qwen3_moe"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHeadNorms, kDenseMlp, kPlainGate, kSparseExperts,
                    kExpertStacks},
     .defaults = R"(hidden_size=2048 intermediate_size=6144 vocab_size=151936 num_hidden_layers=24
       num_attention_heads=32 num_key_value_heads=4 attention_bias=false num_experts=num_local_experts
       num_local_experts=128 num_experts_per_tok=8 moe_intermediate_size=768 decoder_sparse_step=1
       tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_by_step, "decoder_sparse_step, mlp_only_layers"},
     .router = kSoftmaxIfConfigured,
     .traits = {{.windows = WindowRule::kIfUsed, .window = 4096, .states_theta = true, .positions = 32768}},
     .activations = FamilyActivations::kSilu},
    {.model_types = {"mixtral"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kMixtralBlock, kRenamedBlock},
     .defaults = R"(hidden_size=4096 intermediate_size=14336 vocab_size=32000 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=8 num_local_experts=num_experts num_experts=8
       num_experts_per_tok=2 tie_word_embeddings=false)",
     .experts = {"num_local_experts", "num_experts_per_tok", kApart},
     .router = kSoftmax,
     .traits = {{.windows = WindowRule::kAll, .epsilon = 1e-5, .theta = 1e6, .positions = 131072}},
     .activations = FamilyActivations::kSilu},
    {.model_types = {"minimax_m2"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kWideNorms, kMixtralBlock, kMiniMaxCorrection,
                    kRenamedBlock},
     .defaults = R"(hidden_size=3072 intermediate_size=1536 vocab_size=200064 num_hidden_layers=62
       num_attention_heads=48 num_key_value_heads=8 head_dim=128 num_local_experts=num_experts
       num_experts=256 num_experts_per_tok=8 tie_word_embeddings=false)",
     .experts = {"num_local_experts", "num_experts_per_tok", kApart},
     .drafts = "num_mtp_modules",
     .router = {{.scores = RouterScores::kSigmoid, .correction = "e_score_correction_bias"}},
     .traits = {{.theta = 5e6, .rotated = 0, .positions = 196608}}},
    {.model_types = {"phimoe"},
     .parameters = {kPhiFrame, kBiasedAttention, kMixtralBlock, kRenamedBlock, kPhiExperts},
     .defaults = R"(hidden_size=4096 intermediate_size=6400 vocab_size=32064 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=8 attention_bias=false lm_head_bias=false
       num_local_experts=16 num_experts_per_tok=2 tie_word_embeddings=false)",
     .experts = {"num_local_experts", "num_experts_per_tok", kApart},
     .router_is_float = true},
    {.model_types = {"olmoe"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kWideNorms, kOlmoExperts},
     .defaults = R"(hidden_size=2048 intermediate_size=2048 vocab_size=50304 num_hidden_layers=16
       num_attention_heads=16 attention_bias=false num_experts=num_local_experts num_local_experts=64
       num_experts_per_tok=8 tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .router = kSoftmaxIfConfigured,
     .traits = {{.epsilon = 1e-5, .positions = 4096, .clips_qkv = true}},
     .activations = FamilyActivations::kSilu},
    {.model_types = {"flex_olmo"},
     .parameters = {kFrame, kNormsBehind, kBiasedAttention, kWideNorms, kOlmoExperts},
     .defaults = R"(hidden_size=4096 intermediate_size=11008 vocab_size=100352 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false num_experts=num_local_experts num_local_experts=7
       num_experts_per_tok=5 tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .router = kSoftmaxIfConfigured},
    {.model_types = {"ernie4_5_moe"},
     .parameters = {kErnieFrame, kTwoNorms, kUseBias, kErnieMlp, kErnieGate, kSparseExperts, kErnieShared},
     .defaults = R"(hidden_size=2560 intermediate_size=12288 vocab_size=103424 num_hidden_layers=28
       num_attention_heads=20 num_key_value_heads=4 use_bias=false moe_num_experts=num_experts
       num_experts=64 moe_k=num_experts_per_tok num_experts_per_tok=6 moe_intermediate_size=1536
       moe_num_shared_experts=2 moe_layer_start_index=1 moe_layer_interval=1 tie_word_embeddings=true)",
     .experts = {"moe_num_experts", "moe_k", kApart},
     .mlp = {ernie_mlp, "moe_layer_start_index, moe_layer_end_index, moe_layer_interval"}},
    {.model_types = {"hunyuan_v1_moe"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHunyuanBlock},
     .defaults = R"(hidden_size=4096 intermediate_size=11008 vocab_size=290943 num_hidden_layers=32
       num_attention_heads=32 attention_bias=false num_experts=num_local_experts num_local_experts=1
       moe_topk=num_experts_per_tok num_experts_per_tok=1 tie_word_embeddings=false)",
     .experts = {"num_experts", "moe_topk", kApart},
     .class_names = {"hunyuan_moe_v1"}},
    {.model_types = {"exaone_moe"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kHeadNorms, kDenseMlp, kExaoneGate, kSparseExperts,
                    kExaoneShared},
     .defaults = R"(hidden_size=4096 intermediate_size=16384 vocab_size=102400 num_hidden_layers=32
       num_attention_heads=32 num_key_value_heads=32 num_experts=64 num_experts_per_tok=8
       moe_intermediate_size=1024 num_shared_experts=1 first_k_dense_replace=1 tie_word_embeddings=false)",
     .experts = {"num_experts", "num_experts_per_tok", kApart},
     .mlp = {sparse_behind_first, "mlp_layer_types, first_k_dense_replace"}},
    {.model_types = {"qwen3_omni_moe"}, .parameters = {}, .defaults = "", .experts = {.stacks = kApart}},
};

}  // namespace
}  // namespace families::sparse

std::span<const FamilyShapes> sparse_families() { return families::sparse::kFamilies; }

}  // namespace twofour
