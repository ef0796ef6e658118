#include "lib/synth/shapes.h"

// DeepSeek-V4-Pro as released. Names, types and shapes: the header of V4-Flash's draft, which has the same
// modules in other sizes. Sizes of compressors: the reference inference code; their type is not stated.

namespace twofour {
namespace {

bool compresses_by_4(int64_t layer, int64_t) { return layer >= 2 && layer < kDraftLayer && layer % 2 == 0; }

constexpr const char* kReleasedConfig = R"({
  "architectures": ["DeepseekV4ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "compress_ratios": [], "compress_rope_theta": 160000, "expert_dtype": "fp4", "hc_eps": 1e-06, "hc_mult": 4,
  "hc_sinkhorn_iters": 20, "head_dim": 512, "hidden_act": "silu", "hidden_size": 7168, "index_head_dim": 128,
  "index_n_heads": 64, "index_topk": 1024, "initializer_range": 0.02, "max_position_embeddings": 1048576,
  "model_type": "deepseek_v4", "moe_intermediate_size": 3072, "n_routed_experts": 384, "n_shared_experts": 1,
  "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 6, "num_hash_layers": 3,
  "num_hidden_layers": 61, "num_key_value_heads": 1, "num_nextn_predict_layers": 1, "o_groups": 16,
  "o_lora_rank": 1024, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 65536,
    "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sqrtsoftplus", "sliding_window": 128,
  "swiglu_limit": 10.0, "tie_word_embeddings": false, "topk_method": "noaux_tc"})";
constexpr const char* kSmallReleased = R"({
  "hc_mult": 2, "head_dim": 64, "hidden_size": 256, "index_head_dim": 32, "index_n_heads": 4,
  "moe_intermediate_size": 128, "n_routed_experts": 4, "num_attention_heads": 8, "num_experts_per_tok": 2,
  "num_hidden_layers": 5, "o_groups": 4, "o_lora_rank": 64, "q_lora_rank": 128, "qk_rope_head_dim": 32})";
void set_ratios(Json& text, int64_t layers) {
  Json ratios = Json::array();
  for (int64_t i = 0; i < layers; ++i) ratios.push_back(compresses_by_4(i, layers) ? 4 : 128);
  for (int64_t i = 0; i < text["num_nextn_predict_layers"].get<int64_t>(); ++i) ratios.push_back(0);
  text["compress_ratios"] = ratios;
}
constexpr SynthFormatRule kReleasedModules[] = {
    {"*.ffn.experts.*", &kDeepSeekV4Mxfp4}, {"*.ffn.shared_experts.*", &kDeepSeekV4Fp8},
    {"*.attn.w*", &kDeepSeekV4Fp8},         {"*.attn.indexer.wq_b", &kDeepSeekV4Fp8},
    {"mtp.*.[eh]_proj", &kDeepSeekV4Fp8},
};
/// The Base models: FP8 experts, and F32 scales throughout (NVIDIA-NeMo/Automodel#2034; vLLM,
/// models/deepseek_v4/quant_config.py). That these are powers of two is inferred from scale_fmt of the
/// others.
constexpr SynthFormatRule kBaseModules[] = {
    {"*.ffn.experts.*", &kDeepSeekV4BaseFp8}, {"*.ffn.shared_experts.*", &kDeepSeekV4BaseFp8},
    {"*.attn.w*", &kDeepSeekV4BaseFp8},       {"*.attn.indexer.wq_b", &kDeepSeekV4BaseFp8},
    {"mtp.*.[eh]_proj", &kDeepSeekV4BaseFp8},
};
const SynthPublication kReleasedPublications[] = {
    {"released", kReleasedModules, R"({"activation_scheme": "dynamic", "fmt": "e4m3",
       "quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]})",
     nullptr, nullptr},
    {"base", kBaseModules, R"({"activation_scheme": "dynamic", "fmt": "e4m3",
       "quant_method": "fp8", "weight_block_size": [128, 128]})",
     nullptr, nullptr, nullptr, nullptr, DType::kBF16, R"({"expert_dtype": "fp8"})"},
};

constexpr SynthOption kReleasedOptions[] = {{"*.attn.indexer.*", compresses_by_4}};

const SynthShape kDeepSeekV4Shapes[] = {
    {.name = "deepseek-v4",
     .config = kReleasedConfig,
     .small = kSmallReleased,
     .publications = kReleasedPublications,
     .finish = set_ratios,
     .f32 = "*hc_* *.attn_sink *.gate.bias *.ape",
     .options = kReleasedOptions},
};

}  // namespace

std::span<const SynthShape> deepseek_v4_shapes() { return kDeepSeekV4Shapes; }

}  // namespace twofour
