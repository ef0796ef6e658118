#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

// Nemotron-3. Each layer is mamba, experts or attention, in the order of a pattern. Names and sizes:
// transformers, models/nemotron_h; configs of the models: their pages on the hub.

namespace twofour {
namespace {

constexpr std::string_view kSuperPattern =
    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME";
constexpr std::string_view kUltraPattern =
    "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*"
    "EMEMEMEME";
constexpr std::string_view kLightningPattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

template <const std::string_view& pattern>
void set_pattern(Json& text, int64_t layers) {
  std::string cut;
  Json types = Json::array();
  for (int64_t i = 0; i < layers; ++i) {
    cut.push_back(pattern[static_cast<size_t>(i) % pattern.size()]);
    types.push_back(cut.back() == 'M' ? "mamba" : cut.back() == 'E' ? "moe" : "attention");
  }
  if (text.contains("hybrid_override_pattern")) {
    text["hybrid_override_pattern"] = cut;
  } else {
    text["layers_block_type"] = types;
  }
}

constexpr const char* kNemotronConfig = R"({
  "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "chunk_size": 128, "conv_kernel": 4, "dtype": "bfloat16", "expand": 2, "head_dim": 128,
  "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64,
  "mamba_hidden_act": "silu", "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32",
  "max_position_embeddings": 262144, "mlp_bias": false, "mlp_hidden_act": "relu2",
  "model_type": "nemotron_h", "n_group": 1, "n_groups": 8, "n_shared_experts": 1, "norm_eps": 1e-05,
  "norm_topk_prob": true, "num_key_value_heads": 2, "num_logits_to_keep": 1, "num_nextn_predict_layers": 1,
  "partial_rotary_factor": 1.0, "rescale_prenorm_residual": true, "residual_in_fp32": false,
  "rope_theta": 10000, "sliding_window": null, "ssm_state_size": 128, "tie_word_embeddings": false,
  "time_step_floor": 0.0001, "time_step_max": 0.1, "time_step_min": 0.001, "topk_group": 1,
  "use_bias": false, "use_conv_bias": true, "use_mamba_kernels": true})";
constexpr const char* kSuperConfig = R"({
  "hidden_size": 4096, "hybrid_override_pattern": "", "intermediate_size": 2688, "mamba_num_heads": 128,
  "moe_intermediate_size": 2688, "moe_latent_size": 1024, "moe_shared_expert_intermediate_size": 5376,
  "moe_shared_expert_overlap": false, "mtp_hybrid_override_pattern": "*E", "n_routed_experts": 512,
  "num_attention_heads": 32, "num_experts_per_tok": 22, "num_hidden_layers": 88,
  "routed_scaling_factor": 5.0})";
constexpr const char* kUltraConfig = R"({
  "hidden_size": 8192, "intermediate_size": 5120, "layers_block_type": [], "mamba_num_heads": 256,
  "moe_intermediate_size": 5120, "moe_latent_size": 2048, "moe_shared_expert_intermediate_size": 10240,
  "moe_shared_expert_overlap": false, "mtp_layers_block_type": ["attention", "moe"],
  "n_routed_experts": 512, "num_attention_heads": 64, "num_experts_per_tok": 22, "num_hidden_layers": 108,
  "routed_scaling_factor": 5.0})";
constexpr const char* kLightningConfig = R"({
  "hidden_size": 2688, "intermediate_size": 1856, "layers_block_type": [], "mamba_num_heads": 64,
  "max_position_embeddings": 1048576, "moe_intermediate_size": 1856, "moe_latent_size": null,
  "moe_shared_expert_intermediate_size": 3712, "moe_shared_expert_overlap": true,
  "mtp_layers_block_type": ["attention", "moe"], "n_routed_experts": 128, "num_attention_heads": 32,
  "num_experts_per_tok": 6, "num_hidden_layers": 52, "routed_scaling_factor": 2.5})";
constexpr const char* kSmallNemotron = R"({
  "head_dim": 64, "hidden_size": 256, "intermediate_size": 128, "mamba_head_dim": 32, "mamba_num_heads": 8,
  "moe_intermediate_size": 128, "moe_shared_expert_intermediate_size": 256, "n_groups": 2,
  "n_routed_experts": 4, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 8,
  "ssm_state_size": 32})";
constexpr const char* kSmallNemotronLatent = R"({"moe_latent_size": 128})";

