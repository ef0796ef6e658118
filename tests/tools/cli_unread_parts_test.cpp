#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "formats/e4m3.h"
#include "formats/module_parts.h"
#include "lib/base/io/file.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/decoder_files.h"
#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/support/stored_int4.h"

// What lies beside codes and is on no list is refused by every command that reads their numbers, in every
// format. Source: what users reported of ComfyUI's files, ModelOpt's buffers and GPTQ's versions.

namespace cli_unread_parts_test {

using namespace twofour;

namespace {

using Words = std::vector<std::string>;

constexpr const char* kLinear = "model.layers.0.mlp.gate_proj";

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
bool takes(const std::string& command, const std::string& format) {
  const bool is_nvfp4 = format.starts_with("nvfp4") && format != "nvfp4-of-32";
  if (command == "quantize") return !is_nvfp4;
  return is_nvfp4 || (command != "prune" && command != "convert --to nvfp4");
}

TensorData tensor_named(const std::string& name) {
  return {name, DType::kBF16, {16}, std::vector<uint8_t>(32, 0x3F)};
}

}  // namespace

TEST_CASE("every command refuses what lies beside codes and is on no list, in every format") {
  Formats formats;
  for (const std::string& format : formats.names) {
    CAPTURE(format);
    const std::string name = std::string(kLinear) + ".channel_scale";
    const std::string source =
        formats.changed(format, [&](Tensors& tensors) { tensors.push_back(tensor_named(name)); });
    for (const auto& [command, words] : formats.commands(source)) {
      CAPTURE(command);
      const Outcome outcome = run_program(words);
      // diff compares such modules as they are stored, and says so.
      CHECK(outcome.code == (command == "diff" ? 0 : 2));
      if (takes(command, format)) CHECK_MESSAGE(contains(outcome.err + outcome.out, name), outcome.err);
    }
    const Outcome lint = run_program({"lint", source, "--select", "weight-term"});
    CHECK(lint.code == 1);
    CHECK(contains(lint.out, name));
  }
}

TEST_CASE("each kind of name beside codes is refused, and what a quantizer counted is not") {
  Formats formats;
  const Words refused = {".comfy_quant",
                         ".weight_perm",
                         ".smooth_scale",
                         ".hadamard",
                         ".proj_down",
                         ".weight_scale_bias",
                         ".input_quantizer._pre_quant_scale",
                         ".weight_quantizer._scale",
                         ".weight_quantizer.scale",
                         ".lora_A.default.weight",
                         ".input_quantizer._amax.old"};
  const Words harmless = {".weight_quantizer._amax", ".weight_quantizer.0._amax", ".input_quantizer._amax",
                          ".weight_quantizer._double_scale", ".weight_quantizer._global_amax"};
  for (const std::string& format : formats.names) {
    CAPTURE(format);
    for (const std::string& suffix : refused) {
      CAPTURE(suffix);
      const std::string name = kLinear + suffix;
      const std::string source =
          formats.changed(format, [&](Tensors& tensors) { tensors.push_back(tensor_named(name)); });
      const Outcome outcome = run_program(formats.commands(source)[0].second);
      CHECK(outcome.code == 2);
      // A packing of another producer is named by its module and the part that gives it away.
      const bool is_named = outcome.err.find(name) != std::string::npos ||
                            (outcome.err.find(kLinear) != std::string::npos &&
                             outcome.err.find(suffix.substr(1)) != std::string::npos);
      CHECK_MESSAGE(is_named, outcome.err);
    }
    const std::string source = formats.changed(format, [&](Tensors& tensors) {
      for (const std::string& suffix : harmless) tensors.push_back(tensor_named(kLinear + suffix));
    });
    const Words convert = formats.commands(source)[0].second;
    const Outcome outcome = run_program(convert);
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    const Checkpoint written = Checkpoint::open(convert[2]);
    for (const std::string& suffix : harmless) CHECK(written.find(kLinear + suffix).has_value());
    const Outcome lint = run_program({"lint", source, "--select", "tensor-unknown"});
    CHECK(lint.code == 1);
    for (const std::string& suffix : harmless) CHECK(contains(lint.out, kLinear + suffix));
  }
}

TEST_CASE("commands that write another config refuse codes that no format reads, and lint reports them") {
  Formats formats;
  const std::string linear = kLinear;
  const auto codes = [&](const std::string& name, DType type, std::vector<int64_t> shape) {
    std::vector<uint8_t> bytes(static_cast<size_t>(
        std::accumulate(shape.begin(), shape.end(), int64_t{dtype_bits(type)} / 8, std::multiplies<>())));
    return TensorData{linear + name, type, std::move(shape), std::move(bytes)};
  };
  const std::vector<Tensors> sets = {
      {codes(".weight", DType::kU32, {64, 8}), codes(".scales", DType::kBF16, {64, 1}),
       codes(".biases", DType::kBF16, {64, 1})},
      {codes(".trellis", DType::kI16, {4, 4, 64})},
      {codes(".qweight", DType::kU32, {8, 64})},
      {codes(".weight", DType::kF8E4M3, {4096}), codes(".weight_scale", DType::kF32, {1})},
  };
  for (const std::string format : {"nvfp4-modelopt", "fp8-tensor"}) {
    for (const Tensors& set : sets) {
      const std::string name = set[0].name;
      CAPTURE(name);
      const std::string source = formats.changed(format, [&](Tensors& tensors) {
        std::erase_if(tensors, [&](const TensorData& t) { return t.name.starts_with(linear + "."); });
        tensors.insert(tensors.end(), set.begin(), set.end());
      });
      for (const auto& [command, words] : formats.commands(source)) {
        const bool writes = command == "convert --to bf16" || command == "convert --to fp8" ||
                            command == "quantize" || command == "plan";
        if (!writes || !takes(command, format)) continue;
        CAPTURE(command);
        const Outcome outcome = run_program(words);
        CHECK(outcome.code == 2);
        CHECK_MESSAGE(contains(outcome.err, name), outcome.err);
      }
      const Outcome lint = run_program({"lint", source, "--headers-only"});
      CHECK(lint.code == 1);
      CHECK(contains(lint.out, linear));
    }
  }
}

TEST_CASE("every command refuses a term of no linear above what it reads, in every format and in floats") {
  Formats formats;
  Words sources = formats.names;
  sources.push_back("model");
  const Words terms = {"model.layers.0.mlp.input_quantizer._pre_quant_scale",
                       std::string("module.") + kLinear + ".pre_quant_scale",
                       std::string("base_model.model.") + kLinear + ".lora_A.weight",
                       "model.layers.0.mlp.act_fn.smooth_factor", "comfy_quant"};
  for (const std::string& format : sources) {
    CAPTURE(format);
    for (const std::string& name : terms) {
      CAPTURE(name);
      const std::string source =
          formats.changed(format, [&](Tensors& tensors) { tensors.push_back(tensor_named(name)); });
      for (const auto& [command, words] : formats.commands(source)) {
        const bool is_first = &name == &terms.front();
        if ((!is_first && command != "convert --to fp8" && command != "eval") ||
            (format == "model" && (command == "convert --to bf16" || command == "plan")))
          continue;
        CAPTURE(command);
        const Outcome outcome = run_program(words);
        CHECK(outcome.code == (command == "diff" ? 0 : 2));
        if (takes(command, format)) CHECK_MESSAGE(contains(outcome.err + outcome.out, name), outcome.err);
      }
      const Outcome lint = run_program({"lint", source, "--select", "weight-term"});
      CHECK(lint.code == 1);
      CHECK(contains(lint.out, name));
      // Plain copies go on.
      CHECK(run_program({"drop", source, source + "-out", "--modules", "lm_head"}).code == 0);
    }
  }
  // Of a block that is not read, nothing is refused.
  const std::string source = formats.changed("fp8-row", [&](Tensors& tensors) {
    tensors.push_back(tensor_named("model.layers.0.mlp.input_quantizer._pre_quant_scale"));
  });
  const Outcome outcome =
      run_program({"convert", source, source + "-out", "--to", "bf16", "--include", "*.layers.1.*"});
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
}

TEST_CASE("every command refuses an order beside the modules of a block, in every format and in floats") {
  Formats formats;
  Words sources = formats.names;
  sources.push_back("model");
  const auto order = [](const std::string& name, std::vector<uint8_t> bytes) {
    return TensorData{"model.layers.0.mlp." + name, DType::kU8, {4}, std::move(bytes)};
  };
  for (const std::string& format : sources) {
    CAPTURE(format);
    for (const std::string name : {"expert_perm", "input_index"}) {
      CAPTURE(name);
      const std::string source = formats.changed(format, [&](Tensors& tensors) {
        tensors.push_back(order(name, {1, 0, 3, 2}));
      });
      for (const auto& [command, words] : formats.commands(source)) {
        const bool is_few = name == "expert_perm" || command == "convert --to fp8";
        if (!is_few || (format == "model" && (command == "convert --to bf16" || command == "plan"))) continue;
        CAPTURE(command);
        const Outcome outcome = run_program(words);
        CHECK(outcome.code == (command == "diff" ? 0 : 2));
        if (takes(command, format))
          CHECK_MESSAGE(contains(outcome.err + outcome.out, "mlp." + name), outcome.err);
      }
      const Outcome lint = run_program({"lint", source, "--select", "weight-term"});
      CHECK(lint.code == 1);
      CHECK(contains(lint.out, name));
      // Plain copies go on, and so do conversions of other blocks.
      CHECK(run_program({"drop", source, source + "-out", "--modules", "lm_head"}).code == 0);
    }
    const std::string source = formats.changed(format, [&](Tensors& tensors) {
      tensors.push_back(order("expert_perm", {0, 1, 2, 3}));
    });
    const Outcome outcome = run_program(formats.commands(source)[2].second);
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(run_program({"lint", source, "--select", "weight-term"}).code == 0);
  }
}

TEST_CASE("diff does not call codes equal that two configs call different things") {
  Formats formats;
  for (const std::string& format : formats.names) {
    CAPTURE(format);
    const bool is_integers = format == "gptq" || format == "awq" || format.starts_with("int4");
    const auto refused = formats.configured(format, [](Json& config) {
      config["quantization_config"]["rotation_config"] = {{"algorithm", "hadamard"}};
    });
    const std::string plain = formats.configured(format, [](Json&) {});
    const auto count = [](const Json& result, const char* name) {
      return result["counts"][name].get<int64_t>();
    };
    for (const auto& [a, b] : {std::pair(plain, refused), {refused, plain}}) {
      const Outcome outcome = run_program({"diff", a, b, "--json"});
      CHECK(outcome.code == 1);
      const Json result = Json::parse(outcome.out);
      CHECK(count(result, "unreadable") > 0);
      for (const Json& entry : result["entries"]) {
        const std::string name = entry["name"].get<std::string>();
        if (name.ends_with("_proj.weight_packed") || name.ends_with("_proj.qweight"))
          CHECK(entry["class"] == "unreadable");
      }
      CHECK(contains(outcome.out, "the bytes are equal, but not what they mean: "));
      CHECK(run_program({"diff", a, b, "--headers-only", "--config", "ignore"}).code == 0);
    }
    // Both contradict their codes, each in its own way.
    const auto odd = [&](const char* method) {
      return formats.configured(format, [&](Json& config) {
        config["quantization_config"] = {{"quant_method", method}, {"bits", 4}, {"group_size", 16}};
      });
    };
    if (!is_integers) {
      const std::string gptq = odd("gptq"), awq = odd("awq");
      for (const std::string& path : {gptq, awq})
        std::filesystem::remove(std::filesystem::path(path) / "hf_quant_config.json");
      const Json result = Json::parse(run_program({"diff", gptq, awq, "--json"}).out);
      CHECK(count(result, "unreadable") > 0);
      CHECK(run_program({"diff", plain, gptq}).code == 1);
      CHECK(run_program({"diff", gptq, gptq}).code == 0);
    }
    CHECK(run_program({"diff", plain, plain}).code == 0);
    CHECK(run_program({"diff", refused, refused}).code == 0);
  }
}

TEST_CASE("every command refuses weights that the config calls rotated, in every format") {
  Formats formats;
  for (const std::string& format : formats.names) {
    CAPTURE(format);
    const std::string source = formats.configured(format, [](Json& config) {
      config["quantization_config"]["rotation_config"] = {{"algorithm", "hadamard"}};
    });
    for (const auto& [command, words] : formats.commands(source)) {
      CAPTURE(command);
      const Outcome outcome = run_program(words);
      CHECK(outcome.code == (command == "diff" ? 0 : 2));
      if (takes(command, format))
        CHECK_MESSAGE(contains(outcome.err + outcome.out, "rotation_config"), outcome.err);
    }
    const Outcome lint = run_program({"lint", source, "--select", "weight-term"});
    CHECK(lint.code == 1);
    CHECK(contains(lint.out, "rotation_config"));
  }
}

TEST_CASE("every command refuses weights that two tensors hold, in every format") {
  Formats formats;
  const std::string problem = ": two weights of one module";
  for (const std::string& format : formats.names) {
    CAPTURE(format);
    const std::string source = formats.changed(format, [](Tensors& tensors) {
      const std::string plain = std::string(kLinear) + ".weight";
      const bool has_plain =
          std::any_of(tensors.begin(), tensors.end(), [&](const TensorData& t) { return t.name == plain; });
      tensors.push_back(
          {has_plain ? plain + "_packed" : plain, DType::kBF16, {4, 4}, std::vector<uint8_t>(32, 0x3F)});
    });
    for (const auto& [command, words] : formats.commands(source)) {
      CAPTURE(command);
      const Outcome outcome = run_program(words);
      CHECK(outcome.code == (command == "diff" ? 0 : 2));
      const bool is_first = command == "convert --to bf16";  // others may stop at its shapes or scales
      if (takes(command, format))
        CHECK_MESSAGE(contains(outcome.err + outcome.out, is_first ? problem : kLinear), outcome.err);
    }
    const Outcome lint = run_program({"lint", source, "--select", "two-weights"});
    CHECK(lint.code == 1);
    CHECK(contains(lint.out, problem));
    CHECK(run_program({"drop", source, source + "-out", "--modules", "lm_head"}).code == 0);
  }
}

TEST_CASE("zero points of zero beside codes without any change nothing, for lint and for commands") {
  Formats formats;
  for (const std::string& format : formats.names) {
    if (format == "gptq" || format == "awq" || format.starts_with("int4")) continue;
    CAPTURE(format);
    const std::string source = formats.changed(format, [&](Tensors& tensors) {
      for (const char* name : {".weight_zero_point", ".output_zero_point", ".input_zero_point"})
        tensors.push_back({kLinear + std::string(name), DType::kI8, {16, 1}, std::vector<uint8_t>(16)});
    });
    const Outcome outcome = run_program(formats.commands(source)[0].second);
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(run_program({"lint", source, "--select", "weight-term"}).code == 0);
  }
}

TEST_CASE("codes that a header describes are refused, and copies of them, too") {
  Formats formats;
  for (const std::string& format : formats.names) {
    CAPTURE(format);
    for (const auto& [key, value] : std::map<std::string, std::string>{
             {"_quantization_metadata",
              std::string(R"({"layers": {")") + kLinear + R"(": {"format": "x"}}})"},
             {"quantization", "mixed"}}) {
      CAPTURE(key);
      const std::string source = formats.changed(format, [](Tensors&) {}, {{"format", "pt"}, {key, value}});
      for (const Words& words :
           {formats.commands(source)[0].second,
            Words{"eval", source, "--tokens", formats.files.path("tokens.safetensors"), "--context", "64"},
            Words{"drop", source, source + "-out", "--modules", "lm_head"}}) {
        CAPTURE(words[0]);
        const Outcome outcome = run_program(words);
        CHECK(outcome.code == 2);
        CHECK(contains(outcome.err, key));
      }
      const Outcome lint = run_program({"lint", source, "--select", "unsupported-format"});
      CHECK(lint.code == 1);
      CHECK(contains(lint.out, key));
    }
    // Of a layer that holds no codes it says nothing.
    const std::string other = formats.changed(
        format, [](Tensors&) {}, {{"_quantization_metadata", R"({"layers": {"other": {"format": "x"}}})"}});
    CHECK(run_program(formats.commands(other)[0].second).code == 0);
  }
}

TEST_CASE("parts without their codes are an incomplete module in every format") {
  Formats formats;
  for (const std::string& format : formats.names) {
    CAPTURE(format);
    const std::string source = formats.changed(format, [&](Tensors& tensors) {
      std::erase_if(tensors, [&](const TensorData& t) {
        return t.name.starts_with(kLinear) &&
               (t.name.ends_with(".weight") || t.name.ends_with(".weight_packed") ||
                t.name.ends_with(".qweight"));
      });
    });
    for (const auto& [command, words] : formats.commands(source)) {
      CAPTURE(command);
      const Outcome outcome = run_program(words);
      CHECK((outcome.code == 2 || command == "diff"));
      if (takes(command, format)) CHECK_MESSAGE(contains(outcome.err, kLinear), outcome.err);
    }
    const Outcome lint = run_program({"lint", source, "--select", "incomplete-module"});
    CHECK(lint.code == 1);
    CHECK(contains(lint.out, kLinear));
  }
}

namespace {

/// Replaces the global scales of the linears below a name, and multiplies their block scales.
void change_globals(Tensors& tensors, const std::string& below, float (*change)(float), float blocks = 1) {
  for (TensorData& t : tensors) {
    if (!t.name.starts_with(below)) continue;
    if (t.name.ends_with(".weight_scale"))
      for (uint8_t& scale : t.bytes) scale = e4m3_from_float(e4m3_to_float(scale) * blocks);
    if (!t.name.ends_with(".weight_scale_2") && !t.name.ends_with(".weight_global_scale")) continue;
    float value = 0;
    std::memcpy(&value, t.bytes.data(), sizeof(value));
    value = change(value);
    std::memcpy(t.bytes.data(), &value, sizeof(value));
  }
}

}  // namespace

TEST_CASE("every command refuses a global scale that is stored as its reciprocal, and repair turns it") {
  Formats formats;
  for (const std::string format : {"nvfp4-modelopt", "nvfp4-compressed-tensors"}) {
    CAPTURE(format);
    const std::string source = formats.changed(
        format, [](Tensors& tensors) { change_globals(tensors, kLinear, [](float x) { return 1 / x; }); });
    for (const auto& [command, words] : formats.commands(source)) {
      CAPTURE(command);
      const Outcome outcome = run_program(words);
      CHECK(outcome.code == (command == "diff" ? 1 : 2));  // diff counts such modules as unreadable
      if (!takes(command, format) || command == "compress") continue;  // compress reads floats alone
      for (const char* text : {kLinear, "expected a global scale of weights up to 100000", "twofour repair"})
        CHECK_MESSAGE(contains(outcome.err + outcome.out, text), outcome.err);
    }
    const std::string repaired = source + "-repaired";
    const Outcome repair = run_program({"repair", source, repaired});
    CHECK_MESSAGE(contains(repair.out + repair.err, "reciprocals (suspicious-scale)"), repair.err);
    const Outcome convert = run_program(formats.commands(repaired)[0].second);
    CHECK_MESSAGE(convert.code == 0, convert.err);
  }
}

TEST_CASE("global scales of an odd size are right where block scales make up for it") {
  Formats formats;
  for (const bool divides : {false, true}) {
    const std::string source =
        formats.changed(divides ? "nvfp4-compressed-tensors" : "nvfp4-modelopt", [&](Tensors& tensors) {
          const auto to_64 = [](float) { return 64.0f; };
          const auto to_part = [](float) { return 1 / 64.0f; };
          change_globals(tensors, "model.layers.", divides ? +to_part : +to_64, 1 / 4096.0f);
        });
    for (const size_t command : {0, 1, 3, 10}) {
      const auto [name, words] = formats.commands(source)[command];
      CAPTURE(name);
      const Outcome outcome = run_program(words);
      CHECK_MESSAGE(outcome.code == 0, outcome.err);
    }
  }
}

TEST_CASE("every command refuses another number of experts than config.json says") {
  Formats formats("qwen3_moe");
  for (const std::string& format : formats.names) {
    CAPTURE(format);
    for (const int more : {-1, 1}) {
      CAPTURE(more);
      const std::string source = formats.configured(format, [&](Json& config) {
        for (const char* key : {"num_experts", "num_local_experts"}) {
          if (config.contains(key)) config[key] = config[key].get<int64_t>() + more;
        }
      });
      for (const auto& [command, words] : formats.commands(source)) {
        if (command == "inspect --values") continue;
        CAPTURE(command);
        const Outcome outcome = run_program(words);
        CHECK(outcome.code == (command == "diff" ? 0 : 2));
        const bool is_first = command == "convert --to bf16" || command == "diff";
        if (is_first)
          CHECK_MESSAGE(contains(outcome.err + outcome.out, "experts (config.json), found"), outcome.err);
      }
    }
  }
}

TEST_CASE("codes that keep their bytes are examined where a new configuration describes them") {
  Formats formats;
  for (const std::string& format : formats.names) {
    const std::string name = std::string(kLinear) + ".pre_quant_scale";
    const std::string source =
        formats.changed(format, [&](Tensors& tensors) { tensors.push_back(tensor_named(name)); });
    for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
      CAPTURE(format);
      CAPTURE(dialect);
      const std::string out = source + "-" + dialect;
      const Outcome outcome = run_program({"convert", source, out, "--to", "nvfp4", "--dialect", dialect});
      if (outcome.err.find("[same-dialect]") != std::string::npos) continue;  // all is copied, config, too
      CHECK_MESSAGE(outcome.code == 2, outcome.err);
      CHECK(!std::filesystem::exists(out));
    }
  }
  for (const char* type : {"int4", "bfp16"}) {
    const std::string source = formats.configured("mxfp4-modelopt", [&](Json& config) {
      config["quantization_config"] =
          parse_json("config", R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": ")" +
                                   std::string(type) + R"(", "qscheme": "per_group", "group_size": 32}}})");
    });
    std::filesystem::remove(std::filesystem::path(source) / "hf_quant_config.json");
    const Outcome outcome =
        run_program({"convert", source, source + "-out", "--to", "nvfp4", "--dialect", "modelopt"});
    CHECK(outcome.code == 2);
    CHECK_MESSAGE(contains(outcome.err, type), outcome.err);
  }
}

