#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "formats/e4m3.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"
#include "tests/support/weights/stored_int4.h"
#include "tests/tools/number_formats/stored_formats.h"

namespace cli_weight_terms_test {

using namespace twofour;
using namespace stored_formats;

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

TEST_CASE("a global scale that is computed from large weights is no reciprocal") {
  Formats formats;
  const std::string source = formats.changed("mxfp4-compressed-tensors", [](Tensors& tensors) {
    for (TensorData& t : tensors) {
      if (!t.name.ends_with("_proj.weight_scale")) continue;
      for (uint8_t& scale : t.bytes) scale = static_cast<uint8_t>(scale + 30);  // times 2^30
    }
  });
  for (const char* layout : {"v7", "g8"}) {
    const std::string out = source + "-" + layout;
    const Outcome outcome = run_program({"convert", source, out, "--to", layout});
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(run_program({"validate", out, "--source", source}).code == 0);
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

}  // namespace cli_weight_terms_test
