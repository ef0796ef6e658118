#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

// Nemotron-H, MiniMax-M3, Kimi-K3, Ling-3.0 and gpt-oss.

namespace twofour {
namespace {

using enum SynthRole;
using enum SynthScope;

// Nemotron-3: mamba, experts and attention, a layer each, in the order of a pattern. Names and sizes:
// transformers, models/nemotron_h; configs of the models: their pages on the hub.
constexpr std::string_view kSuperPattern =
    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME";
constexpr std::string_view kUltraPattern =
    "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*"
    "EMEMEMEME";
constexpr std::string_view kLightningPattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
/// Of a draft: what precedes it is attention, then experts.
constexpr int64_t kDraftAttention = 1000, kDraftExperts = 1001;

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

// MiniMax-M3. Names: transformers, conversion_mapping.py and models/minimax_m3_vl; configs as published, but
// for the vendor's entry of quantization, of which method, block and list are known. Tower and draft: vLLM,
// models/minimax_m3. The draft's format is inferred from the lists: nvidia's 534 MXFP8 modules are without
// it, and the vendor's list, which names what is not MXFP8, does not name it.
bool is_dense_m3(int64_t layer, int64_t) { return layer < 3; }
bool is_sparse_m3(int64_t layer, int64_t) { return layer >= 3; }
constexpr SynthRule kM3Rules[] = {
    {kModel, "language_model.model.embed_tokens", "vocab_size", "hidden_size", kEmbedding},
    {kModel, "language_model.model.norm.weight", "hidden_size", "0", kVector},
    {kModel, "language_model.lm_head", "vocab_size", "hidden_size", kLinear},
    {kModel, "multi_modal_projector.linear_1", "projector_hidden_size", "vision_config.hidden_size", kLinear},
    {kModel, "multi_modal_projector.linear_1.bias", "projector_hidden_size", "0", kBias},
    {kModel, "multi_modal_projector.linear_2", "hidden_size", "projector_hidden_size", kLinear},
    {kModel, "multi_modal_projector.linear_2.bias", "hidden_size", "0", kBias},
    {kModel, "patch_merge_mlp.linear_1", "projector_hidden_size", "4*hidden_size", kLinear},
    {kModel, "patch_merge_mlp.linear_1.bias", "projector_hidden_size", "0", kBias},
    {kModel, "patch_merge_mlp.linear_2", "hidden_size", "projector_hidden_size", kLinear},
    {kModel, "patch_merge_mlp.linear_2.bias", "hidden_size", "0", kBias},
};
constexpr SynthRule kM3LayerRules[] = {
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "self_attn.q_proj", "num_attention_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.k_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.v_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.o_proj", "hidden_size", "num_attention_heads*head_dim", kLinear},
    {kLayer, "self_attn.q_norm.weight", "head_dim", "0", kVector},
    {kLayer, "self_attn.k_norm.weight", "head_dim", "0", kVector},
    {kLayer, "self_attn.index_q_proj",
     "sparse_attention_config.sparse_num_index_heads*sparse_attention_config.sparse_index_dim", "hidden_size",
     kLinear, is_sparse_m3},
    {kLayer, "self_attn.index_k_proj", "sparse_attention_config.sparse_index_dim", "hidden_size", kLinear,
     is_sparse_m3},
    {kLayer, "self_attn.index_q_norm.weight", "sparse_attention_config.sparse_index_dim", "0", kVector,
     is_sparse_m3},
    {kLayer, "self_attn.index_k_norm.weight", "sparse_attention_config.sparse_index_dim", "0", kVector,
     is_sparse_m3},
    {kLayer, "mlp.gate_proj", "dense_intermediate_size", "hidden_size", kGate, is_dense_m3},
    {kLayer, "mlp.up_proj", "dense_intermediate_size", "hidden_size", kUp, is_dense_m3},
    {kLayer, "mlp.down_proj", "hidden_size", "dense_intermediate_size", kLinear, is_dense_m3},
    {kLayer, "block_sparse_moe.gate", "num_local_experts", "hidden_size", kLinear, is_sparse_m3},
    {kLayer, "block_sparse_moe.e_score_correction_bias", "num_local_experts", "0", kF32Vector, is_sparse_m3},
    {kLayer, "block_sparse_moe.shared_experts.gate_proj", "shared_intermediate_size", "hidden_size", kGate,
     is_sparse_m3},
    {kLayer, "block_sparse_moe.shared_experts.up_proj", "shared_intermediate_size", "hidden_size", kUp,
     is_sparse_m3},
    {kLayer, "block_sparse_moe.shared_experts.down_proj", "hidden_size", "shared_intermediate_size", kLinear,
     is_sparse_m3},
    {kExpert, "w1", "intermediate_size", "hidden_size", kGate, is_sparse_m3},
    {kExpert, "w3", "intermediate_size", "hidden_size", kUp, is_sparse_m3},
    {kExpert, "w2", "hidden_size", "intermediate_size", kLinear, is_sparse_m3},
};
constexpr SynthRule kM3VisionRules[] = {
    {kModel, "vision_tower.vision_model.embeddings.patch_embedding", "vision_config.hidden_size",
     "vision_config.patch_size", kPatches},
    {kModel, "vision_tower.vision_model.pre_layrnorm.weight", "vision_config.hidden_size", "0", kVector},
    {kModel, "vision_tower.vision_model.pre_layrnorm.bias", "vision_config.hidden_size", "0", kBias},
    {kLayer, "layer_norm1.weight", "vision_config.hidden_size", "0", kVector},
    {kLayer, "layer_norm1.bias", "vision_config.hidden_size", "0", kBias},
    {kLayer, "layer_norm2.weight", "vision_config.hidden_size", "0", kVector},
    {kLayer, "layer_norm2.bias", "vision_config.hidden_size", "0", kBias},
    {kLayer, "self_attn.q_proj", "vision_config.hidden_size", "vision_config.hidden_size", kLinear},
    {kLayer, "self_attn.q_proj.bias", "vision_config.hidden_size", "0", kBias},
    {kLayer, "self_attn.k_proj", "vision_config.hidden_size", "vision_config.hidden_size", kLinear},
    {kLayer, "self_attn.k_proj.bias", "vision_config.hidden_size", "0", kBias},
    {kLayer, "self_attn.v_proj", "vision_config.hidden_size", "vision_config.hidden_size", kLinear},
    {kLayer, "self_attn.v_proj.bias", "vision_config.hidden_size", "0", kBias},
    {kLayer, "self_attn.out_proj", "vision_config.hidden_size", "vision_config.hidden_size", kLinear},
    {kLayer, "self_attn.out_proj.bias", "vision_config.hidden_size", "0", kBias},
    {kLayer, "mlp.fc1", "vision_config.intermediate_size", "vision_config.hidden_size", kLinear},
    {kLayer, "mlp.fc1.bias", "vision_config.intermediate_size", "0", kBias},
    {kLayer, "mlp.fc2", "vision_config.hidden_size", "vision_config.intermediate_size", kLinear},
    {kLayer, "mlp.fc2.bias", "vision_config.hidden_size", "0", kBias},
};
/// Beside its layer, which is one of experts.
constexpr SynthRule kM3DraftRules[] = {
    {kLayer, "enorm.weight", "hidden_size", "0", kVector},
    {kLayer, "hnorm.weight", "hidden_size", "0", kVector},
    {kLayer, "eh_proj", "hidden_size", "2*hidden_size", kLinear},
    {kLayer, "final_layernorm.weight", "hidden_size", "0", kVector},
};
constexpr SynthStack kM3Stacks[] = {
    {"language_model.model.layers.{}.",
     "block_sparse_moe.experts.{}.",
     "num_hidden_layers",
     {kM3Rules, kM3LayerRules}},
    {"language_model.model.mtp.layers.{}.", nullptr, "num_mtp_modules", {kM3DraftRules}},
    {"language_model.model.mtp.layers.{}.transformer_layer.",
     "block_sparse_moe.experts.{}.",
     "num_mtp_modules",
     {kM3LayerRules},
     "0",
     3},
    {"vision_tower.vision_model.encoder.layers.{}.",
     nullptr,
     "vision_config.num_hidden_layers",
     {kM3VisionRules}},
};
constexpr const char* kM3Config = R"({
  "architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl",
  "text_config": {
    "architectures": ["MiniMaxM3SparseForCausalLM"], "attention_output_gate": false,
    "dense_intermediate_size": 12288, "dtype": "bfloat16", "head_dim": 128, "hidden_act": "swigluoai",
    "hidden_size": 6144, "intermediate_size": 3072, "max_position_embeddings": 1048576, "moe_layer_freq": [],
    "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 60,
    "num_key_value_heads": 4, "num_local_experts": 128, "num_mtp_modules": 1, "partial_rotary_factor": 0.5,
    "qk_norm_type": "per_head", "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64,
    "routed_scaling_factor": 2.0, "scoring_func": "sigmoid", "shared_intermediate_size": 3072,
    "sparse_attention_config": {"use_sparse_attention": true, "sparse_index_dim": 128,
      "sparse_num_index_heads": 4, "sparse_topk_blocks": 16, "sparse_block_size": 128,
      "sparse_disable_index_value": [], "sparse_score_type": "max", "sparse_init_block": 0,
      "sparse_local_block": 1, "sparse_attention_freq": []},
    "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_gemma_norm": true,
    "use_qk_norm": true, "use_routing_bias": true},
  "vision_config": {"hidden_size": 1280, "image_size": 2016, "img_token_compression_config":
      {"spatial_merge_size": 2, "temporal_patch_size": 2},
    "intermediate_size": 5120, "model_type": "clip_vision_model", "num_attention_heads": 16,
    "num_channels": 3, "num_hidden_layers": 32, "patch_size": 14},
  "image_token_index": 200025, "projector_hidden_size": 6144, "torch_dtype": "bfloat16"})";