/// Routed experts are NVFP4. Shared experts, and in_proj and out_proj of mamba, are FP8. Source:
/// NVIDIA/Model-Optimizer, modelopt_recipes/huggingface/models/nvidia. The keys and lists of Super and Ultra
/// are copied from Lightning's published config.
constexpr SynthFormatRule kSuperModules[] = {
    {"mtp.*", nullptr},
    {"*.mixer.experts.*", &kModelOptNvfp4},
    {"*.mixer.shared_experts.*", &kModelOptFp8},
    {"*.mixer.in_proj", &kModelOptFp8},
    {"*.mixer.out_proj", &kModelOptFp8},
};
constexpr SynthFormatRule kUltraModules[] = {
    {"mtp.*", nullptr},
    {"*.mixer.experts.*", &kModelOptNvfp4FourOverSix},
    {"*.mixer.shared_experts.*", &kModelOptFp8},
    {"*.mixer.in_proj", &kModelOptFp8},
    {"*.mixer.out_proj", &kModelOptFp8},
};
constexpr SynthFormatRule kLightningModules[] = {
    {"mtp.*", nullptr},
    {"*.mixer.experts.*", &kModelOptNvfp4FourOverSixWeightOnly},
    {"*.mixer.shared_experts.*", &kModelOptNvfp4FourOverSixWeightOnly},
    {"lm_head", &kModelOptNvfp4FourOverSixWeightOnly},
    {"*.mixer.in_proj", &kModelOptFp8},
    {"*.mixer.out_proj", &kModelOptFp8},
};
void fill_nemotron(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  fill_modelopt_linears(listing, quantization, hf_quant);
  std::vector<std::string> names = {"backbone.embeddings"};
  for (const std::string& name : float_modules(listing, "backbone.*")) names.push_back(name);
  for (const std::string& name : float_modules(listing, "lm_head")) names.push_back(name);
  names.push_back("mtp*");
  append_names(quantization["ignore"], names);
  append_names(hf_quant["quantization"]["exclude_modules"], names);
}
constexpr const char* kNemotronQuantization = R"({
  "config_groups": {}, "quantized_layers": {}, "ignore": [], "quant_algo": "MIXED_PRECISION",
  "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
  "producer": {"name": "modelopt", "version": "0.44.0rc5"}, "quant_method": "modelopt"})";
constexpr const char* kNemotronHfQuant = R"({
  "producer": {"name": "modelopt", "version": "0.44.0rc5"},
  "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": {},
    "exclude_modules": []}})";
constexpr const char* kNemotronKeys = "backbone.layers.*.mixer.[kv]_proj";
const SynthPublication kSuperPublications[] = {
    {"nvidia", kSuperModules, kNemotronQuantization, kNemotronHfQuant, fill_nemotron, nullptr, kNemotronKeys},
};
const SynthPublication kUltraPublications[] = {
    {"nvidia", kUltraModules, kNemotronQuantization, kNemotronHfQuant, fill_nemotron, nullptr, kNemotronKeys},
};
const SynthPublication kLightningPublications[] = {
    {"nvidia", kLightningModules, kNemotronQuantization, kNemotronHfQuant, fill_nemotron, nullptr,
     kNemotronKeys},
};

constexpr const char* kNemotronF32 = "*.A_log *.D *.dt_bias *.e_score_correction_bias";
constexpr SynthOption kNemotronOptions[] = {{"*_latent_proj.weight"}};

const SynthShape kNemotronShapes[] = {
    {.name = "nemotron-3-super",
     .config = {kNemotronConfig, kSuperConfig},
     .small = {kSmallNemotron, kSmallNemotronLatent},
     .publications = kSuperPublications,
     .finish = set_pattern<kSuperPattern>,
     .f32 = kNemotronF32,
     .options = kNemotronOptions},
    {.name = "nemotron-3-ultra",
     .config = {kNemotronConfig, kUltraConfig},
     .small = {kSmallNemotron, kSmallNemotronLatent},
     .publications = kUltraPublications,
     .finish = set_pattern<kUltraPattern>,
     .f32 = kNemotronF32,
     .options = kNemotronOptions},
    {.name = "nemotron-3.5-lightning",
     .config = {kNemotronConfig, kLightningConfig},
     .small = kSmallNemotron,
     .publications = kLightningPublications,
     .finish = set_pattern<kLightningPattern>,
     .f32 = kNemotronF32},
};

}  // namespace

std::span<const SynthShape> nemotron_shapes() { return kNemotronShapes; }

}  // namespace twofour
