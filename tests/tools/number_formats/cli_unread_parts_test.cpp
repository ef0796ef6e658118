#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "formats/module_parts.h"
#include "lib/base/io/file.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"
#include "tests/support/weights/stored_int4.h"
#include "tests/tools/number_formats/stored_formats.h"

// Tensors beside codes that are on no list are refused by every command that reads their numbers, in every
// format. Source: what users reported of ComfyUI's files, ModelOpt's buffers and GPTQ's versions.

namespace cli_unread_parts_test {

using namespace twofour;
using namespace stored_formats;

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

}  // namespace cli_unread_parts_test
