#include <algorithm>
#include <cstring>

#include "lib/base/io/file.h"
#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"

// Changes that rules are held against and not written by: clauses 3 to 5. See faults_heldout.cpp.

namespace twofour {
namespace {

namespace fs = std::filesystem;
using namespace spoil;
using enum Base;
using Random = std::mt19937;
constexpr Expect kFault = Expect::kFault, kHarmless = Expect::kHarmless;

float reciprocal(float x) { return 1 / x; }
std::function<float(float)> times(float factor) {
  return [=](float x) { return x * factor; };
}
uint8_t any_byte(uint8_t, size_t, Random& random) { return static_cast<uint8_t>(random()); }
uint8_t swap_nibbles(uint8_t byte, size_t, Random&) { return static_cast<uint8_t>(byte << 4 | byte >> 4); }

std::string expert(int layer, int number) {
  return "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(number) + ".";
}

/// Row r becomes row f(r).
Change pick_rows(std::string pattern, std::function<size_t(size_t)> f) {
  return edit_tensors(std::move(pattern), [=](TensorData& t) {
    const size_t row = row_bytes(t), rows = t.bytes.size() / row;
    const std::vector<uint8_t> old = t.bytes;
    for (size_t r = 0; r < rows; ++r) std::memcpy(t.bytes.data() + r * row, old.data() + f(r) * row, row);
  });
}

/// Where in a row `f` picks a byte, it becomes zero.
Change zero_bytes(std::string pattern, std::function<bool(int64_t, size_t)> f) {
  return map_rows(std::move(pattern), [=](int64_t row, uint8_t* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) bytes[i] = f(row, i) ? 0 : bytes[i];
  });
}

std::vector<Planted> scales() {
  return {
      {"3.1", kNemotron, kFault, "an expert a hundred times too small", "it adds nothing",
       "layers.3.mixer.experts 1",
       map_floats("backbone.layers.3.mixer.experts.1.*.weight_scale_2", times(0.01f))},
      {"3.1", kQwenMixed, kFault, "a shared expert fifty times too large", "it drowns the routed ones",
       "layers.2.mlp.shared_expert",
       map_floats("model.language_model.layers.2.mlp.shared_expert.*.weight_scale_2", times(50))},
      {"3.1", kLlamaCt, kFault, "the MLP of one layer twelve times too small",
       "the layer adds next to nothing", "layers.1.mlp",
       map_floats("model.layers.1.mlp.*.weight_global_scale", times(12))},
      {"3.1", kMoe, kFault, "a router a hundred times too large", "one expert gets all weight",
       "layers.2.mlp.gate", map_floats("model.layers.2.mlp.gate.weight", times(100))},
      {"3.1", kTiny, kHarmless, "a global scale in the shape [1]", "a scalar and one element are one number",
       "",
       edit_tensors("model.layers.1.mlp.experts.3.down_proj.weight_scale_2",
                    [](TensorData& t) { t.shape = {1}; })},
      {"3.2", kQwenMixed, kFault, "of one FP8 module", "its weights are too large",
       "layers.3.self_attn.o_proj",
       map_floats("model.language_model.layers.3.self_attn.o_proj.weight_scale", reciprocal)},
      {"3.2", kNemotron, kFault, "of all experts", "all their weights are too large", "weight_scale_2",
       map_floats("backbone.layers.*.weight_scale_2", reciprocal)},
      {"3.2", kMixtral, kFault, "of one linear", "its weights are too large", "layers.0.self_attn.o_proj",
       map_floats("model.layers.0.self_attn.o_proj.weight_global_scale", reciprocal)},
      {"3.3", kQwenRow, kFault, "of all rows of one linear", "weights are too large by 1/s",
       "layers.2.linear_attn.out_proj",
       set_floats("model.language_model.layers.2.linear_attn.out_proj.weight_scale", 1)},
      {"3.3", kMixtral, kFault, "of one expert", "its weights are too large by G",
       "layers.2.block_sparse_moe.experts 1",
       set_floats("model.layers.2.block_sparse_moe.experts.1.*.weight_global_scale", 1)},
      {"3.4", kQwenMixed, kFault, "448 in one FP8 module", "its weights are too large",
       "layers.0.linear_attn.in_proj_z",
       set_floats("model.language_model.layers.0.linear_attn.in_proj_z.weight_scale", 448)},
      {"3.4", kQwenRow, kFault, "amax of rows in one linear", "its weights are 448 times too large",
       "layers.3.self_attn.o_proj",
       map_floats("model.language_model.layers.3.self_attn.o_proj.weight_scale", times(448))},
      {"3.5", kDeepSeek, kFault, "one scale over all blocks of one linear", "blocks lose their sizes",
       "layers.0.mlp.down_proj",
       edit_tensors("model.layers.0.mlp.down_proj.weight_scale_inv",
                    [](TensorData& t) {
                      for (size_t i = 4; i < t.bytes.size(); ++i) t.bytes[i] = t.bytes[i % 4];
                    })},
      {"3.5", kLlamaCt, kFault, "one global scale in all modules", "each matrix is off by its own amax",
       "weight_global_scale",
       [](Save& s, auto&) {
         const std::vector<uint8_t> one = s.at("model.layers.2.mlp.up_proj.weight_global_scale").bytes;
         for (TensorData* t : tensors(s, "model.layers.*.weight_global_scale")) t->bytes = one;
       }},
      {"3.6", kMoe, kFault, "of a layer's down_proj a million times too small", "inputs saturate",
       "layers.1 down_proj",
       [](Save& s, Random& random) {
         for (int e = 0; e < 16; ++e)
           map_floats(expert(1, e) + "down_proj.input_scale", times(1e-6f))(s, random);
       }},
      {"3.6", kNemotron, kFault, "a reciprocal in one FP8 module", "inputs vanish", "layers.2.mixer.out_proj",
       map_floats("backbone.layers.2.mixer.out_proj.input_scale", reciprocal)},
      {"3.7", kLlamaCt, kFault, "one layer", "its inputs are scaled at random", "layers.2",
       drop("model.layers.2.*input_global_scale")},
      {"3.7", kTiny, kFault, "two experts", "their inputs are scaled at random", "layers.1.mlp.experts",
       all_of({drop("model.layers.1.mlp.experts.2.*.input_scale"),
               drop("model.layers.1.mlp.experts.5.*.input_scale")})},
      {"3.8", kLlamaKv, kFault, "448 for values", "all values round to zero", "v_scale",
       set_floats("model.layers.*.v_scale", 448)},
      {"3.8", kLlamaKvCt, kFault, "a thousand times too large in one layer", "its keys round to zero",
       "layers.1.self_attn", map_floats("model.layers.1.self_attn.k_scale", times(1000))},
      {"3.8", kLlamaKv, kFault, "of keys lost in one layer", "its keys are stored with a scale of 1",
       "layers.2.self_attn", drop("model.layers.2.self_attn.k_proj.k_scale")},
  };
}

std::vector<Planted> content() {
  return {
      {"4.1", kMoe, kFault, "routers of the first and the last layer",
       "tokens go to the experts of another layer", "layers.0 layers.3 gate",
       copy_bytes("model.layers.0.mlp.gate.", "model.layers.3.mlp.gate.")},
      {"4.1", kQwenMixed, kFault, "a shared expert that is expert 0", "expert 0 runs always",
       "layers.1 shared_expert",
       copy_bytes("model.language_model.layers.1.mlp.experts.0.",
                  "model.language_model.layers.1.mlp.shared_expert.")},
      {"4.1", kLlama, kFault, "keys and values of one layer", "attention reads its keys as values",
       "layers.1 k_proj v_proj",
       copy_bytes("model.layers.1.self_attn.k_proj.", "model.layers.1.self_attn.v_proj.")},
      {"4.1", kNemotron, kFault, "an expert of another layer", "the layer lost one of its own",
       "layers.1 layers.3 experts",
       copy_bytes("backbone.layers.1.mixer.experts.2.", "backbone.layers.3.mixer.experts.2.")},
      {"4.2", kMixtral, kFault, "one code everywhere", "the matrix is constant in each block",
       "layers.2.block_sparse_moe.experts.0.w2",
       map_bytes("model.layers.2.block_sparse_moe.experts.0.w2.weight_packed",
                 [](uint8_t, size_t, auto&) { return uint8_t{0x22}; })},
      {"4.2", kMoe, kFault, "no signs in one expert", "half of its weights have the wrong sign",
       "layers.0.mlp.experts.13",
       map_bytes(expert(0, 13) + "*_proj.weight",
                 [](uint8_t b, size_t, auto&) { return static_cast<uint8_t>(b & 0x77u); })},
      {"4.2", kGptOss, kFault, "integers offset by 8 in a stack", "INT4 codes are read as E2M1",
       "layers.0.mlp.experts",
       map_bytes("model.layers.0.mlp.experts.down_proj_blocks",
                 [](uint8_t b, size_t, auto&) {
                   const auto offset = [](unsigned c) { return (c & 8u) != 0 ? 8 - (c & 7u) : 8 + (c & 7u); };
                   return static_cast<uint8_t>(offset(b & 15u) | offset(b >> 4) << 4);
                 })},
      {"4.2", kMixtral, kHarmless, "no negative zeros", "-0 and 0 are one number", "",
       map_bytes("model.layers.*.weight_packed",
                 [](uint8_t b, size_t, auto&) {
                   const unsigned low = (b & 15u) == 8 ? 0 : b & 15u, high = b >> 4 == 8 ? 0 : b >> 4;
                   return static_cast<uint8_t>(low | high << 4);
                 })},
      {"4.3", kMixtral, kFault, "the second half of the columns", "half of the inputs are dropped",
       "layers.1.block_sparse_moe.experts.3.w2",
       zero_bytes("model.layers.1.block_sparse_moe.experts.3.w2.weight_packed",
                  [](int64_t, size_t i) { return i >= 64; })},
      {"4.3", kQwenRow, kFault, "each second row in FP8", "half of the outputs are zero",
       "layers.3.self_attn.o_proj",
       zero_bytes("model.language_model.layers.3.self_attn.o_proj.weight",
                  [](int64_t row, size_t) { return row % 2 == 0; })},
      {"4.3", kMoe, kFault, "stripes of columns", "a quarter of the inputs is dropped",
       "layers.3.self_attn.o_proj",
       zero_bytes("model.layers.3.self_attn.o_proj.weight", [](int64_t, size_t i) { return i % 32 < 8; })},
      {"4.4", kQwenRow, kFault, "the first quarter four times in FP8", "a shard was written four times",
       "layers.1.linear_attn.in_proj_qkv",
       pick_rows("model.language_model.layers.1.linear_attn.in_proj_qkv.weight",
                 [](size_t r) { return r % 128; })},
      {"4.4", kMixtral, kFault, "each row four times", "a projection was expanded by a wrong stride",
       "layers.0.block_sparse_moe.experts.1.w3",
       pick_rows("model.layers.0.block_sparse_moe.experts.1.w3.weight_packed",
                 [](size_t r) { return r / 4; })},
      {"4.5", kMixtral, kFault, "codes of one matrix", "its outputs are noise",
       "layers.2.block_sparse_moe.experts.2.w1",
       map_bytes("model.layers.2.block_sparse_moe.experts.2.w1.weight_packed", any_byte)},
      {"4.5", kQwenMixed, kFault, "FP8 bytes of one linear", "its outputs are noise",
       "layers.7.self_attn.v_proj",
       map_bytes(
           "model.language_model.layers.7.self_attn.v_proj.weight",
           [](uint8_t, size_t, Random& r) { return static_cast<uint8_t>(r() % 0x7F | (r() % 2) << 7); })},
      {"4.6", kMixtral, kFault, "transposed in one linear", "blocks have the sizes of others",
       "layers.1.self_attn.o_proj",
       edit_tensors("model.layers.1.self_attn.o_proj.weight_scale",
                    [](TensorData& t) {
                      const std::vector<uint8_t> old = t.bytes;
                      for (size_t i = 0; i < old.size(); ++i) t.bytes[i % 16 * 256 + i / 16] = old[i];
                    })},
      {"4.6", kMoe, kFault, "tiled in one expert", "a kernel's order is read as rows",
       "layers.2.mlp.experts.1",
       edit_tensors(expert(2, 1) + "down_proj.weight_scale",
                    [](TensorData& t) {
                      const std::vector<uint8_t> old = t.bytes;
                      for (size_t r = 0; r < 256; ++r) {
                        for (size_t c = 0; c < 8; ++c)
                          t.bytes[(r / 128 * 2 + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4] =
                              old[r * 8 + c];
                      }
                    })},
      {"4.7",
       kTiny,
       kFault,
       "of each byte exchanged",
       "even and odd inputs are exchanged",
       "layers.2.self_attn.o_proj",
       map_bytes("model.layers.2.self_attn.o_proj.weight", swap_nibbles),
       {},
       true},
      {"4.7",
       kQwenRow,
       kFault,
       "of each byte exchanged",
       "even and odd inputs are exchanged",
       "layers.1.mlp.up_proj",
       map_bytes("model.language_model.layers.1.mlp.up_proj.weight_packed", swap_nibbles),
       {},
       true},
      {"4.8",
       kDeepSeek,
       kFault,
       "two experts in FP8 exchanged",
       "the router means others",
       "layers.3 experts 0 expert 2",
       swap_bytes("model.layers.3.mlp.experts.0.", "model.layers.3.mlp.experts.2."),
       {},
       true},
      {"4.8",
       kMoe,
       kFault,
       "rows of a router exchanged",
       "tokens go to other experts",
       "layers.1.mlp.gate",
       pick_rows("model.layers.1.mlp.gate.weight", [](size_t r) { return r < 2 ? 1 - r : r; }),
       {},
       true},
      {"4.8",
       kLlama,
       kFault,
       "rows of queries in the order of another rotation",
       "heads are rotated wrongly",
       "layers.0.self_attn.q_proj",
       pick_rows("model.layers.0.self_attn.q_proj.weight",
                 [](size_t r) { return r / 64 * 64 + r % 64 / 2 + r % 2 * 32; }),
       {},
       true},
      {"4.8",
       kMixtral,
       kFault,
       "gate and up exchanged in all experts",
       "the activation is applied to the other half",
       "w1 | gate",
       [](Save& s, Random& random) {
         for (int layer = 0; layer < 3; ++layer) {
           for (int e = 0; e < 4; ++e) {
             const std::string prefix =
                 "model.layers." + std::to_string(layer) + ".block_sparse_moe.experts." + std::to_string(e);
             swap_bytes(prefix + ".w1.", prefix + ".w3.")(s, random);
           }
         }
       },
       {},
       true},
  };
}

fs::path first_shard(const fs::path& directory) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
  }
  return *std::min_element(found.begin(), found.end());
}