constexpr const char* kSmallM3 = R"({
  "text_config": {"dense_intermediate_size": 512, "head_dim": 64, "hidden_size": 256,
    "intermediate_size": 128, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 5,
    "num_key_value_heads": 2, "num_local_experts": 4, "rotary_dim": 32, "shared_intermediate_size": 128,
    "sparse_attention_config": {"sparse_index_dim": 32, "sparse_num_index_heads": 2}},
  "vision_config": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
    "num_hidden_layers": 1, "patch_size": 4},
  "projector_hidden_size": 128})";
void set_m3_lists(Json& text, int64_t layers) {
  Json sparse = Json::array();
  for (int64_t i = 0; i < layers; ++i) sparse.push_back(is_sparse_m3(i, layers) ? 1 : 0);
  text["moe_layer_freq"] = sparse;
  text["sparse_attention_config"]["sparse_disable_index_value"] = sparse;
  text["sparse_attention_config"]["sparse_attention_freq"] = sparse;
}
/// Names without prefixes, which the file has, then the routers.
std::vector<std::string> m3_excludes(const SynthListing& listing) {
  std::vector<std::string> names = {"lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector",
                                    "patch_merge_mlp"};
  for (const std::string& name : float_modules(listing, "*.block_sparse_moe.gate")) names.push_back(name);
  return names;
}
void fill_m3(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  fill_modelopt_linears(listing, quantization, hf_quant);
  append_names(quantization["exclude_modules"], m3_excludes(listing));
  append_names(hf_quant["quantization"]["exclude_modules"], m3_excludes(listing));
}
void fill_m3_vendor(const SynthListing& listing, Json& quantization, Json&) {
  append_names(quantization["ignored_layers"], m3_excludes(listing));
}
constexpr SynthFormatRule kM3Modules[] = {
    {"*.mtp.*", nullptr},
    {"*.block_sparse_moe.gate", nullptr},
    {"*.block_sparse_moe.experts.*", &kModelOptNvfp4},
    {"language_model.model.layers.*", &kModelOptMxfp8},
};
constexpr SynthFormatRule kM3VendorModules[] = {
    {"*.block_sparse_moe.gate", nullptr},
    {"language_model.model.layers.*", &kVendorMxfp8},
    {"language_model.model.mtp.*", &kVendorMxfp8},
};
const SynthPublication kM3Publications[] = {
    {"nvidia", nullptr, kM3Modules, R"({"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": null,
       "exclude_modules": [], "quantized_layers": {}, "quant_method": "modelopt"})",
     R"({"producer": {"name": "modelopt", "version": "minimax-m3-mxfp8-nvfp4-mixed"},
       "quant_method": "modelopt",
       "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": null, "exclude_modules": [],
         "quantized_layers": {}, "quant_method": "modelopt"}})",
     fill_m3},
    {"released", nullptr, kM3VendorModules, R"({"activation_scheme": "dynamic", "fmt": "e4m3",
       "ignored_layers": [], "quant_method": "mxfp8", "scale_fmt": "ue8m0", "weight_block_size": [1, 32]})",
     nullptr, fill_m3_vendor},
};

