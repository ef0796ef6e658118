#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

// MiniMax-M3. Names: transformers, conversion_mapping.py and models/minimax_m3_vl; configs as published. Of
// the vendor's quantization entry the method, the block and the list are known. Tower and draft: vLLM,
// models/minimax_m3. The draft's format is inferred from the lists: nvidia's 534 MXFP8 modules are without
// it, and the vendor's list, which names what is not MXFP8, does not name it.

namespace twofour {
namespace {

using enum SynthRole;
using enum SynthScope;

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

const SynthShape kMinimaxShapes[] = {
    {"minimax-m3", "num_local_experts", "num_experts_per_tok", 60, 128, 4, kM3Stacks, kM3Config, kSmallM3,
     kM3Publications, "text_config", set_m3_lists},
};

}  // namespace

std::span<const SynthShape> minimax_shapes() { return kMinimaxShapes; }

}  // namespace twofour
