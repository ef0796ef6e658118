#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

// Nemotron-3: mamba, experts and attention, a layer each, in the order of a pattern. Names and sizes:
// transformers, models/nemotron_h; configs of the models: their pages on the hub.

namespace twofour {
namespace {

using enum SynthRole;
using enum SynthScope;

constexpr std::string_view kSuperPattern =
    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME";
constexpr std::string_view kUltraPattern =
    "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*"
    "EMEMEMEME";
constexpr std::string_view kLightningPattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
/// A draft is two layers: attention, then experts.
constexpr int64_t kDraftAttention = kDraftLayer, kDraftExperts = kDraftLayer + 1;

template <const std::string_view& pattern, char kind>
bool is_kind(int64_t layer, int64_t) {
  if (layer >= kDraftAttention) return kind == (layer == kDraftAttention ? '*' : 'E');
  return pattern[static_cast<size_t>(layer) % pattern.size()] == kind;
}
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

constexpr SynthRule kNemotronModelRules[] = {
    {kModel, "backbone.embeddings", "vocab_size", "hidden_size", kEmbedding},
    {kModel, "backbone.norm_f.weight", "hidden_size", "0", kVector},
    {kModel, "lm_head", "vocab_size", "hidden_size", kLinear},
};
template <const std::string_view& pattern>
constexpr std::array<SynthRule, 17> kNemotronRules = {{
    {kLayer, "norm.weight", "hidden_size", "0", kVector},
    {kLayer, "mixer.in_proj", "2*mamba_num_heads*mamba_head_dim+2*n_groups*ssm_state_size+mamba_num_heads",
     "hidden_size", kLinear, is_kind<pattern, 'M'>},
    {kLayer, "mixer.conv1d", "mamba_num_heads*mamba_head_dim+2*n_groups*ssm_state_size", "conv_kernel",
     kConvolution, is_kind<pattern, 'M'>},
    {kLayer, "mixer.conv1d.bias", "mamba_num_heads*mamba_head_dim+2*n_groups*ssm_state_size", "0", kBias,
     is_kind<pattern, 'M'>},
    {kLayer, "mixer.A_log", "mamba_num_heads", "0", kF32Vector, is_kind<pattern, 'M'>},
    {kLayer, "mixer.D", "mamba_num_heads", "0", kF32Vector, is_kind<pattern, 'M'>},
    {kLayer, "mixer.dt_bias", "mamba_num_heads", "0", kF32Vector, is_kind<pattern, 'M'>},
    {kLayer, "mixer.norm.weight", "mamba_num_heads*mamba_head_dim", "0", kVector, is_kind<pattern, 'M'>},
    {kLayer, "mixer.out_proj", "hidden_size", "mamba_num_heads*mamba_head_dim", kLinear,
     is_kind<pattern, 'M'>},
    {kLayer, "mixer.gate", "n_routed_experts", "hidden_size", kLinear, is_kind<pattern, 'E'>},
    {kLayer, "mixer.gate.e_score_correction_bias", "n_routed_experts", "0", kF32Vector,
     is_kind<pattern, 'E'>},
    {kLayer, "mixer.shared_experts.up_proj", "moe_shared_expert_intermediate_size", "hidden_size", kLinear,
     is_kind<pattern, 'E'>},
    {kLayer, "mixer.shared_experts.down_proj", "hidden_size", "moe_shared_expert_intermediate_size", kLinear,
     is_kind<pattern, 'E'>},
    {kLayer, "mixer.q_proj", "num_attention_heads*head_dim", "hidden_size", kLinear, is_kind<pattern, '*'>},
    {kLayer, "mixer.k_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear, is_kind<pattern, '*'>},
    {kLayer, "mixer.v_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear, is_kind<pattern, '*'>},
    {kLayer, "mixer.o_proj", "hidden_size", "num_attention_heads*head_dim", kLinear, is_kind<pattern, '*'>},
}};
template <const std::string_view& pattern>
constexpr SynthRule kNemotronExpertRules[] = {
    {kExpert, "up_proj", "moe_intermediate_size", "hidden_size", kLinear, is_kind<pattern, 'E'>},
    {kExpert, "down_proj", "hidden_size", "moe_intermediate_size", kLinear, is_kind<pattern, 'E'>},
};
template <const std::string_view& pattern>
constexpr SynthRule kNemotronLatentRules[] = {
    {kLayer, "mixer.fc1_latent_proj", "moe_latent_size", "hidden_size", kLinear, is_kind<pattern, 'E'>},
    {kLayer, "mixer.fc2_latent_proj", "hidden_size", "moe_latent_size", kLinear, is_kind<pattern, 'E'>},
    {kExpert, "up_proj", "moe_intermediate_size", "moe_latent_size", kLinear, is_kind<pattern, 'E'>},
    {kExpert, "down_proj", "moe_latent_size", "moe_intermediate_size", kLinear, is_kind<pattern, 'E'>},
};
constexpr SynthRule kNemotronDraftFirstRules[] = {
    {kLayer, "eh_proj", "hidden_size", "2*hidden_size", kLinear},
    {kLayer, "enorm.weight", "hidden_size", "0", kVector},
    {kLayer, "hnorm.weight", "hidden_size", "0", kVector},
};
constexpr SynthRule kNemotronDraftLastRules[] = {
    {kLayer, "final_layernorm.weight", "hidden_size", "0", kVector},
};
template <const std::string_view& pattern, const auto& expert_rules>
constexpr SynthStack kNemotronStacks[] = {
    {"backbone.layers.{}.",
     "mixer.experts.{}.",
     "num_hidden_layers",
     {kNemotronModelRules, kNemotronRules<pattern>, expert_rules}},
    {"mtp.layers.{}.",
     "mixer.experts.{}.",
     "num_nextn_predict_layers",
     {kNemotronRules<pattern>, expert_rules, kNemotronDraftFirstRules},
     "0",
     kDraftAttention},
    {"mtp.layers.{}.",
     "mixer.experts.{}.",
     "num_nextn_predict_layers",
     {kNemotronRules<pattern>, expert_rules, kNemotronDraftLastRules},
     "1",
     kDraftExperts},
};

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

/// Routed experts NVFP4; shared experts, in_proj and out_proj of mamba FP8. Source: NVIDIA/Model-Optimizer,
/// modelopt_recipes/huggingface/models/nvidia. The keys and lists of Super and Ultra are those of Lightning,
/// whose config is published.
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
    {"nvidia", nullptr, kSuperModules, kNemotronQuantization, kNemotronHfQuant, fill_nemotron, nullptr,
     kNemotronKeys},
};
const SynthPublication kUltraPublications[] = {
    {"nvidia", nullptr, kUltraModules, kNemotronQuantization, kNemotronHfQuant, fill_nemotron, nullptr,
     kNemotronKeys},
};
const SynthPublication kLightningPublications[] = {
    {"nvidia", nullptr, kLightningModules, kNemotronQuantization, kNemotronHfQuant, fill_nemotron, nullptr,
     kNemotronKeys},
};

const SynthShape kNemotronShapes[] = {
    {"nemotron-3-super",
     "n_routed_experts",
     "num_experts_per_tok",
     88,
     512,
     22,
     kNemotronStacks<kSuperPattern, kNemotronLatentRules<kSuperPattern>>,
     {kNemotronConfig, kSuperConfig},
     {kSmallNemotron, kSmallNemotronLatent},
     kSuperPublications,
     nullptr,
     set_pattern<kSuperPattern>},
    {"nemotron-3-ultra",
     "n_routed_experts",
     "num_experts_per_tok",
     108,
     512,
     22,
     kNemotronStacks<kUltraPattern, kNemotronLatentRules<kUltraPattern>>,
     {kNemotronConfig, kUltraConfig},
     {kSmallNemotron, kSmallNemotronLatent},
     kUltraPublications,
     nullptr,
     set_pattern<kUltraPattern>},
    {"nemotron-3.5-lightning",
     "n_routed_experts",
     "num_experts_per_tok",
     52,
     128,
     6,
     kNemotronStacks<kLightningPattern, kNemotronExpertRules<kLightningPattern>>,
     {kNemotronConfig, kLightningConfig},
     kSmallNemotron,
     kLightningPublications,
     nullptr,
     set_pattern<kLightningPattern>},
};

}  // namespace

std::span<const SynthShape> nemotron_shapes() { return kNemotronShapes; }

}  // namespace twofour