// Kimi-K3. Names, types, shapes and config: moonshotai/Kimi-K3 as published; its list to ignore misses the
// router, the latent projections and those of residuals. RedHatAI/Kimi-K3-NVFP4: the same experts in NVFP4,
// by llm-compressor; its list is what llm-compressor writes. Tower and projector: vLLM, models/kimi_k3 and
// kimi_k25_vit.py.
bool is_k3_full(int64_t layer, int64_t layers) { return layer % 4 == 3 || layer == layers - 1; }
bool is_k3_delta(int64_t layer, int64_t layers) { return !is_k3_full(layer, layers); }
bool is_k3_dense(int64_t layer, int64_t) { return layer < 1; }
bool is_k3_sparse(int64_t layer, int64_t) { return layer >= 1; }
#define TWOFOUR_DELTA "linear_attn_config.num_heads*linear_attn_config.head_dim"
constexpr SynthRule kK3Rules[] = {
    {kModel, "language_model.model.embed_tokens", "vocab_size", "hidden_size", kEmbedding},
    {kModel, "language_model.model.norm.weight", "hidden_size", "0", kVector},
    {kModel, "language_model.model.output_attn_res_norm.weight", "hidden_size", "0", kVector},
    {kModel, "language_model.model.output_attn_res_proj", "1", "hidden_size", kLinear},
    {kModel, "language_model.lm_head", "vocab_size", "hidden_size", kLinear},
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "self_attention_res_norm.weight", "hidden_size", "0", kVector},
    {kLayer, "self_attention_res_proj", "1", "hidden_size", kLinear},
    {kLayer, "mlp_res_norm.weight", "hidden_size", "0", kVector},
    {kLayer, "mlp_res_proj", "1", "hidden_size", kLinear},
    {kLayer, "self_attn.g_proj", TWOFOUR_DELTA, "hidden_size", kLinear},
    {kLayer, "self_attn.o_proj", "hidden_size", TWOFOUR_DELTA, kLinear},
    {kLayer, "self_attn.q_proj", TWOFOUR_DELTA, "hidden_size", kLinear, is_k3_delta},
    {kLayer, "self_attn.k_proj", TWOFOUR_DELTA, "hidden_size", kLinear, is_k3_delta},
    {kLayer, "self_attn.v_proj", TWOFOUR_DELTA, "hidden_size", kLinear, is_k3_delta},
    {kLayer, "self_attn.q_conv1d.weight", TWOFOUR_DELTA, "linear_attn_config.short_conv_kernel_size", kFilter,
     is_k3_delta},
    {kLayer, "self_attn.k_conv1d.weight", TWOFOUR_DELTA, "linear_attn_config.short_conv_kernel_size", kFilter,
     is_k3_delta},
    {kLayer, "self_attn.v_conv1d.weight", TWOFOUR_DELTA, "linear_attn_config.short_conv_kernel_size", kFilter,
     is_k3_delta},
    {kLayer, "self_attn.f_a_proj", "linear_attn_config.head_dim", "hidden_size", kLinear, is_k3_delta},
    {kLayer, "self_attn.f_b_proj", TWOFOUR_DELTA, "linear_attn_config.head_dim", kLinear, is_k3_delta},
    {kLayer, "self_attn.b_proj", "linear_attn_config.num_heads", "hidden_size", kLinear, is_k3_delta},
    {kLayer, "self_attn.A_log", "linear_attn_config.head_dim", "0", kF32Vector, is_k3_delta},
    {kLayer, "self_attn.dt_bias", TWOFOUR_DELTA, "0", kF32Vector, is_k3_delta},
    {kLayer, "self_attn.o_norm.weight", "linear_attn_config.head_dim", "0", kF32Vector, is_k3_delta},
    {kLayer, "self_attn.q_a_proj", "q_lora_rank", "hidden_size", kLinear, is_k3_full},
    {kLayer, "self_attn.q_a_layernorm.weight", "q_lora_rank", "0", kVector, is_k3_full},
    {kLayer, "self_attn.q_b_proj",
     "num_attention_heads*qk_nope_head_dim+num_attention_heads*qk_rope_head_dim", "q_lora_rank", kLinear,
     is_k3_full},
    {kLayer, "self_attn.kv_a_proj_with_mqa", "kv_lora_rank+qk_rope_head_dim", "hidden_size", kLinear,
     is_k3_full},
    {kLayer, "self_attn.kv_a_layernorm.weight", "kv_lora_rank", "0", kVector, is_k3_full},
    {kLayer, "self_attn.kv_b_proj", "num_attention_heads*qk_nope_head_dim+num_attention_heads*v_head_dim",
     "kv_lora_rank", kLinear, is_k3_full},
    {kLayer, "mlp.gate_proj", "intermediate_size", "hidden_size", kGate, is_k3_dense},
    {kLayer, "mlp.up_proj", "intermediate_size", "hidden_size", kUp, is_k3_dense},
    {kLayer, "mlp.down_proj", "hidden_size", "intermediate_size", kLinear, is_k3_dense},
    {kLayer, "block_sparse_moe.gate", "num_experts", "hidden_size", kLinear, is_k3_sparse},
    {kLayer, "block_sparse_moe.gate.e_score_correction_bias", "num_experts", "0", kF32Vector, is_k3_sparse},
    {kLayer, "block_sparse_moe.routed_expert_down_proj", "routed_expert_hidden_size", "hidden_size", kLinear,
     is_k3_sparse},
    {kLayer, "block_sparse_moe.routed_expert_norm.weight", "routed_expert_hidden_size", "0", kVector,
     is_k3_sparse},
    {kLayer, "block_sparse_moe.routed_expert_up_proj", "hidden_size", "routed_expert_hidden_size", kLinear,
     is_k3_sparse},
    {kLayer, "block_sparse_moe.shared_experts.gate_proj", "num_shared_experts*moe_intermediate_size",
     "hidden_size", kGate, is_k3_sparse},
    {kLayer, "block_sparse_moe.shared_experts.up_proj", "num_shared_experts*moe_intermediate_size",
     "hidden_size", kUp, is_k3_sparse},
    {kLayer, "block_sparse_moe.shared_experts.down_proj", "hidden_size",
     "num_shared_experts*moe_intermediate_size", kLinear, is_k3_sparse},
    {kExpert, "w1", "moe_intermediate_size", "routed_expert_hidden_size", kGate, is_k3_sparse},
    {kExpert, "w3", "moe_intermediate_size", "routed_expert_hidden_size", kUp, is_k3_sparse},
    {kExpert, "w2", "routed_expert_hidden_size", "moe_intermediate_size", kLinear, is_k3_sparse},
};
#undef TWOFOUR_DELTA
#define TWOFOUR_K3_MERGED "4*vision_config.vt_hidden_size"
constexpr SynthRule kK3VisionRules[] = {
    {kModel, "vision_tower.patch_embed.proj", "vision_config.vt_hidden_size", "vision_config.patch_size",
     kImagePatches},
    {kModel, "vision_tower.patch_embed.pos_emb.weight", "vision_config.init_pos_emb_height",
     "vision_config.vt_hidden_size", kGrid},
    {kModel, "vision_tower.encoder.final_layernorm.weight", "vision_config.vt_hidden_size", "0", kVector},
    {kModel, "mm_projector.proj.0", TWOFOUR_K3_MERGED, TWOFOUR_K3_MERGED, kLinear},
    {kModel, "mm_projector.proj.2", "hidden_size", TWOFOUR_K3_MERGED, kLinear},
    {kModel, "mm_projector.post_norm.weight", "hidden_size", "0", kVector},
    {kLayer, "norm0.weight", "vision_config.vt_hidden_size", "0", kVector},
    {kLayer, "norm1.weight", "vision_config.vt_hidden_size", "0", kVector},
    {kLayer, "wqkv", "3*vision_config.qkv_hidden_size", "vision_config.vt_hidden_size", kLinear},
    {kLayer, "wo", "vision_config.vt_hidden_size", "vision_config.qkv_hidden_size", kLinear},
    {kLayer, "mlp.fc0", "vision_config.vt_intermediate_size", "vision_config.vt_hidden_size", kLinear},
    {kLayer, "mlp.fc1", "vision_config.vt_hidden_size", "vision_config.vt_intermediate_size", kLinear},
};
#undef TWOFOUR_K3_MERGED
constexpr SynthStack kK3Stacks[] = {
    {"language_model.model.layers.{}.", "block_sparse_moe.experts.{}.", "num_hidden_layers", {kK3Rules}},
    {"vision_tower.encoder.blocks.{}.", nullptr, "vision_config.vt_num_hidden_layers", {kK3VisionRules}},
};
constexpr const char* kK3Config = R"({
  "architectures": ["KimiK3ForConditionalGeneration"], "dtype": "bfloat16", "ignore_index": -100,
  "media_placeholder_token_id": 163605, "model_type": "kimi_k3",
  "text_config": {
    "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
    "architectures": ["KimiLinearForCausalLM"], "attn_res_block_size": 12, "dtype": "bfloat16",
    "first_k_dense_replace": 1, "hidden_act": "situ", "hidden_size": 7168, "initializer_range": 0.02,
    "intermediate_size": 33792, "kv_lora_rank": 512, "latent_moe_use_norm": true,
    "linear_attn_config": {"full_attn_layers": [], "gate_lower_bound": -5.0, "head_dim": 128,
      "kda_layers": [], "num_heads": 96, "short_conv_kernel_size": 4, "use_full_rank_gate": true},
    "max_position_embeddings": 1048576, "mla_use_nope": true, "mla_use_output_gate": true,
    "model_type": "kimi_linear", "moe_intermediate_size": 3072, "moe_layer_freq": 1,
    "moe_renormalize": true, "moe_router_activation_func": "sigmoid", "num_attention_heads": 96,
    "num_expert_group": 1, "num_experts": 896, "num_experts_per_token": 16, "num_hidden_layers": 93,
    "num_key_value_heads": 96, "num_nextn_predict_layers": 0, "num_shared_experts": 2,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "routed_expert_hidden_size": 3584, "routed_scaling_factor": 1.0, "tie_word_embeddings": false,
    "topk_group": 1, "topk_method": "noaux_tc", "use_grouped_topk": true, "v_head_dim": 128},
  "tie_word_embeddings": false,
  "vision_config": {
    "activation_func": "gelu_pytorch_tanh", "attn_bias": false, "init_pos_emb_height": 64,
    "init_pos_emb_time": 4, "init_pos_emb_width": 64, "linear_bias": false, "merge_kernel_size": [2, 2],
    "mm_projector_type": "patchmergerv2", "norm_type": "rmsnorm", "patch_embed_proj_bias": false,
    "patch_size": 14, "projector_ln_eps": 1e-05, "qkv_hidden_size": 1536, "vt_hidden_size": 1024,
    "vt_intermediate_size": 4096, "vt_num_attention_heads": 12, "vt_num_hidden_layers": 27}})";
