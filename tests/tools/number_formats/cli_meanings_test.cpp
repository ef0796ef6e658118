#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/tools/number_formats/stored_formats.h"

// Orders beside the modules of a block, and equal codes under configs that give them other meanings, in every
// format.

namespace cli_meanings_test {

using namespace twofour;
using namespace stored_formats;

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

TEST_CASE("every command refuses a config that names an arrangement of bytes, in every format") {
  const std::vector<std::pair<const char*, Json>> settings = {
      {"scale_layout", "swizzled_128x4"}, {"is_marlin_format", true}, {"weight_interleave", {2, 4}},
      {"nibble_order", "high_first"},     {"is_k_major", true},       {"scale_format", "swizzled"},
  };
  Formats formats;
  size_t next = 0;
  for (const std::string& format : formats.names) {
    CAPTURE(format);
    const auto& [key, value] = settings[next++ % settings.size()];
    CAPTURE(key);
    const auto with = [&](const Json& words) {
      return formats.configured(format, [&](Json& config) { config["quantization_config"][key] = words; });
    };
    const std::string source = with(value);
    for (const auto& [command, words] : formats.commands(source)) {
      CAPTURE(command);
      const Outcome outcome = run_program(words);
      CHECK(outcome.code == (command == "diff" ? 0 : 2));
      if (takes(command, format)) CHECK_MESSAGE(contains(outcome.err + outcome.out, key), outcome.err);
    }
    const Outcome lint = run_program({"lint", source, "--select", "weight-term"});
    CHECK(lint.code == 1);
    CHECK(contains(lint.out, key));
    CHECK(run_program({"drop", source, source + "-out", "--modules", "lm_head"}).code == 0);
    const Outcome repair = run_program({"repair", source, source + "-repaired"});
    if (repair.code == 0 && std::filesystem::exists(source + "-repaired"))
      CHECK(contains(read_text(source + "-repaired/config.json"), key));
    // The usual arrangement, and none.
    for (const Json& usual : {Json(nullptr), Json("linear")}) {
      const std::string plain = with(usual);
      const Outcome outcome = run_program(formats.commands(plain)[2].second);
      CHECK_MESSAGE(outcome.code == 0, outcome.err);
      CHECK(run_program({"lint", plain, "--select", "weight-term"}).code == 0);
    }
  }
}

TEST_CASE("a file beside config.json and a header may name an arrangement of bytes, too") {
  Formats formats;
  const std::string source = formats.configured("gptq", [](Json&) {});
  write_text(
      source + "/quantize_config.json",
      R"({"bits": 4, "group_size": 16, "quant_method": "gptq", "sym": true, "is_marlin_format": true})");
  for (const auto& [command, words] : formats.commands(source)) {
    if (!takes(command, "gptq")) continue;
    CAPTURE(command);
    const Outcome outcome = run_program(words);
    CHECK(outcome.code == (command == "diff" ? 0 : 2));
    CHECK_MESSAGE(contains(outcome.err + outcome.out, "is_marlin_format"), outcome.err);
  }
  CHECK(run_program({"lint", source, "--select", "weight-term"}).code == 1);
  const auto to_fp8 = [&](const std::map<std::string, std::string>& metadata) {
    const std::string changed = formats.changed(
        "nvfp4-modelopt", [](Tensors&) {}, metadata);
    return run_program(formats.commands(changed)[2].second);
  };
  for (const char* key : {"scale_layout", "weight_interleave", "is_sf_swizzled"}) {
    const Outcome outcome = to_fp8({{"format", "pt"}, {key, "128x4"}});
    CHECK(outcome.code == 2);
    CHECK(contains(outcome.err, key));
    CHECK(to_fp8({{"format", "pt"}, {key, "false"}}).code == 0);
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

}  // namespace cli_meanings_test
