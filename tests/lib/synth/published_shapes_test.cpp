#include "lib/synth/shapes.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/error.h"
#include "formats/half.h"
#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/base/names/pattern.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/synth/auxiliary_files.h"
#include "lib/synth/plan.h"
#include "lib/synth/synth.h"
#include "lib/synth/weights.h"
#include "tests/support/scratch.h"

namespace published_shapes_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

struct Row {
  const char* shape;
  const char* dialect;
};
/// Every row that is no single format of an older shape.
std::vector<Row> published() {
  std::vector<Row> rows;
  for (const SynthShape& shape : synth_shape_table()) {
    for (const SynthPublication& p : shape.publications) {
      const std::string_view dialect = p.dialect;
      if (dialect != "modelopt" && dialect != "compressed-tensors") rows.push_back({shape.name, p.dialect});
    }
  }
  return rows;
}

/// Type and shape of every tensor, by name, of a model of true sizes and few layers and experts.
std::map<std::string, std::string> headers(const Row& row, int64_t layers) {
  SynthChoice choice{
      .shape = row.shape, .dialect = row.dialect, .layers = layers, .experts = {}, .vocab = 256};
  const int64_t least = synth_least_experts(row.shape);
  if (least > 0) choice.experts = least;
  const SynthFiles plan(make_synth_model(choice), ~uint64_t{0});
  std::map<std::string, std::string> tensors;
  for (const SynthShard& shard : plan.shards()) {
    const auto header =
        parse_safetensors_header(shard.name, std::string_view(shard.header).substr(8), shard.data_bytes);
    for (const TensorInfo& t : header.tensors) tensors[t.name] = describe(t.dtype, t.shape);
  }
  return tensors;
}

/// A small checkpoint, and all that its files say.
struct Small {
  explicit Small(const Row& row, int jobs = 1)
      : model(make_synth_model({.shape = row.shape,
                                .dialect = row.dialect,
                                .layers = {},
                                .experts = {},
                                .vocab = 64,
                                .small = true})) {
    SynthOptions options;
    options.shape = row.shape, options.dialect = row.dialect, options.small = true, options.vocab = 64;
    options.jobs = jobs;
    Progress progress;
    const SynthResult result = synth(scratch.path / "c", options, progress);
    CHECK(progress.done == result.bytes);
    for (const auto& entry : fs::directory_iterator(scratch.path / "c"))
      files[entry.path().filename().string()] = read_text(entry.path(), 1u << 30);
    const Checkpoint checkpoint = Checkpoint::open(scratch.path / "c");
    for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
      const TensorInfo& t = checkpoint.tensors()[i];
      std::vector<uint8_t> bytes(t.bytes());
      checkpoint.read(i, 0, bytes);
      tensors[t.name] = {t, std::move(bytes)};
    }
    config = parse_json("config.json", files.at("config.json"));
    if (files.count("hf_quant_config.json") != 0)
      hf_quant = parse_json("hf_quant_config.json", files.at("hf_quant_config.json"))["quantization"];
    const Json& at = config.contains("quantization_config") ? config : config[model.shape->text];
    quantization = at.at("quantization_config");
    for_each_module(model, [&](std::span<const SynthModule> group) {
      modules.insert(modules.end(), group.begin(), group.end());
    });
  }
  Scratch scratch;
  SynthModel model;
  std::map<std::string, std::string> files;
  std::map<std::string, std::pair<TensorInfo, std::vector<uint8_t>>> tensors;
  Json config, quantization, hf_quant = nullptr;
  std::vector<SynthModule> modules;
};

float number(const TensorInfo& t, const std::vector<uint8_t>& bytes, size_t i) {
  uint16_t half = 0;
  float wide = 0;
  switch (t.dtype) {
    case DType::kF32:
      std::memcpy(&wide, bytes.data() + 4 * i, 4);
      return wide;
    case DType::kBF16:
    case DType::kF16:
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      return t.dtype == DType::kF16 ? fp16_to_float(half) : bf16_to_float(half);
    case DType::kF8E4M3:
      return e4m3_to_float(bytes[i]);
    default:
      return e8m0_to_float(bytes[i]);
  }
}