constexpr const char* kSmallK3 = R"({"text_config": {
  "hidden_size": 256, "intermediate_size": 512, "kv_lora_rank": 128,
  "linear_attn_config": {"head_dim": 32, "num_heads": 8}, "moe_intermediate_size": 128,
  "num_attention_heads": 8, "num_experts": 4, "num_experts_per_token": 2, "num_hidden_layers": 5,
  "num_key_value_heads": 8, "q_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32,
  "routed_expert_hidden_size": 128, "v_head_dim": 32},
  "vision_config": {"init_pos_emb_height": 16, "init_pos_emb_width": 16, "patch_size": 4,
    "qkv_hidden_size": 48, "vt_hidden_size": 32, "vt_intermediate_size": 64, "vt_num_attention_heads": 2,
    "vt_num_hidden_layers": 1}})";
void set_k3_lists(Json& text, int64_t layers) {
  Json full = Json::array(), delta = Json::array();
  for (int64_t i = 0; i < layers; ++i) (is_k3_full(i, layers) ? full : delta).push_back(i + 1);
  text["linear_attn_config"]["full_attn_layers"] = full;
  text["linear_attn_config"]["kda_layers"] = delta;
}
constexpr SynthFormatRule kK3Modules[] = {{"*.block_sparse_moe.experts.*", &kCtMxfp4}};
constexpr SynthFormatRule kK3Nvfp4Modules[] = {{"*.block_sparse_moe.experts.*", &kCtNvfp4}};
void fill_k3_nvfp4(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  fill_nvfp4_scheme(quantization["config_groups"]["group_0"]);
  fill_ignored_names(listing, quantization, hf_quant);
}
const SynthPublication kK3Publications[] = {
    {"released", nullptr, kK3Modules, R"({
       "config_groups": {"group_0": {"format": "mxfp4-pack-quantized", "input_activations": null,
         "output_activations": null, "targets": ["Linear"],
         "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": 32,
           "num_bits": 4, "observer": "minmax", "observer_kwargs": {}, "scale_dtype": "torch.uint8",
           "strategy": "group", "symmetric": true, "type": "float", "zp_dtype": null}}},
       "format": "mxfp4-pack-quantized", "global_compression_ratio": null,
       "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*",
         "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*", "re:.*vision_tower.*",
         "re:.*mm_projector.*"],
       "kv_cache_scheme": null, "quant_method": "compressed-tensors", "quantization_status": "compressed"})",
     nullptr, nullptr, "text_config"},
    {"redhat", nullptr, kK3Nvfp4Modules, R"({
       "config_groups": {"group_0": {"targets": ["Linear"]}}, "format": "nvfp4-pack-quantized",
       "global_compression_ratio": null, "ignore": [], "kv_cache_scheme": null,
       "quant_method": "compressed-tensors", "quantization_status": "compressed", "sparsity_config": {},
       "transform_config": {}, "version": "0.17.0"})",
     nullptr, fill_k3_nvfp4},
};

