#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"

// Counts, parts and names: clauses 1.18 to 1.22.

namespace twofour {
namespace {

using namespace spoil;
using enum Base;
constexpr Expect kFault = Expect::kFault, kHarmless = Expect::kHarmless;

/// Drops all tensors with a text in their names.
Change drop_all(std::string text) {
  return [text = std::move(text)](Save& s, std::mt19937&) {
    for (auto& [file, tensors] : s.shards)
      std::erase_if(tensors, [&](const TensorData& t) { return t.name.find(text) != std::string::npos; });
  };
}
/// Changes every name.
Change rename_all(std::function<std::string(std::string)> f) {
  return [f = std::move(f)](Save& s, std::mt19937&) {
    for (auto& [file, tensors] : s.shards)
      for (TensorData& t : tensors) t.name = f(t.name);
  };
}
std::string replaced(std::string name, const std::string& from, const std::string& to) {
  const size_t at = name.find(from);
  return at == std::string::npos ? name : name.replace(at, from.size(), to);
}
/// Adds `by` to the number of each layer from `first` on.
Change shift_layers(int first, int by) {
  return rename_all([=](std::string name) {
    const size_t at = name.find("layers.");
    if (at == std::string::npos) return name;
    const size_t begin = at + 7, end = name.find('.', begin);
    const int layer = std::stoi(name.substr(begin, end - begin));
    return layer < first ? name : name.replace(begin, end - begin, std::to_string(layer + by));
  });
}

std::vector<Planted> experts() {
  constexpr const char* kWhy = "all experts of the layer stay uninitialized";
  return {
      {"1.18", kMoe, kFault, "of one layer", kWhy, "experts-missing layers.2",
       drop_all("layers.2.mlp.experts.")},
      {"1.18", kMoe, kFault, "of all layers", kWhy, "experts-missing layers.0", drop_all(".mlp.experts.")},
      {"1.18", kMixtral, kFault, "of all layers", kWhy, "experts-missing layers.1", drop_all(".experts.")},
      {"1.18", kDeepSeek, kFault, "of one layer", kWhy, "experts-missing layers.4",
       drop_all("layers.4.mlp.experts.")},
      {"1.18", kDeepSeek, kFault, "of the draft", kWhy, "experts-missing layers.5",
       drop_all("layers.5.mlp.experts.")},
      {"1.18", kGptOss, kFault, "of one layer", kWhy, "experts-missing layers.1",
       drop_all("layers.1.mlp.experts.")},
      {"1.18", kInt4, kFault, "of one layer", kWhy, "experts-missing layers.2",
       drop_all("layers.2.mlp.experts.")},
      {"1.18", kGlm, kFault, "of one layer", kWhy, "experts-missing layers.3",
       drop_all("layers.3.mlp.experts.")},
      {"1.18", kV4, kFault, "of one layer", kWhy, "experts-missing layers.3",
       drop_all("layers.3.ffn.experts.")},
      {"1.18", kM3, kFault, "of one layer", kWhy, "experts-missing layers.4",
       drop_all("layers.4.block_sparse_moe.experts.")},
      {"1.18", kK3, kFault, "of one layer", kWhy, "experts-missing layers.4",
       drop_all("layers.4.block_sparse_moe.experts.")},
      {"1.18", kQwenMixed, kFault, "of the draft", kWhy, "experts-missing mtp.layers.0",
       drop_all("mtp.layers.0.mlp.experts.")},
      {"1.18", kNemotron, kFault, "of the draft", kWhy, "experts-missing mtp.layers.1",
       drop_all("mtp.layers.1.mixer.experts.")},
      {"1.18", kMoe, kFault, "cut with gaps", "tokens are routed to experts that are not there",
       "experts-missing first 1",
       [](Save& s, auto& r) {
         for (const char* e : {"1", "3", "5", "7", "9", "11", "13", "15"})
           drop_all(std::string(".experts.") + e + ".")(s, r);
       }},
  };
}

std::vector<Planted> parts() {
  constexpr const char* kWhy = "it stays uninitialized";
  return {
      {"1.19", kGlm, kFault, "the keys of one index", kWhy, "layers.1.self_attn.indexer.wk",
       drop_all("layers.1.self_attn.indexer.wk.")},
      {"1.19", kGlm, kFault, "a bias of one index", kWhy, "layers.1.self_attn.indexer.k_norm.bias",
       drop_all("layers.1.self_attn.indexer.k_norm.bias")},
      {"1.19", kGlm, kFault, "a whole index", kWhy, "layers.2.self_attn.indexer",
       drop_all("layers.2.self_attn.indexer.")},
      {"1.19", kGlm, kFault, "an index promised for each layer", "one layer has none", "indexer_types",
       set_key("indexer_types", Json::array({"full", "full", "full", "full"}))},
      {"1.19", kV4, kFault, "keys of a compressor", kWhy, "layers.2.attn.compressor.wkv",
       drop_all("layers.2.attn.compressor.wkv.")},
      {"1.19", kV4, kFault, "a norm of a compressor", kWhy, "layers.3.attn.compressor.norm",
       drop_all("layers.3.attn.compressor.norm.")},
      {"1.19", kQwenMixed, kFault, "attention of the draft", kWhy, "mtp.layers.0.self_attn",
       drop_all("mtp.layers.0.self_attn.")},
      {"1.19", kQwenMixed, kFault, "the projection before the draft", kWhy, "mtp.fc", drop_all("mtp.fc.")},
      {"1.19", kNemotron, kFault, "half of the projection before the draft",
       "it multiplies half of its input", "mtp.layers.0.eh_proj",
       cut_columns("mtp.layers.0.eh_proj.weight", 256)},
      {"1.19", kM3, kFault, "a list of sparse attention of another length", "layers get another kind",
       "sparse_attention_freq",
       edit_key("text_config.sparse_attention_config.sparse_attention_freq",
                [](Json& j) { j.push_back(1); })},
      {"1.19", kM3, kFault, "a list of sparse layers of another length", "layers get another kind",
       "moe_layer_freq", edit_key("text_config.moe_layer_freq", [](Json& j) { j.push_back(1); })},
      {"1.19", kM3, kFault, "another width of the index", "its tensors do not fit", "sparse_index_dim",
       set_key("text_config.sparse_attention_config.sparse_index_dim", 256)},
      {"1.19", kFlash, kFault, "another count of streams", "its tensors do not fit", "hc_count",
       set_key("text_config.hc_count", 2)},
      {"1.19", kFlash, kFault, "another count of pieces", "half of the table is not loaded",
       "split_ngram_parts", set_key("text_config.split_ngram_parts", 4)},
      {"1.19", kFlash, kFault, "a table promised of another layer", "it stays uninitialized", "layers.2.ple",
       set_key("text_config.ple_layer_ids", Json::array({2, 3}))},
      {"1.19", kFlash, kFault, "a piece of the table", kWhy, "shard_3", drop_all("ngram_embedding.shard_3.")},
      {"1.19", kFlash, kFault, "a piece of the table cut", "the last tokens of it have no row", "shard_2",
       resize_rows("*ngram_embedding.shard_2.weight", 8)},
      {"1.19", kUnknown, kFault, "a projection of one layer, by its siblings", kWhy,
       "layers.1.self_attn.o_proj", drop_all("layers.1.self_attn.o_proj.")},
  };
}

std::vector<Planted> towers() {
  const auto vision = [](const char* key, int value) {
    return set_key(std::string("vision_config.") + key, value);
  };
  constexpr const char* kFit = "the tower is allocated with other sizes";
  return {
      {"1.20", kQwenMixed, kFault, "another depth", "blocks stay uninitialized", "vision_config.depth",
       vision("depth", 27)},
      {"1.20", kQwenMixed, kFault, "another width", kFit, "vision_config.hidden_size",
       vision("hidden_size", 64)},
      {"1.20", kQwenMixed, kFault, "another width of MLPs", kFit, "vision_config.intermediate_size",
       vision("intermediate_size", 68)},
      {"1.20", kQwenMixed, kFault, "other patches", kFit, "vision_config.patch_size",
       vision("patch_size", 14)},
      {"1.20", kQwenMixed, kFault, "patches of one image", kFit, "vision_config.temporal_patch_size",
       vision("temporal_patch_size", 1)},
      {"1.20", kQwenMixed, kFault, "others merged", kFit, "vision_config.spatial_merge_size",
       vision("spatial_merge_size", 1)},
      {"1.20", kQwenMixed, kFault, "more positions", kFit, "vision_config.num_position_embeddings",
       vision("num_position_embeddings", 1024)},
      {"1.20", kQwenMixed, kFault, "another output", kFit, "vision_config.out_hidden_size",
       vision("out_hidden_size", 128)},
      {"1.20", kQwenMixed, kFault, "heads that do not divide", kFit, "vision_config.num_heads",
       vision("num_heads", 7)},
      {"1.20", kQwenMixed, kFault, "a bias lost", "it stays uninitialized", "visual.blocks.0.attn.qkv.bias",
       drop_all("visual.blocks.0.attn.qkv.bias")},
      {"1.20", kQwenMixed, kFault, "the merger lost", "images do not reach the model", "visual.merger",
       drop_all("visual.merger.")},
      {"1.20", kQwenMixed, kFault, "the whole tower lost", "images are read by random weights",
       "model.visual", drop_all("model.visual.")},
      {"1.20", kQwenMixed, kFault, "its prefix lost", "no loader has such names", "model.visual",
       rename_all([](std::string name) { return replaced(std::move(name), "model.visual.", ""); })},
      {"1.20", kQwenMixed, kFault, "half of its prefix lost", "transformers has no such names", "visual",
       rename_all([](std::string name) { return replaced(std::move(name), "model.visual.", "visual."); })},
      {"1.20", kQwenMixed, kFault, "positions cut", "large images read beyond the table",
       "num_position_embeddings", resize_rows("model.visual.pos_embed.weight", 8)},
      {"1.20", kQwenMixed, kFault, "patches in one dimension", "the shape is not that of the convolution",
       "patch_embed",
       edit_tensors("model.visual.patch_embed.proj.weight",
                    [](TensorData& t) {
                      for (size_t i = 2; i < t.shape.size(); ++i) t.shape[1] *= t.shape[i];
                      t.shape.resize(2);
                    })},
      {"1.20", kQwenMixed, kFault, "an MLP transposed", "its shape does not fit", "linear_fc2",
       edit_tensors("model.visual.blocks.0.mlp.linear_fc2.weight",
                    [](TensorData& t) { std::swap(t.shape[0], t.shape[1]); })},
      {"1.20", kM3, kFault, "the projector lost", "images do not reach the model", "multi_modal_projector",
       drop_all("multi_modal_projector.")},
      {"1.20", kK3, kFault, "the projector lost", "images do not reach the model", "mm_projector",
       drop_all("mm_projector.")},
      {"1.20", kK3, kFault, "the whole tower lost", "images are read by random weights", "vision_tower",
       drop_all("vision_tower.")},
  };
}

std::vector<Planted> names() {
  constexpr const char* kWhy = "no parameter has these names";
  const auto prefixed = [](const char* prefix) {
    return rename_all([prefix](std::string name) { return prefix + name; });
  };
  return {
      {"1.21", kLlama, kFault, "model. twice", "vLLM finds no parameter", "name-prefix", prefixed("model.")},
      {"1.21", kMoe, kFault, "model. twice", "vLLM finds no parameter", "name-prefix", prefixed("model.")},
      {"1.21", kLlama, kFault, "module.", kWhy, "name-prefix", prefixed("module.")},
      {"1.21", kLlama, kFault, "of peft", kWhy, "name-prefix", prefixed("base_model.model.")},
      {"1.21", kUnknown, kFault, "of a compiled model", kWhy, "name-prefix", prefixed("_orig_mod.")},
      {"1.21", kLlama, kFault, "of FSDP within layers", kWhy, "name-prefix", rename_all([](std::string name) {
         return replaced(replaced(std::move(name), ".self_attn.", "._fsdp_wrapped_module.self_attn."),
                         ".mlp.", "._fsdp_wrapped_module.mlp.");
       })},
      {"1.21", kMoe, kFault, "a hyphen in the family", "transformers stops at it", "model_type qwen3_moe",
       set_key("model_type", "qwen3-moe")},
      {"1.21", kLlama, kFault, "layers from 1 on", "the first stays uninitialized", "layer-numbers",
       shift_layers(0, 1)},
      {"1.21", kDeepSeek, kFault, "layers from 1 on", "the first stays uninitialized", "layer-numbers",
       shift_layers(0, 1)},
      {"1.21", kDeepSeek, kFault, "the draft one too high", "it is not found", "layer-numbers",
       shift_layers(5, 1)},
      {"1.21", kLlama, kFault, "a zero before a number", "the layer stays uninitialized", "layer-numbers",
       rename_all([](std::string name) { return replaced(std::move(name), "layers.1.", "layers.01."); })},
      {"1.21", kQwenMixed, kFault, "the language model's config lost", "loaders take sizes of another model",
       "text_config", erase_key("text_config")},
      {"1.21", kQwenMixed, kFault, "two widths", "engines read one or the other", "hidden_size",
       set_key("hidden_size", 512)},
  };
}

std::vector<Planted> settings() {
  return {
      {"1.22", kLlama, kFault, "torch's type with its module", "torch has no type of this name", "dtype",
       set_key("dtype", "torch.bfloat16")},
      {"1.22", kLlama, kFault, "yarn without its origin", "vLLM raises KeyError",
       "original_max_position_embeddings", set_key("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}})},
      {"1.22", kLlama, kFault, "a factor of an eighth", "positions are stretched the wrong way", "factor",
       set_key("rope_scaling", {{"rope_type", "llama3"},
                                {"factor", 0.125},
                                {"low_freq_factor", 1.0},
                                {"high_freq_factor", 4.0},
                                {"original_max_position_embeddings", 8192}})},
      {"1.22", kNemotron, kFault, "chunks of nothing", "the scan divides by 0", "chunk_size",
       set_key("chunk_size", 0)},
      {"1.22", kNemotron, kFault, "half of a state", "projections do not fit", "ssm_state_size",
       set_key("ssm_state_size", 16)},
      {"1.22", kGlm, kFault, "heads that are not the sum of their parts",
       "scores are scaled by another width", "qk_head_dim", set_key("qk_head_dim", 999)},
      {"1.22", kGptOss, kFault, "stored experts that are called floats", "codes are read as floats",
       "layers.1.mlp.experts",
       edit_key("quantization_config.modules_to_not_convert",
                [](Json& j) { j.push_back("model.layers.1.mlp.experts"); })},
      {"1.22", kK3, kFault, "decays in integers", "loaders cast them", "A_log",
       edit_tensors("*layers.0.self_attn.A_log", [](TensorData& t) { t.dtype = DType::kI32; })},
      {"1.22", kQwenRow, kFault, "a lost group", "engines read codes as floats", "config_groups",
       erase_key("quantization_config.config_groups.group_1")},
      {"1.22", kLlama, kHarmless, "yarn with its origin outside", "loaders look for it there, too", "",
       all_of({set_key("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}),
               set_key("original_max_position_embeddings", 4096)})},
  };
}

}  // namespace

std::vector<Planted> planted_parts() {
  std::vector<Planted> all;
  for (const auto& part : {experts(), parts(), towers(), names(), settings()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace twofour