/// A module's weights by its tensors' names, types and shapes alone, element by element.
std::vector<float> decode(const Small& c, const std::string& m, int64_t rows, int64_t k) {
  const auto has = [&](const std::string& s) { return c.tensors.count(m + s) != 0; };
  const auto nibble = [](const std::vector<uint8_t>& b, int64_t i) {
    return unsigned{b[static_cast<size_t>(i / 2)]} >> (i % 2 * 4) & 15u;
  };
  std::vector<float> out(static_cast<size_t>(rows * k));
  if (has(".qweight")) {
    const auto& codes = c.tensors.at(m + ".qweight").second;
    const auto& zeros = c.tensors.at(m + ".qzeros").second;
    const auto& [scales, values] = c.tensors.at(m + ".scales");
    const bool gptq = has(".g_idx");
    const int64_t order[] = {0, 4, 1, 5, 2, 6, 3, 7};  // where a column's bits are
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < k; ++i) {
        const int64_t g = i / 128, awq = r / 8 * 8 + order[r % 8];
        const unsigned q =
            gptq ? nibble(codes, (i / 8 * rows + r) * 8 + i % 8) : nibble(codes, i * rows + awq);
        const int z = static_cast<int>(nibble(zeros, g * rows + (gptq ? r : awq))) + (gptq ? 1 : 0);
        out[static_cast<size_t>(r * k + i)] = static_cast<float>(static_cast<int>(q) - z) *
                                              number(scales, values, static_cast<size_t>(g * rows + r));
      }
    }
    return out;
  }
  const char* suffix = has(".weight_packed") ? ".weight_packed" : has("_blocks") ? "_blocks" : ".weight";
  const auto& [code, codes] = c.tensors.at(m + suffix);
  std::string scale;
  for (const char* s : {"_scales", ".weight_scale_inv", ".weight_scale", ".scale"}) {
    if (has(s)) scale = m + s;
  }
  if (scale.empty()) scale = m.substr(0, m.rfind('.')) + ".weight_scale";
  const auto& [info, values] = c.tensors.at(scale);
  float global = 1;
  if (has(".weight_scale_2"))
    global = number(c.tensors.at(m + ".weight_scale_2").first, c.tensors.at(m + ".weight_scale_2").second, 0);
  if (has(".weight_global_scale"))
    global = 1 / number(c.tensors.at(m + ".weight_global_scale").first,
                        c.tensors.at(m + ".weight_global_scale").second, 0);
  int64_t scale_count = 1;
  for (const int64_t n : info.shape) scale_count *= n;
  const int64_t tall = info.shape.size() >= 2 && info.shape[0] != rows && suffix[0] == '.' ? 128 : 1;
  const int64_t high = scale_count == 1 ? rows : tall,
                across = std::max<int64_t>(1, scale_count / ((rows + high - 1) / high));
  const int64_t wide = across == 1 ? k : tall == 128 ? 128 : k / across;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k; ++i) {
      const int64_t at = r * k + i;
      const float s = number(info, values, static_cast<size_t>(r / high * across + i / wide)) * global;
      float q = 0;
      if (code.dtype == DType::kF8E4M3) {
        q = e4m3_to_float(codes[static_cast<size_t>(at)]);
      } else if (code.dtype == DType::kI32) {
        q = static_cast<float>(nibble(codes, at)) - 8;
      } else {
        q = e2m1_to_float(nibble(codes, at));
      }
      out[static_cast<size_t>(at)] = q * s;
    }
  }
  return out;
}

/// Root of the mean square of the difference, over that of the drawn weights.
double relative_error(const Small& c, const SynthModule& m) {
  const SynthWeights source(0, m.name());
  const int64_t rows = m.matrix.rows(), k = m.matrix.k;
  const std::vector<float> found = decode(c, m.name(), rows, k);
  double errors = 0, squares = 0;
  std::vector<float> drawn(static_cast<size_t>(k));
  for (int64_t r = 0; r < rows; ++r) {
    source.draw(r, 0, drawn);
    for (int64_t i = 0; i < k; ++i) {
      const double w = drawn[static_cast<size_t>(i)], d = w - found[static_cast<size_t>(r * k + i)];
      errors += d * d, squares += w * w;
    }
  }
  return std::sqrt(errors / squares);
}