// Ling-3.0-flash, in FP8 blocks with MXFP4 experts. Names: vLLM, models/bailing_moe_v3.py, whose mapper shows
// that files say "attention"; config of quantization: its tests. Types of the experts' codes and scales (U8),
// the size of an expert and the whole list of what is not quantized are inferred.
bool is_ling_latent(int64_t layer, int64_t layers) { return (layer + 1) % 6 == 0 || layer >= layers / 6 * 6; }
bool is_ling_delta(int64_t layer, int64_t layers) { return !is_ling_latent(layer, layers); }
bool is_ling_dense(int64_t layer, int64_t) { return layer < 2; }
bool is_ling_sparse(int64_t layer, int64_t) { return layer >= 2; }
constexpr SynthRule kLingRules[] = {
    {kModel, "model.word_embeddings", "vocab_size", "hidden_size", kEmbedding},
    {kModel, "model.norm.weight", "hidden_size", "0", kVector},
    {kModel, "lm_head", "vocab_size", "hidden_size", kLinear},
};
constexpr SynthRule kLingLayerRules[] = {
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "attention.q_proj", "num_attention_heads*head_dim", "hidden_size", kLinear, is_ling_delta},
    {kLayer, "attention.k_proj", "num_attention_heads*head_dim", "hidden_size", kLinear, is_ling_delta},
    {kLayer, "attention.v_proj", "num_attention_heads*head_dim", "hidden_size", kLinear, is_ling_delta},
    {kLayer, "attention.f_proj", "num_attention_heads*head_dim", "hidden_size", kLinear, is_ling_delta},
    {kLayer, "attention.g_proj", "num_attention_heads*head_dim", "hidden_size", kLinear, is_ling_delta},
    {kLayer, "attention.b_proj", "num_attention_heads", "hidden_size", kLinear, is_ling_delta},
    {kLayer, "attention.o_proj", "hidden_size", "num_attention_heads*head_dim", kLinear, is_ling_delta},
    {kLayer, "attention.q_conv1d.weight", "num_attention_heads*head_dim", "short_conv_kernel_size", kFilter,
     is_ling_delta},
    {kLayer, "attention.k_conv1d.weight", "num_attention_heads*head_dim", "short_conv_kernel_size", kFilter,
     is_ling_delta},
    {kLayer, "attention.v_conv1d.weight", "num_attention_heads*head_dim", "short_conv_kernel_size", kFilter,
     is_ling_delta},
    {kLayer, "attention.A_log", "num_attention_heads", "0", kF32Vector, is_ling_delta},
    {kLayer, "attention.dt_bias", "num_attention_heads*head_dim", "0", kF32Vector, is_ling_delta},
    {kLayer, "attention.o_norm.weight", "head_dim", "0", kVector, is_ling_delta},
    {kLayer, "attention.q_proj", "num_attention_heads*qk_nope_head_dim+num_attention_heads*qk_rope_head_dim",
     "hidden_size", kLinear, is_ling_latent},
    {kLayer, "attention.kv_a_proj_with_mqa", "kv_lora_rank+qk_rope_head_dim", "hidden_size", kLinear,
     is_ling_latent},
    {kLayer, "attention.kv_a_layernorm.weight", "kv_lora_rank", "0", kVector, is_ling_latent},
    {kLayer, "attention.kv_b_proj", "num_attention_heads*qk_nope_head_dim+num_attention_heads*v_head_dim",
     "kv_lora_rank", kLinear, is_ling_latent},
    {kLayer, "attention.g_proj", "num_attention_heads", "hidden_size", kLinear, is_ling_latent},
    {kLayer, "attention.dense", "hidden_size", "num_attention_heads*v_head_dim", kLinear, is_ling_latent},
    {kLayer, "mlp.gate_proj", "intermediate_size", "hidden_size", kGate, is_ling_dense},
    {kLayer, "mlp.up_proj", "intermediate_size", "hidden_size", kUp, is_ling_dense},
    {kLayer, "mlp.down_proj", "hidden_size", "intermediate_size", kLinear, is_ling_dense},
    {kLayer, "mlp.gate", "num_experts", "hidden_size", kLinear, is_ling_sparse},
    {kLayer, "mlp.gate.expert_bias", "num_experts", "0", kF32Vector, is_ling_sparse},
    {kLayer, "mlp.shared_experts.gate_proj", "num_shared_experts*moe_shared_expert_intermediate_size",
     "hidden_size", kGate, is_ling_sparse},
    {kLayer, "mlp.shared_experts.up_proj", "num_shared_experts*moe_shared_expert_intermediate_size",
     "hidden_size", kUp, is_ling_sparse},
    {kLayer, "mlp.shared_experts.down_proj", "hidden_size",
     "num_shared_experts*moe_shared_expert_intermediate_size", kLinear, is_ling_sparse},
    {kExpert, "gate_proj", "moe_intermediate_size", "hidden_size", kGate, is_ling_sparse},
    {kExpert, "up_proj", "moe_intermediate_size", "hidden_size", kUp, is_ling_sparse},
    {kExpert, "down_proj", "hidden_size", "moe_intermediate_size", kLinear, is_ling_sparse},
};
constexpr SynthRule kLingDraftRules[] = {
    {kLayer, "eh_proj", "hidden_size", "2*hidden_size", kLinear},
    {kLayer, "enorm.weight", "hidden_size", "0", kVector},
    {kLayer, "hnorm.weight", "hidden_size", "0", kVector},
    {kLayer, "final_layernorm.weight", "hidden_size", "0", kVector},
};
constexpr SynthStack kLingStacks[] = {
    {"model.layers.{}.", "mlp.experts.{}.", "num_hidden_layers", {kLingRules, kLingLayerRules}},
    {"model.layers.{}.",
     "mlp.experts.{}.",
     "num_nextn_predict_layers",
     {kLingLayerRules, kLingDraftRules},
     "num_hidden_layers",
     kDraftAttention},
};
constexpr const char* kLingConfig = R"({
  "architectures": ["BailingMoeV3ForCausalLM"], "first_k_dense_replace": 2,
  "gated_attention_proj_granularity_type": "head_wise", "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 6144, "kda_lower_bound": -5.0,
  "kda_safe_gate": true, "kv_lora_rank": 512, "layer_group_size": 6, "max_position_embeddings": 262144,
  "model_type": "bailing_hybrid", "moe_intermediate_size": 768, "moe_router_enable_expert_bias": true,
  "moe_shared_expert_intermediate_size": 768, "n_group": 8, "no_kda_lora": true, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts": 512, "num_experts_per_tok": 8, "num_hidden_layers": 42,
  "num_key_value_heads": 32, "num_nextn_predict_layers": 1, "num_shared_experts": 1, "q_lora_rank": null,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_interleave": true,
  "rope_theta": 6000000, "rotary_dim": 64, "routed_scaling_factor": 2.5, "score_function": "sigmoid",
  "short_conv_kernel_size": 4, "tie_word_embeddings": false, "topk_group": 4, "use_bias": false,
  "v_head_dim": 128})";
