#include "lib/synth/published_config.h"
#include "lib/synth/shapes.h"

// MiniMax-M3. Names: transformers, conversion_mapping.py and models/minimax_m3_vl; configs as published. Of
// the vendor's quantization entry the method, the block and the list are known. Tower and draft: vLLM,
// models/minimax_m3. The draft's format is inferred from the lists: nvidia's 534 MXFP8 modules are without
// it, and the vendor's list, which names what is not MXFP8, does not name it.

namespace twofour {
namespace {

bool is_sparse_m3(int64_t layer, int64_t) { return layer >= 3; }
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
    {"nvidia", kM3Modules, R"({"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": null,
       "exclude_modules": [], "quantized_layers": {}, "quant_method": "modelopt"})",
     R"({"producer": {"name": "modelopt", "version": "minimax-m3-mxfp8-nvfp4-mixed"},
       "quant_method": "modelopt",
       "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": null, "exclude_modules": [],
         "quantized_layers": {}, "quant_method": "modelopt"}})",
     fill_m3},
    {"released", kM3VendorModules, R"({"activation_scheme": "dynamic", "fmt": "e4m3",
       "ignored_layers": [], "quant_method": "mxfp8", "scale_fmt": "ue8m0", "weight_block_size": [1, 32]})",
     nullptr, fill_m3_vendor},
};

const SynthShape kMinimaxShapes[] = {
    {.name = "minimax-m3",
     .config = kM3Config,
     .small = kSmallM3,
     .publications = kM3Publications,
     .text = "text_config",
     .finish = set_m3_lists,
     .language_model = "language_model.",
     .f32 = "*.e_score_correction_bias"},
};

}  // namespace

std::span<const SynthShape> minimax_shapes() { return kMinimaxShapes; }

}  // namespace twofour