std::function<void(const fs::path&, Random&)> replace_shard(std::string text) {
  return [=](const fs::path& d, Random&) {
    const fs::path file = first_shard(d);
    fs::remove(file);
    write_text(file, text);
  };
}

std::vector<Planted> files() {
  return {
      {"5.1",
       kMixtral,
       kFault,
       "the first shard",
       "its weights stay uninitialized",
       "model-00001",
       {},
       [](const fs::path& d, Random&) { fs::remove(first_shard(d)); }},
      {"5.1",
       kV7,
       kFault,
       "the weights of an artifact",
       "the artifact is a manifest alone",
       "model-00001",
       {},
       [](const fs::path& d, Random&) { fs::remove(first_shard(d)); }},
      {"5.2",
       kMoe,
       kFault,
       "an HTML page for a shard",
       "its weights are missing",
       "HTML model-00001",
       {},
       replace_shard("<html>\n<head><title>504 Gateway Time-out</title></head>\n</html>\n")},
      {"5.2",
       kDeepSeek,
       kFault,
       "a store's refusal for a shard",
       "its weights are missing",
       "model-00001",
       {},
       replace_shard("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>AccessDenied</Code></Error>")},
      {"5.2", kTiny, kFault, "a Git LFS pointer for the tokenizer's config", "no text can be read",
       "tokenizer_config.json LFS",
       [](Save& s, auto&) {
         s.files["tokenizer_config.json"] =
             "version https://git-lfs.github.com/spec/v1\noid sha256:00ff\nsize 50500\n";
       }},
      {"5.3",
       kDeepSeek,
       kFault,
       "of a browser",
       "the shard is half there",
       ".crdownload",
       {},
       [](const fs::path& d, Random&) {
         const fs::path file = first_shard(d);
         fs::resize_file(file, fs::file_size(file) / 3);
         fs::rename(file, file.string() + ".crdownload");
       }},
      {"5.3",
       kG8,
       kFault,
       "of curl, in place of an artifact's weights",
       "the file is half there",
       ".part",
       {},
       [](const fs::path& d, Random&) {
         const fs::path file = first_shard(d);
         fs::resize_file(file, fs::file_size(file) / 3);
         fs::rename(file, file.string() + ".part");
       }},
      {"5.4", kMoe, kFault, "the format file of another model", "it names modules that there are not",
       "hf_quant_config.json",
       [](Save& s, auto&) {
         s.files["hf_quant_config.json"] = base_checkpoint(kNemotron).files.at("hf_quant_config.json");
       }},
      {"5.4",
       kLlama,
       kFault,
       "the index of the checkpoint before it was quantized",
       "scales and codes are not found by it",
       "index",
       {},
       [](const fs::path& d, Random&) {
         const Json weights =
             parse_json("index", read_text(d / "model.safetensors.index.json"))["weight_map"];
         Json map = Json::object();
         for (const auto& [name, file] : weights.items()) {
           if (name.ends_with(".weight")) map[name] = "model-00001-of-00002.safetensors";
         }
         fs::remove(d / "model.safetensors.index.json");
         write_text(d / "model.safetensors.index.json",
                    format_json({{"metadata", {{"total_size", 5}}}, {"weight_map", map}}));
       }},
      {"5.4", kQwenMixed, kFault, "a layer lost", "it stays uninitialized", "layers.5 | layers-missing",
       drop_below("model.language_model.layers.5.")},
  };
}

}  // namespace

std::vector<Planted> held_out_weights() {
  std::vector<Planted> all;
  for (const auto& part : {scales(), content(), files()}) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace twofour