constexpr const char* kSmallLing = R"({
  "head_dim": 64, "hidden_size": 256, "intermediate_size": 512, "kv_lora_rank": 128,
  "moe_intermediate_size": 128, "moe_shared_expert_intermediate_size": 128, "n_group": 2,
  "num_attention_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 6,
  "num_key_value_heads": 4, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "rotary_dim": 32,
  "topk_group": 1, "v_head_dim": 64})";
constexpr SynthFormatRule kLingModules[] = {
    {"*.mlp.experts.*", &kLingMxfp4}, {"*.mlp.gate", nullptr}, {"*.attention.b_proj", nullptr},
    {"*.attention.*", &kLingFp8},     {"*.mlp.*", &kLingFp8},
};
const SynthPublication kLingPublications[] = {
    {"released", nullptr, kLingModules, R"({"activation_scheme": "dynamic", "fmt": "e4m3",
       "modules_to_not_convert": ["lm_head", "word_embeddings", "b_proj", "eh_proj", "mlp.gate"],
       "quant_method": "fp8", "routed_experts_group_size": 32, "routed_experts_quant_method": "mxfp4",
       "scale_fmt": "ue8m0", "weight_block_size": [128, 128]})",
     nullptr, nullptr},
};

// gpt-oss-20b, as published: stacks of experts with biases, rows of gate and up in turn.
constexpr SynthRule kGptOssRules[] = {
    {kModel, "model.embed_tokens", "vocab_size", "hidden_size", kEmbedding},
    {kModel, "model.norm.weight", "hidden_size", "0", kVector},
    {kModel, "lm_head", "vocab_size", "hidden_size", kLinear},
    {kLayer, "input_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "post_attention_layernorm.weight", "hidden_size", "0", kVector},
    {kLayer, "self_attn.q_proj", "num_attention_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.q_proj.bias", "num_attention_heads*head_dim", "0", kBias},
    {kLayer, "self_attn.k_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.k_proj.bias", "num_key_value_heads*head_dim", "0", kBias},
    {kLayer, "self_attn.v_proj", "num_key_value_heads*head_dim", "hidden_size", kLinear},
    {kLayer, "self_attn.v_proj.bias", "num_key_value_heads*head_dim", "0", kBias},
    {kLayer, "self_attn.o_proj", "hidden_size", "num_attention_heads*head_dim", kLinear},
    {kLayer, "self_attn.o_proj.bias", "hidden_size", "0", kBias},
    {kLayer, "self_attn.sinks", "num_attention_heads", "0", kBias},
    {kLayer, "mlp.router", "num_local_experts", "hidden_size", kLinear},
    {kLayer, "mlp.router.bias", "num_local_experts", "0", kBias},
    {kLayer, "mlp.experts.gate_up_proj", "2*intermediate_size", "hidden_size", kStack},
    {kLayer, "mlp.experts.gate_up_proj_bias", "2*intermediate_size", "0", kStackBias},
    {kLayer, "mlp.experts.down_proj", "hidden_size", "intermediate_size", kStack},
    {kLayer, "mlp.experts.down_proj_bias", "hidden_size", "0", kStackBias},
};
constexpr SynthStack kGptOssStacks[] = {
    {"model.layers.{}.", nullptr, "num_hidden_layers", {kGptOssRules}},
};
constexpr const char* kGptOssConfig = R"({
  "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
  "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
  "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880, "layer_types": [],
  "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
  "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
  "output_router_logits": false, "rms_norm_eps": 1e-05,
  "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
  "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
  "tie_word_embeddings": false})";