double most_error(SynthEncoding encoding) {
  switch (encoding) {
    case SynthEncoding::kFp8:
    case SynthEncoding::kMxfp8:
      return 0.03;
    case SynthEncoding::kNvfp4:
    case SynthEncoding::kNvfp4FourOverSix:
      return 0.11;
    case SynthEncoding::kMxfp4:
      return 0.15;
    default:
      return 0.17;
  }
}

}  // namespace

TEST_CASE("the first header of each public model has the published names, types and shapes") {
  using Expected = std::map<std::string, std::string>;
  const auto check = [](const Row& row, int64_t layers, const Expected& expected,
                        const std::vector<std::string>& absent = {}) {
    CAPTURE(row.shape);
    const auto found = headers(row, layers);
    for (const auto& [name, type] : expected) {
      CAPTURE(name);
      REQUIRE(found.count(name) == 1);
      CHECK(found.at(name) == type);
    }
    for (const std::string& name : absent) CHECK_MESSAGE(found.count(name) == 0, name);
  };
  // DeepSeek-V4: the table of the draft's header, in the sizes of Pro.
  check({"deepseek-v4", "released"}, 4,
        {{"layers.0.attn.wq_a.weight", "F8_E4M3 [1536, 7168]"},
         {"layers.0.attn.wq_a.scale", "F8_E8M0 [12, 56]"},
         {"mtp.0.attn.wo_b.scale", "F8_E8M0 [56, 128]"},
         {"mtp.0.ffn.experts.3.w1.weight", "I8 [3072, 3584]"},
         {"mtp.0.ffn.experts.3.w1.scale", "F8_E8M0 [3072, 224]"},
         {"mtp.0.ffn.experts.3.w2.weight", "I8 [7168, 1536]"},
         {"layers.3.ffn.shared_experts.w2.scale", "F8_E8M0 [56, 24]"},
         {"mtp.0.e_proj.scale", "F8_E8M0 [56, 56]"},
         {"layers.0.ffn.gate.tid2eid", "I64 [256, 6]"},
         {"layers.3.ffn.gate.bias", "F32 [6]"},
         {"mtp.0.ffn.gate.bias", "F32 [6]"},
         {"layers.0.ffn.gate.weight", "BF16 [6, 7168]"},
         {"layers.0.hc_attn_fn", "F32 [24, 28672]"},
         {"mtp.0.hc_head_fn", "F32 [4, 28672]"},
         {"layers.0.attn.attn_sink", "F32 [128]"},
         {"layers.2.attn.indexer.wq_b.scale", "F8_E8M0 [64, 12]"},
         {"layers.2.attn.indexer.weights_proj.weight", "BF16 [64, 7168]"}},
        {"layers.0.ffn.gate.bias", "layers.3.ffn.gate.tid2eid", "mtp.0.ffn.gate.tid2eid",
         "mtp.0.embed.weight", "mtp.0.head.weight", "mtp.0.attn.compressor.wkv.weight"});
  check({"deepseek-v3", "released"}, 4,
        {{"model.layers.3.mlp.experts.0.down_proj.weight_scale_inv", "F32 [56, 16]"},
         {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv", "F32 [5, 56]"},
         {"model.layers.4.eh_proj.weight", "BF16 [7168, 14336]"},
         {"model.layers.4.shared_head.head.weight", "BF16 [256, 7168]"},
         {"model.layers.4.mlp.gate.e_score_correction_bias", "F32 [8]"}},
        {"model.layers.3.mlp.gate.weight_scale_inv", "lm_head.weight_scale_inv"});
  check({"kimi-k2-thinking", "released"}, 2,
        {{"model.layers.1.mlp.experts.0.gate_proj.weight_packed", "I32 [2048, 896]"},
         {"model.layers.1.mlp.experts.0.gate_proj.weight_scale", "BF16 [2048, 224]"},
         {"model.layers.1.mlp.experts.0.gate_proj.weight_shape", "I64 [2]"},
         {"model.layers.0.mlp.gate_proj.weight", "BF16 [18432, 7168]"}});
  check({"kimi-k3", "released"}, 5,
        {{"language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_packed", "U8 [3072, 1792]"},
         {"language_model.model.layers.1.block_sparse_moe.experts.0.w2.weight_scale", "U8 [3584, 96]"},
         {"language_model.model.layers.0.self_attn.q_conv1d.weight", "F32 [12288, 1, 4]"},
         {"language_model.model.layers.3.self_attn.q_b_proj.weight", "BF16 [18432, 1536]"},
         {"language_model.model.layers.3.self_attn.kv_b_proj.weight", "BF16 [24576, 512]"},
         {"language_model.model.layers.0.mlp.down_proj.weight", "BF16 [7168, 33792]"},
         {"language_model.model.layers.1.block_sparse_moe.gate.e_score_correction_bias", "F32 [16]"}});
  check({"kimi-k3", "redhat"}, 2,
        {{"language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_scale", "F8_E4M3 [3072, 224]"},
         {"language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_global_scale", "F32 [1]"},
         {"language_model.model.layers.1.block_sparse_moe.experts.0.w1.input_global_scale", "F32 [1]"}});
  check({"glm-5.2", "nvidia"}, 7,
        {{"model.layers.3.mlp.experts.0.gate_proj.weight", "U8 [2048, 3072]"},
         {"model.layers.3.mlp.experts.0.gate_proj.input_scale", "F32 []"},
         {"model.layers.6.self_attn.indexer.wk.weight", "BF16 [128, 6144]"},
         {"model.layers.7.mlp.experts.0.gate_proj.weight", "BF16 [2048, 6144]"}},
        {"model.layers.3.self_attn.indexer.wk.weight", "model.layers.7.embed_tokens.weight"});
  check({"glm-5.2", "nvidia-mixed"}, 4,
        {{"model.layers.3.self_attn.kv_a_proj_with_mqa.weight_scale_inv", "F32 [5, 48]"},
         {"model.layers.3.mlp.shared_experts.down_proj.weight", "F8_E4M3 [6144, 2048]"}});
  check({"glm-5.2", "quark"}, 4,
        {{"model.layers.3.mlp.experts.0.up_proj.input_scale_2", "F32 []"},
         {"model.layers.3.mlp.shared_experts.up_proj.weight_scale_2", "F32 []"},
         {"model.layers.4.mlp.experts.0.up_proj.weight", "BF16 [2048, 6144]"}},
        {"model.layers.3.mlp.experts.0.up_proj.input_scale"});
  check({"glm-5.3", "w4a8"}, 4,
        {{"model.layers.3.mlp.experts.0.up_proj.weight_packed", "I32 [2048, 768]"},
         {"model.layers.3.mlp.experts.0.up_proj.weight_scale", "BF16 [2048, 48]"},
         {"model.layers.3.self_attn.o_proj.weight_scale", "BF16 [48, 128]"}});
  check({"minimax-m3", "nvidia"}, 4,
        {{"language_model.model.layers.3.block_sparse_moe.experts.0.w2.weight", "U8 [6144, 1536]"},
         {"language_model.model.layers.3.self_attn.index_q_proj.weight_scale_inv", "U8 [512, 192]"},
         {"language_model.model.layers.0.mlp.gate_proj.weight", "F8_E4M3 [12288, 6144]"},
         {"language_model.model.layers.3.block_sparse_moe.gate.weight", "BF16 [4, 6144]"}});
  check({"minimax-m3", "released"}, 4,
        {{"language_model.model.layers.3.block_sparse_moe.experts.0.w2.weight_scale_inv", "U8 [6144, 96]"}});
  check({"qwen3.6-35b-a3b", "nvidia"}, 4,
        {{"model.language_model.layers.0.mlp.experts.0.gate_proj.weight_scale_2", "F32 []"},
         {"model.language_model.layers.0.linear_attn.in_proj_qkv.weight", "F8_E4M3 [8192, 2048]"},
         {"model.language_model.layers.0.linear_attn.in_proj_qkv.weight_scale", "F32 []"},
         {"model.language_model.layers.0.linear_attn.in_proj_qkv.input_scale", "F32 []"},
         {"model.language_model.layers.0.linear_attn.in_proj_b.weight", "BF16 [32, 2048]"},
         {"model.language_model.layers.3.self_attn.k_proj.k_scale", "F32 []"},
         {"model.language_model.layers.3.self_attn.v_proj.v_scale", "F32 []"},
         {"lm_head.weight", "U8 [256, 1024]"},
         {"mtp.layers.0.self_attn.q_proj.weight", "BF16 [8192, 2048]"},
         {"model.visual.patch_embed.proj.weight", "BF16 [1152, 3, 2, 16, 16]"}},
        {"model.language_model.layers.0.mlp.experts.0.gate_proj.input_scale",
         "mtp.layers.0.self_attn.k_proj.k_scale"});
  check({"qwen3.8-flash-next", "nvidia"}, 4,
        {{"mtp.layers.0.mlp.experts.0.gate_proj.weight_scale_inv", "BF16 [5, 20]"},
         {"mtp.layers.0.mlp.experts.0.down_proj.weight_scale_inv", "BF16 [20, 5]"},
         {"model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_127.weight",
          "F8_E4M3 [2500000, 160]"},
         {"model.language_model.layers.1.ple.ple_embedding.ngram_embedding.weight_scale", "BF16 []"},
         {"model.language_model.layers.0.mlp.experts.0.gate_proj.input_scale", "F32 []"}},
        {"model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_127.weight_scale"});
  check({"qwen3.8-2.4t-a95b", "llm-compressor"}, 4,
        {{"model.layers.0.linear_attn.in_proj_b.weight_scale", "BF16 [1, 64]"},
         {"model.layers.3.self_attn.q_proj.weight", "F8_E4M3 [32768, 8192]"},
         {"model.layers.0.mlp.shared_expert.up_proj.weight_packed", "U8 [2048, 4096]"},
         {"model.layers.0.mlp.gate.weight", "BF16 [10, 8192]"},
         {"mtp.layers.0.mlp.experts.0.up_proj.weight", "BF16 [2048, 8192]"}});
  check({"qwen3.8-27b", "unsloth"}, 8,
        {{"model.language_model.layers.7.mlp.up_proj.weight_scale", "BF16 [17408, 1]"},
         {"model.language_model.layers.6.mlp.up_proj.weight_scale", "F8_E4M3 [17408, 320]"},
         {"lm_head.weight", "F8_E4M3 [256, 5120]"}});
  check({"nemotron-3-super", "nvidia"}, 8,
        {{"backbone.layers.0.mixer.in_proj.weight", "F8_E4M3 [18560, 4096]"},
         {"backbone.layers.1.mixer.experts.0.up_proj.weight", "U8 [2688, 512]"},
         {"backbone.layers.1.mixer.fc1_latent_proj.weight", "BF16 [1024, 4096]"},
         {"backbone.layers.1.mixer.shared_experts.up_proj.weight_scale", "F32 []"},
         {"backbone.layers.7.mixer.k_proj.k_scale", "F32 []"},
         {"mtp.layers.0.mixer.q_proj.weight", "BF16 [4096, 4096]"},
         {"mtp.layers.1.mixer.experts.0.up_proj.weight", "BF16 [2688, 1024]"}},
        {"mtp.layers.0.mixer.gate.weight", "mtp.layers.1.mixer.q_proj.weight"});
  check({"nemotron-3.5-lightning", "nvidia"}, 6,
        {{"backbone.layers.0.mixer.in_proj.weight", "F8_E4M3 [10304, 2688]"},
         {"backbone.layers.1.mixer.experts.0.down_proj.weight", "U8 [2688, 928]"}},
        {"backbone.layers.1.mixer.experts.0.down_proj.input_scale"});
  check({"ling-3.0-flash", "released"}, 6,
        {{"model.layers.2.mlp.experts.0.gate_proj.weight", "U8 [768, 1280]"},
         {"model.layers.2.mlp.experts.0.gate_proj.weight_scale_inv", "U8 [768, 80]"},
         {"model.layers.0.attention.q_proj.weight_scale_inv", "F32 [32, 20]"}});
  check({"gpt-oss", "released"}, 1,
        {{"model.layers.0.mlp.experts.gate_up_proj_blocks", "U8 [4, 5760, 90, 16]"},
         {"model.layers.0.mlp.experts.gate_up_proj_scales", "U8 [4, 5760, 90]"},
         {"model.layers.0.mlp.experts.gate_up_proj_bias", "BF16 [4, 5760]"}});
  check({"llama", "awq"}, 1,
        {{"model.layers.0.self_attn.k_proj.qweight", "I32 [4096, 128]"},
         {"model.layers.0.self_attn.k_proj.qzeros", "I32 [32, 128]"},
         {"model.layers.0.self_attn.k_proj.scales", "F16 [32, 1024]"},
         {"lm_head.weight", "F16 [256, 4096]"}});
  check({"llama", "gptq"}, 1,
        {{"model.layers.0.self_attn.k_proj.qweight", "I32 [512, 1024]"},
         {"model.layers.0.self_attn.k_proj.g_idx", "I32 [4096]"}});
}

TEST_CASE("as many modules are quantized as the published configs list") {
  const auto keys = [](const char* shape) {
    std::map<std::string, int64_t> counts;
    const SynthModel model = make_synth_model({.shape = shape, .dialect = {}, .layers = {}, .experts = {}});
    for (const auto& [name, text] : synth_auxiliary_files(model)) {
      if (name != "hf_quant_config.json") continue;
      const Json file = parse_json(name, text);
      for (const auto& [key, entry] : file["quantization"]["quantized_layers"].items())
        ++counts[entry["quant_algo"].get<std::string>()];
    }
    return counts;
  };
  using Counts = std::map<std::string, int64_t>;
  CHECK((keys("nemotron-3.5-lightning") == Counts{{"FP8", 46}, {"W4A16_NVFP4", 5935}}));
  CHECK((keys("minimax-m3") == Counts{{"MXFP8", 534}, {"NVFP4", 21888}}));
  CHECK((keys("qwen3.6-35b-a3b") == Counts{{"FP8", 130}, {"W4A16_NVFP4", 161}}));
}

TEST_CASE("a small checkpoint holds the drawn weights in every format") {
  for (const Row& row : published()) {
    CAPTURE(row.shape);
    CAPTURE(row.dialect);
    const Small c(row);
    size_t bytes = 0, quantized = 0;
    for (const auto& [name, text] : c.files) bytes += text.size();
    CHECK(bytes < 10'000'000);
    std::set<std::string> seen;
    for (const SynthModule& m : c.modules) {
      if (m.format == nullptr) continue;
      ++quantized;
      // The first of experts that are alike.
      if (m.name().find(".experts.") != std::string::npos &&
          m.name().find(".experts.0.") == std::string::npos)
        continue;
      CAPTURE(m.name());
      CHECK(relative_error(c, m) < most_error(m.format->encoding));
    }
    CHECK(quantized >= 4);
  }
}

TEST_CASE("ModelOpt's configs name every quantized module and no other") {
  for (const Row& row : published()) {
    const Small c(row);
    if (!c.quantization.contains("quantized_layers")) continue;
    CAPTURE(row.shape);
    REQUIRE(!c.hf_quant.is_null());
    for (const Json* file : std::initializer_list<const Json*>{&c.quantization, &c.hf_quant}) {
      const Json& layers = file->at("quantized_layers");
      CHECK(file->at("quant_algo") == Json("MIXED_PRECISION"));
      std::set<std::string> used;
      for (const SynthModule& m : c.modules) {
        std::string key = m.name();
        while (!key.empty() && !layers.contains(key))
          key = key.find('.') == key.npos ? "" : key.substr(0, key.rfind('.'));
        CHECK_MESSAGE((m.format != nullptr) == !key.empty(), m.name());
        if (m.format == nullptr) continue;
        used.insert(key);
        // Flash-Next's two files call one format by two names.
        const std::string name = layers.at(key)["quant_algo"].get<std::string>();
        CHECK(name == (file == &c.quantization && std::string_view(m.format->algorithm) == "FP8_BLOCK_SCALES"
                           ? "FP8_PB_WO"
                           : m.format->algorithm));
      }
      CHECK(used.size() == layers.size());
    }
    const char* list = c.quantization.contains("ignore") ? "ignore" : "exclude_modules";
    if (c.hf_quant.contains("exclude_modules")) CHECK(c.quantization[list] == c.hf_quant["exclude_modules"]);
  }
}

TEST_CASE("groups of compressed-tensors give each linear its format, the first that matches") {
  for (const Row& row : published()) {
    const Small c(row);
    if (c.quantization["quant_method"] != Json("compressed-tensors")) continue;
    CAPTURE(row.shape);
    CAPTURE(row.dialect);
    const auto ignore = parse_patterns(c.quantization["ignore"].get<std::vector<std::string>>());
    // As published, Kimi-K3 ignores too little, and Kimi-K2 leaves routers to loaders.
    const auto forgotten =
        parse_patterns({"*.gate", "*_res_proj", "*.routed_expert_*_proj", "*.conv1d", "*.patch_embed.proj"});
    for (const SynthModule& m : c.modules) {
      if (!m.is_linear() || (m.format == nullptr && any_matches(forgotten, m.name()))) continue;
      std::string found = "none";
      if (!any_matches(ignore, m.name())) {
        for (const auto& [key, group] : c.quantization["config_groups"].items()) {
          for (const Json& target : group["targets"]) {
            const std::string text = target.get<std::string>();
            if (found == "none" && (text == "Linear" || NamePattern(text).matches(m.name())))
              found = group.value("format", c.quantization["format"].get<std::string>());
          }
        }
      }
      std::string expected = "none";
      if (m.format != nullptr) {
        using enum SynthEncoding;
        const SynthEncoding e = m.format->encoding;
        expected = e == kNvfp4   ? "nvfp4-pack-quantized"
                   : e == kMxfp4 ? "mxfp4-pack-quantized"
                   : e == kInt4  ? "pack-quantized"
                                 : "float-quantized";
      }
      CHECK_MESSAGE(found == expected, m.name());
    }
  }
}

TEST_CASE("gate and up share a global scale, parts of a table one scale") {
  const Small c({"qwen3.8-flash-next", "nvidia"});
  const std::string expert = "model.language_model.layers.0.mlp.experts.1.";
  CHECK(c.tensors.at(expert + "gate_proj.weight_scale_2").second ==
        c.tensors.at(expert + "up_proj.weight_scale_2").second);
  CHECK(c.tensors.at(expert + "gate_proj.weight_scale_2").second !=
        c.tensors.at(expert + "down_proj.weight_scale_2").second);
}

TEST_CASE("rows of expert ids are distinct and of experts that there are") {
  const Small c({"deepseek-v4", "released"});
  const auto& [info, bytes] = c.tensors.at("layers.1.ffn.gate.tid2eid");
  const int64_t columns = info.shape[1];
  std::vector<int64_t> ids(bytes.size() / 8);
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  std::set<int64_t> all;
  for (size_t row = 0; row < ids.size(); row += static_cast<size_t>(columns)) {
    const std::set<int64_t> of(ids.begin() + static_cast<int64_t>(row),
                               ids.begin() + static_cast<int64_t>(row) + columns);
    CHECK(static_cast<int64_t>(of.size()) == columns);
    all.insert(of.begin(), of.end());
  }
  CHECK((*all.begin() == 0 && *all.rbegin() == c.model.experts - 1));
}

TEST_CASE("public models have the same bytes on any machine and for any number of jobs") {
  for (const Row& row : {Row{"qwen3.6-35b-a3b", "nvidia"},
                         {"llama", "awq"},
                         {"glm-5.3", "w4a8"},
                         {"nemotron-3-ultra", "nvidia"}}) {
    CAPTURE(row.shape);
    const Small one(row), five(row, 5);
    CHECK((one.files == five.files));
  }
  const auto hash = [](const Row& row) {
    std::string all;
    for (const auto& [name, text] : Small(row).files) all += text;
    return hash_text(all).hex();
  };
  CHECK(hash({"minimax-m3", "released"}) == "a357d9d9568608ea16d6c05103aacee9");
  CHECK(hash({"glm-5.3", "w4a8"}) == "8ef4537297bdd9f9087f18bbb7472a4f");
  CHECK(hash({"llama", "awq"}) == "2fa533d3a50d19602f90157f052993e2");
}

TEST_CASE("a dialect that a shape does not have is refused with those that it has") {
  CHECK_THROWS_WITH_AS(
      make_synth_model({.shape = "minimax-m3", .dialect = "gptq", .layers = {}, .experts = {}}),
      doctest::Contains("expected a dialect of nvidia, released, found 'gptq'"), Error);
  CHECK_THROWS_WITH_AS(
      make_synth_model({.shape = "deepseek-v4", .dialect = "awq", .layers = {}, .experts = {}}),
      doctest::Contains("modelopt, compressed-tensors, released"), Error);
  CHECK_THROWS_WITH_AS(
      make_synth_model({.shape = "qwen3.8-flash-next", .dialect = {}, .layers = 1, .experts = {}}),
      doctest::Contains("layers: expected 2 to"), Error);
}

}  // namespace published_shapes_test
