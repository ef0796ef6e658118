#include "formats/families/rows.h"

namespace twofour {
namespace families::sparse {
namespace {

constexpr auto kQkvBias = attention("qkv_bias", nullptr);
constexpr auto kUseBias = attention("use_bias", "use_bias");
constexpr auto kQkvBiased = attention("attention_bias", nullptr);

constexpr std::array<FamilyParameter, 4> sparse_only(const char* width) {
  const auto e = experts(width, "");
  return {{{Kind::kRouter, "model.layers.#.mlp.gate", "num_experts", "hidden_size"}, e[0], e[1], e[2]}};
}
constexpr auto kOlmoExperts = sparse_only("intermediate_size");

constexpr auto kWideExperts = experts_w("intermediate_size");
constexpr FamilyParameter kMixtralBlock[] = {
    {Kind::kRouter, "model.layers.#.block_sparse_moe.gate", "num_local_experts", "hidden_size"},
    kWideExperts[0],
    kWideExperts[1],
    kWideExperts[2],
};
constexpr FamilyParameter kMiniMaxBlock[] = {
    {Kind::kRouter, "model.layers.#.block_sparse_moe.gate", "num_local_experts", "hidden_size"},
    kWideExperts[0],
    kWideExperts[1],
    kWideExperts[2],
    {Kind::kVector, "model.layers.#.block_sparse_moe.e_score_correction_bias", "num_local_experts"},
    {Kind::kVector, "model.layers.#.mlp.e_score_correction_bias", "num_local_experts", "", "may"},
};
/// Names by which llm-compressor and ModelOpt write experts and routers of these.
constexpr FamilyParameter kRenamedBlock[] = {
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.gate_proj", "intermediate_size", "hidden_size",
     "alias"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.up_proj", "intermediate_size", "hidden_size",
     "alias"},
    {Kind::kLinear, "model.layers.#.block_sparse_moe.experts.#.down_proj", "hidden_size", "intermediate_size",
     "alias"},
    {Kind::kRouter, "model.layers.#.mlp.gate", "num_local_experts", "hidden_size", "may alias"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.gate_proj", "intermediate_size", "hidden_size", "alias"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.up_proj", "intermediate_size", "hidden_size", "alias"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.down_proj", "hidden_size", "intermediate_size", "alias"},
};
/// As Phi names its head's bias, and those of its norms.
constexpr FamilyParameter kPhiFrame[] = {
    {Kind::kEmbedding, "model.embed_tokens", "vocab_size", "hidden_size"},
    {Kind::kNorm, "model.norm", "hidden_size", "", "", ""},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may", "lm_head_bias"},
    {Kind::kNorm, "model.layers.#.input_layernorm", "hidden_size", "", "", ""},
    {Kind::kNorm, "model.layers.#.post_attention_layernorm", "hidden_size", "", "", ""},
};
/// llm-compressor leaves the router under the name that it has in the model.
constexpr FamilyParameter kPhiExperts[] = {
    {Kind::kLinear, "model.layers.#.mlp.experts.#.w1", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.w3", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.w2", "hidden_size", "intermediate_size"},
    {Kind::kRouter, "model.layers.#.mlp.router", "num_local_experts", "hidden_size", "may"},
};

std::string_view ernie_mlp(const FamilySizes& sizes, int64_t layer) {
  const int64_t every = std::max<int64_t>(sizes.number("moe_layer_interval").value_or(1), 1);
  const bool sparse = (layer + 1) % every == 0 &&
                      layer >= sizes.number("moe_layer_start_index").value_or(0) &&
                      layer <= sizes.number("moe_layer_end_index").value_or(INT64_MAX);
  return sparse ? "sparse" : "dense";
}
constexpr FamilyParameter kErnieFrame[] = {
    {Kind::kEmbedding, "model.embed_tokens", "vocab_size", "hidden_size"},
    {Kind::kNorm, "model.norm", "hidden_size"},
    {Kind::kLinear, "lm_head", "vocab_size", "hidden_size", "may", "use_bias"},
};
constexpr auto kErnieMlp = mlp("@dense", "use_bias");
constexpr FamilyParameter kErnieGate[] = {
    {Kind::kRouter, "model.layers.#.mlp.gate", "moe_num_experts", "hidden_size", "@sparse"},
    {Kind::kMatrix, "model.layers.#.mlp.moe_statics.e_score_correction_bias", "1", "moe_num_experts",
     "@sparse"},
    {Kind::kMatrix, "model.layers.#.mlp.gate.moe_statics.e_score_correction_bias", "1", "moe_num_experts",
     "@sparse may"},
};
constexpr FamilyParameter kErnieBlock[] = {
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.gate_proj",
     "moe_num_shared_experts*moe_intermediate_size", "hidden_size", "@sparse moe_num_shared_experts",
     "use_bias"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.up_proj",
     "moe_num_shared_experts*moe_intermediate_size", "hidden_size", "@sparse moe_num_shared_experts",
     "use_bias"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.down_proj", "hidden_size",
     "moe_num_shared_experts*moe_intermediate_size", "@sparse moe_num_shared_experts", "use_bias"},
};

constexpr FamilyParameter kHunyuanBlock[] = {
    {Kind::kNorm, "model.layers.#.self_attn.query_layernorm", "head_dim"},
    {Kind::kNorm, "model.layers.#.self_attn.key_layernorm", "head_dim"},
    {Kind::kRouter, "model.layers.#.mlp.gate.wg", "num_experts", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.shared_mlp.gate_proj", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.shared_mlp.up_proj", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.shared_mlp.down_proj", "hidden_size", "intermediate_size"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.gate_proj", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.up_proj", "intermediate_size", "hidden_size"},
    {Kind::kLinear, "model.layers.#.mlp.experts.#.down_proj", "hidden_size", "intermediate_size"},
};

constexpr FamilyParameter kExaoneGate[] = {
    {Kind::kRouter, "model.layers.#.mlp.gate", "num_experts", "hidden_size", "@sparse"},
    {Kind::kVector, "model.layers.#.mlp.e_score_correction_bias", "num_experts", "", "@sparse"},
    {Kind::kVector, "model.layers.#.mlp.gate.e_score_correction_bias", "num_experts", "", "@sparse may"},
};
constexpr FamilyParameter kExaoneBlock[] = {
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.gate_proj", "num_shared_experts*moe_intermediate_size",
     "hidden_size", "@sparse num_shared_experts"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.up_proj", "num_shared_experts*moe_intermediate_size",
     "hidden_size", "@sparse num_shared_experts"},
    {Kind::kLinear, "model.layers.#.mlp.shared_experts.down_proj", "hidden_size",
     "num_shared_experts*moe_intermediate_size", "@sparse num_shared_experts"},
};

constexpr FamilyShapes kFamilies[] = {
    {.model_types = {"qwen2_moe"},
     .parameters = {kFrame, kTwoNorms, kQkvBias, kDenseMlp, kPlainGate, kSparseExperts, kExpertStacks,
                    kSharedExpert},
     .defaults = R"({"hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 151936,
       "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "qkv_bias": true,
       "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
       "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1, "tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_by_step,
     .mlp_keys = "decoder_sparse_step, mlp_only_layers",
     .stacks = kApart,
     .router = kSoftmaxIfSaid,
     .traits = {{.windows = WindowRule::kEven, .window = 4096, .positions = 32768}}},
    {.model_types = {"qwen3_moe"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHeadNorms, kDenseMlp, kPlainGate, kSparseExperts,
                    kExpertStacks},
     .defaults = R"({"hidden_size": 2048, "intermediate_size": 6144, "vocab_size": 151936,
       "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 4, "attention_bias": false,
       "num_experts": "num_local_experts", "num_local_experts": 128, "num_experts_per_tok": 8,
       "moe_intermediate_size": 768, "decoder_sparse_step": 1, "tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_by_step,
     .mlp_keys = "decoder_sparse_step, mlp_only_layers",
     .stacks = kApart,
     .router = kSoftmaxIfSaid,
     .traits = {{.windows = WindowRule::kIfUsed, .window = 4096, .positions = 32768}}},
    {.model_types = {"mixtral"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kMixtralBlock, kRenamedBlock},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000,
       "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
       "num_local_experts": "num_experts", "num_experts": 8, "num_experts_per_tok": 2,
       "tie_word_embeddings": false})",
     .experts = "num_local_experts",
     .top_k = "num_experts_per_tok",
     .stacks = kApart,
     .router = kSoftmax,
     .traits = {{.windows = WindowRule::kAll, .epsilon = 1e-5, .theta = 1e6, .positions = 131072}}},
    {.model_types = {"minimax_m2"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kWideNorms, kMiniMaxBlock, kRenamedBlock},
     .defaults = R"({"hidden_size": 3072, "intermediate_size": 1536, "vocab_size": 200064,
       "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
       "num_local_experts": "num_experts", "num_experts": 256, "num_experts_per_tok": 8,
       "tie_word_embeddings": false})",
     .experts = "num_local_experts",
     .top_k = "num_experts_per_tok",
     .drafts = "num_mtp_modules",
     .stacks = kApart,
     .router = {{.scores = RouterScores::kSigmoid, .correction = "e_score_correction_bias"}}},
    {.model_types = {"phimoe"},
     .parameters = {kPhiFrame, kBiasedAttention, kMixtralBlock, kRenamedBlock, kPhiExperts},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 6400, "vocab_size": 32064,
       "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "attention_bias": false,
       "lm_head_bias": false, "num_local_experts": 16, "num_experts_per_tok": 2,
       "tie_word_embeddings": false})",
     .experts = "num_local_experts",
     .top_k = "num_experts_per_tok",
     .stacks = kApart},
    {.model_types = {"olmoe"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kWideNorms, kOlmoExperts},
     .defaults = R"({"hidden_size": 2048, "intermediate_size": 2048, "vocab_size": 50304,
       "num_hidden_layers": 16, "num_attention_heads": 16, "attention_bias": false,
       "num_experts": "num_local_experts", "num_local_experts": 64, "num_experts_per_tok": 8,
       "tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .stacks = kApart,
     .router = kSoftmaxIfSaid,
     .traits = {{.epsilon = 1e-5, .positions = 4096}}},
    {.model_types = {"flex_olmo"},
     .parameters = {kFrame, kNormsBehind, kBiasedAttention, kWideNorms, kOlmoExperts},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 100352,
       "num_hidden_layers": 32, "num_attention_heads": 32, "attention_bias": false,
       "num_experts": "num_local_experts", "num_local_experts": 7, "num_experts_per_tok": 5,
       "tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .stacks = kApart,
     .router = kSoftmaxIfSaid},
    {.model_types = {"ernie4_5_moe"},
     .parameters = {kErnieFrame, kTwoNorms, kUseBias, kErnieMlp, kErnieGate, kSparseExperts, kErnieBlock},
     .defaults = R"({"hidden_size": 2560, "intermediate_size": 12288, "vocab_size": 103424,
       "num_hidden_layers": 28, "num_attention_heads": 20, "num_key_value_heads": 4, "use_bias": false,
       "moe_num_experts": "num_experts", "num_experts": 64, "moe_k": "num_experts_per_tok",
       "num_experts_per_tok": 6, "moe_intermediate_size": 1536, "moe_num_shared_experts": 2,
       "moe_layer_start_index": 1, "moe_layer_interval": 1, "tie_word_embeddings": true})",
     .experts = "moe_num_experts",
     .top_k = "moe_k",
     .mlp = ernie_mlp,
     .mlp_keys = "moe_layer_start_index, moe_layer_end_index, moe_layer_interval",
     .stacks = kApart},
    {.model_types = {"hunyuan_v1_moe"},
     .parameters = {kFrame, kTwoNorms, kBiasedAttention, kHunyuanBlock},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 290943,
       "num_hidden_layers": 32, "num_attention_heads": 32, "attention_bias": false,
       "num_experts": "num_local_experts", "num_local_experts": 1, "moe_topk": "num_experts_per_tok",
       "num_experts_per_tok": 1, "tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "moe_topk",
     .stacks = kApart},
    {.model_types = {"exaone_moe"},
     .parameters = {kFrame, kTwoNorms, kPlainAttention, kHeadNorms, kDenseMlp, kExaoneGate, kSparseExperts,
                    kExaoneBlock},
     .defaults = R"({"hidden_size": 4096, "intermediate_size": 16384, "vocab_size": 102400,
       "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "num_experts": 64,
       "num_experts_per_tok": 8, "moe_intermediate_size": 1024, "num_shared_experts": 1,
       "first_k_dense_replace": 1, "tie_word_embeddings": false})",
     .experts = "num_experts",
     .top_k = "num_experts_per_tok",
     .mlp = sparse_behind_first,
     .mlp_keys = "mlp_layer_types, first_k_dense_replace",
     .stacks = kApart},
    {.model_types = {"qwen3_omni_moe"}, .parameters = {}, .defaults = "{}", .stacks = kApart},
};

}  // namespace
}  // namespace families::sparse

std::span<const FamilyShapes> sparse_families() { return families::sparse::kFamilies; }

}  // namespace twofour