constexpr const char* kSmallGptOss = R"({"experts_per_token": 2, "head_dim": 32, "hidden_size": 192,
  "intermediate_size": 192, "num_attention_heads": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2,
  "num_key_value_heads": 2, "num_local_experts": 4})";
void set_windows(Json& text, int64_t layers) {
  Json types = Json::array();
  for (int64_t i = 0; i < layers; ++i) types.push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  text["layer_types"] = types;
}
constexpr SynthFormatRule kGptOssModules[] = {{"*.mlp.experts.*", &kGptOssMxfp4}};
const SynthPublication kGptOssPublications[] = {
    {"released", nullptr, kGptOssModules, R"({
       "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
         "model.embed_tokens", "lm_head"],
       "quant_method": "mxfp4"})",
     nullptr, nullptr},
};

const SynthShape kFurtherShapes[] = {
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
    {"minimax-m3", "num_local_experts", "num_experts_per_tok", 60, 128, 4, kM3Stacks, kM3Config, kSmallM3,
     kM3Publications, "text_config", set_m3_lists},
    {"kimi-k3", "num_experts", "num_experts_per_token", 93, 896, 16, kK3Stacks, kK3Config, kSmallK3,
     kK3Publications, "text_config", set_k3_lists},
    {"ling-3.0-flash", "num_experts", "num_experts_per_tok", 42, 512, 8, kLingStacks, kLingConfig, kSmallLing,
     kLingPublications},
    {"gpt-oss", "num_local_experts", "num_experts_per_tok", 24, 32, 4, kGptOssStacks, kGptOssConfig,
     kSmallGptOss, kGptOssPublications, nullptr, set_windows},
};

}  // namespace

std::span<const SynthShape> further_shapes() { return kFurtherShapes; }

}  // namespace twofour