TEST_CASE("what lies beside floats and is on no list is refused, as is an adapter that is not merged") {
  Formats formats;
  for (const char* suffix : {".input_smooth", ".perm", ".R", ".hra_u", ".shira_weight", ".base_layer.weight",
                             ".modules_to_save.default.weight", ".lora_A.default.weight", ".trans.matrix"}) {
    CAPTURE(suffix);
    const std::string name = std::string(kLinear) + suffix;
    const std::string source =
        formats.changed("model", [&](Tensors& tensors) { tensors.push_back(tensor_named(name)); });
    for (const auto& [command, words] : formats.commands(source)) {
      if (command != "quantize" && command != "convert --to fp8" && command != "eval") continue;
      CAPTURE(command);
      const Outcome outcome = run_program(words);
      CHECK(outcome.code == 2);
      if (command != "eval") CHECK_MESSAGE(contains(outcome.err, name), outcome.err);
    }
  }
  const std::string source = formats.configured("model", [](Json&) {});
  CHECK(run_program(formats.commands(source)[6].second).code == 0);
  write_text(source + "/adapter_config.json", R"({"peft_type": "LORA"})");
  for (const size_t command : {2, 6, 10}) {
    const Outcome outcome = run_program(formats.commands(source)[command].second);
    CHECK(outcome.code == 2);
    CHECK_MESSAGE(contains(outcome.err, "adapter_config.json: peft_type: expected no adapter"), outcome.err);
  }
}

