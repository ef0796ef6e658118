#include <array>
#include <cstring>
#include <map>

#include "lib/base/io/file.h"
#include "lib/synth/synth.h"
#include "tests/support/conversion.h"
#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

constexpr Clause kClauses[] = {
    {"1.1", "hidden size"},
    {"1.2", "intermediate sizes"},
    {"1.3", "vocabulary"},
    {"1.4", "layers"},
    {"1.5", "heads"},
    {"1.6", "experts"},
    {"1.7", "top-k"},
    {"1.8", "first dense layers"},
    {"1.9", "MTP layers"},
    {"1.10", "biases"},
    {"1.11", "router"},
    {"1.12", "norms"},
    {"1.13", "embeddings and head"},
    {"1.14", "numbers of another type"},
    {"1.15", "tensors that a family cannot have"},
    {"1.16", "tensors that a family must have"},
    {"1.17", "unknown families"},
    {"1.18", "experts of a whole layer"},
    {"1.19", "indexes, compressors, drafts, tables"},
    {"1.20", "towers"},
    {"1.21", "names"},
    {"1.22", "settings"},
    {"2.1", "method and algorithm"},
    {"2.2", "format, bits, type, symmetry, strategy"},
    {"2.3", "group size"},
    {"2.4", "targets"},
    {"2.5", "ignore and exclude lists"},
    {"2.6", "KV scheme"},
    {"2.7", "input activations"},
    {"2.8", "quantized_layers and config_groups"},
    {"2.9", "promised and absent"},
    {"2.10", "stored and not promised"},
    {"2.11", "what loaders look up"},
    {"2.12", "both files"},
    {"2.13", "what changes the meaning of codes"},
    {"3.1", "a matrix far outside"},
    {"3.2", "reciprocals"},
    {"3.3", "scales of one"},
    {"3.4", "amax or constants in place of scales"},
    {"3.5", "one scale copied over all"},
    {"3.6", "input scales"},
    {"3.7", "layers without input scales"},
    {"3.8", "KV scales"},
    {"4.1", "identical tensors"},
    {"4.2", "codes of another format"},
    {"4.3", "halves and stripes of zeros"},
    {"4.4", "repeated rows"},
    {"4.5", "noise"},
    {"4.6", "order of block scales"},
    {"4.7", "order of codes"},
    {"4.8", "beside another checkpoint"},
    {"5.1", "missing files"},
    {"5.2", "files of another kind"},
    {"5.3", "unfinished downloads"},
    {"5.4", "one cause, many consequences"},
    {"6.1", "tokens"},
    {"6.2", "chat templates"},
    {"6.3", "generation"},
};

SynthOptions shape(const char* name, int64_t layers, const char* dialect = "", bool small = true) {
  SynthOptions options;
  options.shape = name;
  options.dialect = dialect;
  options.layers = layers;
  options.small = small;
  return options;
}

Save synthesize(SynthOptions options, uint64_t shard, int64_t vocab = 320) {
  const Scratch scratch;
  options.vocab = vocab;
  options.max_shard_size = shard;
  Progress progress;
  synth(scratch / "checkpoint", options, progress);
  return load_save(scratch / "checkpoint");
}

/// FP8 scales of a KV cache, of values of about 0.1 to 100.
void add_kv_scales(Save& s, bool modelopt) {
  std::mt19937 random(7);
  for (int layer = 0; layer < 3; ++layer) {
    for (const char* kind : {"k", "v"}) {
      const std::string block = "model.layers." + std::to_string(layer) + ".self_attn.";
      const float scale = 0.02f + 0.04f * static_cast<float>(random() % 1000) / 1000;
      if (modelopt) {
        spoil::add_f32(block + kind + "_proj." + kind + "_scale", scale)(s, random);
      } else {
        uint32_t bits = 0;
        std::memcpy(&bits, &scale, sizeof(bits));
        s.add({block + kind + "_scale",
               DType::kBF16,
               {1},
               {static_cast<uint8_t>(bits >> 16), static_cast<uint8_t>(bits >> 24)}});
      }
    }
  }
  if (modelopt) {
    spoil::set_hf("quantization.kv_cache_quant_algo", "FP8")(s, random);
    spoil::set_key("quantization_config.kv_cache_scheme",
                   {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}})(s, random);
  } else {
    spoil::set_key("quantization_config.kv_cache_scheme", {{"dynamic", false},
                                                           {"num_bits", 8},
                                                           {"observer", "minmax"},
                                                           {"strategy", "tensor"},
                                                           {"symmetric", true},
                                                           {"type", "float"}})(s, random);
  }
}

