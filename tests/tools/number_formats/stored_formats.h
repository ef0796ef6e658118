#pragma once
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "lib/base/io/file.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"
#include "tests/support/weights/stored_int4.h"

/// A small model in every format, and the commands that read it.
namespace stored_formats {

using namespace twofour;

using Words = std::vector<std::string>;

inline constexpr const char* kLinear = "model.layers.0.mlp.gate_proj";

/// A small model in every format that is read, as directories of `files`.
class Formats {
 public:
  explicit Formats(const std::string& family = "llama") : files(family) {
    files.write_calibration("tokens.safetensors");
    const std::string model = files.path("model");
    const std::map<std::string, Words> made = {
        {"nvfp4-modelopt", {"quantize", "--dialect", "modelopt"}},
        {"nvfp4-compressed-tensors", {"quantize", "--dialect", "compressed-tensors"}},
        {"fp8-tensor", {"convert", "--to", "fp8", "--granularity", "tensor", "--dialect", "modelopt"}},
        {"fp8-row", {"convert", "--to", "fp8", "--granularity", "row"}},
        {"fp8-block", {"convert", "--to", "fp8", "--dialect", "deepseek", "--odd-blocks", "write"}},
        {"fp8-block-32", {"convert", "--to", "fp8", "--block", "32x32", "--odd-blocks", "write"}},
        {"mxfp8", {"convert", "--to", "mxfp8"}},
        {"mxfp6", {"convert", "--to", "mxfp6"}},
        {"mxfp4-modelopt", {"convert", "--to", "mxfp4", "--dialect", "modelopt"}},
        {"mxfp4-compressed-tensors", {"convert", "--to", "mxfp4", "--dialect", "compressed-tensors"}},
    };
    for (const auto& [name, words] : made) {
      Words command{words[0], model, files.path(name), "-q"};
      command.insert(command.end(), words.begin() + 1, words.end());
      const Outcome outcome = run_program(command);
      if (family != "llama" && outcome.code != 0) continue;  // not every format suits every family
      REQUIRE_MESSAGE(outcome.code == 0, name << ": " << outcome.err);
      names.push_back(name);
    }
    if (family == "llama") add_nvfp4_of_32();
    add_int4("gptq", "gptq", R"(, "sym": true, "checkpoint_format": "gptq")",
             [](const StoredInt4& m, Tensors& to, const std::string& name) { m.add_gptq(to, name, 1); });
    add_int4("awq", "awq", R"(, "zero_point": true, "version": "gemm")",
             [](const StoredInt4& m, Tensors& to, const std::string& name) { m.add_awq(to, name); });
    add_int4(
        "int4-compressed-tensors", "compressed-tensors",
        R"(, "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights":
                {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 16}}},
                "ignore": ["lm_head"])",
        [](const StoredInt4& m, Tensors& to, const std::string& name) { m.add_packed(to, name, false); });
  }

  /// Adds a model in NVFP4 with block scales for 32 weights, which twofour reads and does not write.
  void add_nvfp4_of_32() {
    const auto edit = [](Tensors& tensors) {
      Tensors all;
      for (const TensorData& t : tensors) {
        const bool is_linear = t.shape.size() == 2 && t.name.find("_proj.weight") != t.name.npos;
        if (!is_linear || t.shape[1] % 32 != 0) {
          all.push_back(t);
          continue;
        }
        const int64_t n = t.shape[0], k = t.shape[1];
        std::mt19937 random(static_cast<unsigned>(all.size()));
        std::vector<uint8_t> codes(static_cast<size_t>(n * k / 2)), scales(static_cast<size_t>(n * k / 32));
        for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
        for (uint8_t& scale : scales) scale = static_cast<uint8_t>(0x30 + random() % 8);
        const float global = 0.02f;
        std::vector<uint8_t> bytes(sizeof(global));
        std::memcpy(bytes.data(), &global, sizeof(global));
        all.push_back({t.name, DType::kU8, {n, k / 2}, codes});
        all.push_back({t.name + "_scale", DType::kF8E4M3, {n, k / 32}, scales});
        all.push_back({t.name + "_scale_2", DType::kF32, {}, bytes});
      }
      tensors = std::move(all);
    };
    Json config = files.golden.config;
    config["quantization_config"] = {{"quant_method", "modelopt"},
                                     {"quant_algo", "W4A16_NVFP4"},
                                     {"group_size", 32},
                                     {"ignore", {"lm_head"}}};
    write_decoder_checkpoint(files.golden, files.scratch / "nvfp4-of-32", config.dump(), edit);
    std::filesystem::copy(files.scratch / "model" / "tokenizer.json", files.scratch / "nvfp4-of-32");
    names.push_back("nvfp4-of-32");
  }

  /// A copy of a directory with other tensors in it.
  std::string changed(const std::string& format, const std::function<void(Tensors&)>& change,
                      const std::map<std::string, std::string>& metadata = {{"format", "pt"}}) {
    const std::string to = files.path("changed-" + std::to_string(++count_));
    std::filesystem::copy(files.path(format), to, std::filesystem::copy_options::recursive);
    const Checkpoint c = Checkpoint::open(files.path(format));
    Tensors tensors;
    for (size_t i = 0; i < c.tensors().size(); ++i) {
      const TensorInfo& t = c.tensors()[i];
      tensors.push_back({t.name, t.dtype, t.shape, std::vector<uint8_t>(t.bytes())});
      c.read(i, 0, tensors.back().bytes);
    }
    change(tensors);
    for (const char* other : {"twofour.json", "model.safetensors.index.json"})
      std::filesystem::remove(std::filesystem::path(to) / other);
    for (const Shard& shard : c.shards()) std::filesystem::remove(std::filesystem::path(to) / shard.name);
    write_safetensors(std::filesystem::path(to) / "model.safetensors", tensors, metadata);
    return to;
  }

  /// A copy of a directory with another config.json.
  std::string configured(const std::string& format, const std::function<void(Json&)>& change) {
    const std::string to = files.path("changed-" + std::to_string(++count_));
    std::filesystem::copy(files.path(format), to, std::filesystem::copy_options::recursive);
    std::filesystem::remove(std::filesystem::path(to) / "twofour.json");
    const std::filesystem::path config = std::filesystem::path(to) / "config.json";
    Json json = parse_json("config", read_text(config));
    change(json);
    write_text(config, json.dump());
    return to;
  }

  /// Every command that reads numbers of a source, by name.
  std::vector<std::pair<std::string, Words>> commands(const std::string& source) {
    const std::string out = files.path("out-" + std::to_string(++count_)),
                      tokens = files.path("tokens.safetensors");
    return {
        {"convert --to bf16", {"convert", source, out, "--to", "bf16"}},
        {"convert --to nvfp4", {"convert", source, out, "--to", "nvfp4"}},
        {"convert --to fp8", {"convert", source, out, "--to", "fp8"}},
        {"convert --to v7", {"convert", source, out, "--to", "v7"}},
        {"convert --to g8", {"convert", source, out, "--to", "g8"}},
        {"prune", {"prune", source, out}},
        {"quantize", {"quantize", source, out}},
        {"plan", {"plan", source, out, "--to", "bf16", "-o", out + ".plan"}},
        {"compress", {"compress", source, out, "--to", "nvfp4", "--tokens", tokens}},
        {"stats collect", {"stats", "collect", source, "--tokens", tokens, "-o", out + ".stats"}},
        {"eval", {"eval", source, "--tokens", tokens, "--context", "64"}},
        {"generate", {"generate", source, "--prompt", "abc", "--max-tokens", "2"}},
        {"inspect --values", {"inspect", source, "--values", kLinear}},
        {"diff", {"diff", source, source}},
    };
  }

  DecoderFiles files;
  Words names;

 private:
  void add_int4(const std::string& name, const std::string& method, const std::string& more,
                const std::function<void(const StoredInt4&, Tensors&, const std::string&)>& add) {
    const auto edit = [&](Tensors& tensors) {
      Tensors all;
      for (const TensorData& t : tensors) {
        const bool is_linear = t.shape.size() == 2 && t.name.find("_proj.weight") != t.name.npos;
        if (!is_linear) {
          all.push_back(t);
          continue;
        }
        StoredInt4 m(t.shape[0], t.shape[1], 16, DType::kF16, static_cast<unsigned>(all.size()));
        m.make_symmetric();
        add(m, all, t.name.substr(0, t.name.size() - 7));
      }
      tensors = std::move(all);
    };
    Json config = files.golden.config;
    config["quantization_config"] =
        parse_json("config", int4_config(method, 16, more))["quantization_config"];
    write_decoder_checkpoint(files.golden, files.scratch / name, config.dump(), edit);
    std::filesystem::copy(files.scratch / "model" / "tokenizer.json", files.scratch / name);
    names.push_back(name);
  }

  int count_ = 0;
};

/// Whether a command takes a source in that format at all.
inline bool takes(const std::string& command, const std::string& format) {
  const bool is_nvfp4 = format.starts_with("nvfp4") && format != "nvfp4-of-32";
  if (command == "quantize") return !is_nvfp4;
  return is_nvfp4 || (command != "prune" && command != "convert --to nvfp4");
}

inline TensorData tensor_named(const std::string& name) {
  return {name, DType::kBF16, {16}, std::vector<uint8_t>(32, 0x3F)};
}

}  // namespace stored_formats