TEST_CASE("eval refuses floats of the model that nothing reads") {
  Formats formats;
  const auto add = [&](const std::string& name) {
    const std::string source =
        formats.changed("model", [&](Tensors& tensors) { tensors.push_back(tensor_named(name)); });
    return run_program(formats.commands(source)[10].second);
  };
  for (const char* name : {"model.embed_norm.weight", "model.layers.0.layer_scalar", "model.ngram.weight",
                           "model.layers.0.mlp.act_fn.weight", "model.layers.0.mlp.expert_perm",
                           "model.layers.0.self_attn.lora", "model.embed_tokens.lora_embedding_A",
                           "model.embed_tokens.token_adapter.trainable_tokens_delta", "final_logits_bias"}) {
    CAPTURE(name);
    const Outcome outcome = add(name);
    CHECK(outcome.code == 2);
    CHECK_MESSAGE(contains(outcome.err, name), outcome.err);
  }
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.visual.norm.weight",
                           "model.layers.0.self_attn.k_scale", "mtp.norm.weight"}) {
    CAPTURE(name);
    CHECK(add(name).code == 0);
  }
}

TEST_CASE("repair writes no config that loses what the present one says of the codes") {
  Formats formats;
  const auto changed = [&](const char* format, const char* key, const Json& value) {
    return formats.configured(format, [&](Json& config) {
      config["quantization_config"]["ignore"] = Json::array();
      config["quantization_config"][key] = value;
    });
  };
  const std::string integers = formats.configured("nvfp4-compressed-tensors", [](Json& config) {
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["type"] = "int";
  });
  for (const std::string& source :
       {changed("nvfp4-modelopt", "rotated", true), changed("mxfp4-modelopt", "quant_algo", "MXINT4"),
        changed("nvfp4-modelopt", "quant_algo", "NVINT4"), integers}) {
    CAPTURE(source);
    std::filesystem::remove(std::filesystem::path(source) / "hf_quant_config.json");
    CHECK(run_program(formats.commands(source)[0].second).code == 2);
    const std::string repaired = source + "-repaired";
    const Outcome repair = run_program({"repair", source, repaired});
    CHECK_MESSAGE(contains(repair.out + repair.err, "would lose what the present one says"),
                  repair.out << repair.err);
    CHECK(run_program(formats.commands(repaired)[0].second).code == 2);
  }
}