Save artifact(const char* layout) {
  const Scratch scratch;
  write_save(base_checkpoint(Base::kTiny), scratch / "source");
  OneRule recipe;
  recipe.to = layout;
  convert(scratch / "source", scratch / "artifact", recipe);
  return {.shards = {}, .files = read_tree(scratch / "artifact")};
}

Save make_base(Base base) {
  SynthOptions experts = shape("qwen3-moe", 4);
  experts.experts = 16;
  std::mt19937 random(1);
  Save s;
  switch (base) {
    case Base::kTiny:
      return synthesize(shape("tiny", 3, "modelopt", false), 100'000, 96);
    case Base::kMoe:
      return synthesize(experts, 2'000'000);
    case Base::kMixtral:
      return synthesize(shape("mixtral", 3, "compressed-tensors"), 2'000'000);
    case Base::kLlama:
      return synthesize(shape("llama", 3), 500'000);
    case Base::kLlamaCt:
      return synthesize(shape("llama", 3, "compressed-tensors"), 5'000'000);
    case Base::kLlamaKv:
      s = base_checkpoint(Base::kLlama);
      add_kv_scales(s, true);
      return s;
    case Base::kLlamaKvCt:
      s = base_checkpoint(Base::kLlamaCt);
      add_kv_scales(s, false);
      return s;
    case Base::kDeepSeek:
      return synthesize(shape("deepseek-v3", 5), 2'000'000);
    case Base::kGptOss:
      return synthesize(shape("gpt-oss", 3), 5'000'000);
    case Base::kQwenMixed:
      return synthesize(shape("qwen3.6-35b-a3b", 8), 5'000'000);
    case Base::kQwenRow:
      return synthesize(shape("qwen3.8-27b", 4), 5'000'000);
    case Base::kNemotron:
      return synthesize(shape("nemotron-3-super", 6), 5'000'000);
    case Base::kInt4:
      return synthesize(shape("kimi-k2-thinking", 3), 5'000'000);
    case Base::kGlm:
      return synthesize(shape("glm-5.2", 4), 5'000'000, 640);
    case Base::kV4:
      return synthesize(shape("deepseek-v4", 5, "released"), 5'000'000);
    case Base::kM3:
      return synthesize(shape("minimax-m3", 5), 5'000'000);
    case Base::kK3:
      return synthesize(shape("kimi-k3", 5), 5'000'000);
    case Base::kFlash:
      return synthesize(shape("qwen3.8-flash-next", 4), 5'000'000);
    case Base::kUnknown:
      s = base_checkpoint(Base::kLlama);
      spoil::set_key("model_type", "anthill")(s, random);
      spoil::set_key("architectures", Json::array({"AnthillForCausalLM"}))(s, random);
      return s;
    case Base::kV7:
      return artifact("v7");
    case Base::kG8:
      return artifact("g8");
  }
  throw std::runtime_error("no such base");
}

}  // namespace

std::span<const Clause> planted_clauses() { return kClauses; }

const char* base_name(Base base) {
  constexpr std::array names = {
      "tiny",        "qwen3_moe",  "mixtral",       "llama",     "llama-ct",   "llama-kv",     "llama-kv-ct",
      "deepseek",    "gpt_oss",    "qwen3_5-mixed", "qwen3_5",   "nemotron_h", "kimi_k2-int4", "glm_moe_dsa",
      "deepseek_v4", "minimax_m3", "kimi_k3",       "qwen4_exp", "unknown",    "v7",           "g8"};
  static_assert(names.size() == static_cast<size_t>(kLastBase) + 1);
  return names.at(static_cast<size_t>(base));
}

const Save& base_checkpoint(Base base) {
  static std::map<Base, Save> made;
  const auto found = made.find(base);
  if (found != made.end()) return found->second;
  Save save = make_base(base);  // may make another one first
  return made.emplace(base, std::move(save)).first->second;
}

void write_planted(const Save& save, const std::filesystem::path& directory) {
  if (!save.shards.empty()) return write_save(save, directory);
  std::filesystem::create_directories(directory);
  for (const auto& [name, text] : save.files) write_text(directory / name, text);
}

std::vector<Planted> planted_changes() {
  std::vector<Planted> all;
  for (const auto& part : {planted_sizes(), planted_tensors(), planted_formats(), planted_siblings(),
                           planted_content(), planted_files(), planted_parts(), planted_tokens()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<Planted> held_out_changes() {
  std::vector<Planted> all;
  for (const auto& part : {held_out_config(), held_out_weights()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace twofour