TEST_CASE("repair replaces a config of GPTQ or AWQ if no tensor has their codes, and the weights stay") {
  Formats formats;
  for (const std::string format :
       {"nvfp4-modelopt", "nvfp4-compressed-tensors", "mxfp4-compressed-tensors"}) {
    for (const char* method : {"gptq", "awq"}) {
      CAPTURE(format);
      CAPTURE(method);
      const std::string source = formats.configured(format, [&](Json& config) {
        config["quantization_config"] = {{"quant_method", method}, {"bits", 4}, {"group_size", 16}};
      });
      std::filesystem::remove(std::filesystem::path(source) / "hf_quant_config.json");
      const std::string repaired = source + "-repaired";
      const Outcome repair = run_program({"repair", source, repaired});
      const Words to_bf16 = formats.commands(repaired)[0].second;
      const Outcome convert = run_program(to_bf16);
      if (!format.starts_with("nvfp4")) {  // tensors that a config of another method may have, too
        CHECK(contains(repair.out + repair.err, "quant_method"));
        CHECK(convert.code == 2);
        continue;
      }
      CHECK_MESSAGE(convert.code == 0, convert.err);
      const Words of_original = formats.commands(formats.files.path(format))[0].second;
      CHECK(run_program(of_original).code == 0);
      const Outcome diff = run_program({"diff", of_original[2], to_bf16[2], "--config", "ignore"});
      CHECK_MESSAGE(diff.code == 0, diff.out);
    }
  }
}

}  // namespace cli_unread_parts_test
