#include <doctest/doctest.h>
#include <fmt/format.h>

#include <functional>

#include "lib/lint/lint.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/faults/faults.h"
#include "tests/support/scratch.h"

namespace lint_config_test {

using namespace twofour;

namespace {

std::vector<uint8_t> random_bytes(size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(i * 37 % 251);
  return bytes;
}

/// "rule: file: name: message" of each finding, a line each.
std::string findings_in(const std::filesystem::path& path) {
  Progress progress;
  std::string text;
  for (const LintFinding& f : lint(path, {.headers_only = true}, progress).findings)
    text += std::string(lint_rules()[f.rule].id) + ": " + f.where() + ": " + f.message + "\n";
  return text;
}

}  // namespace

TEST_CASE("findings in a config name its file and the key, wherever the entry stands") {
  const Save sound = sound_checkpoint();
  const auto check = [&](const std::function<void(Save&)>& change, const std::string& finding) {
    const Scratch scratch;
    Save save = sound;
    change(save);
    write_save(save, scratch / "checkpoint");
    const std::string text = findings_in(scratch / "checkpoint");
    CAPTURE(text);
    CAPTURE(finding);
    CHECK(text.find(finding) != text.npos);
  };
  const std::string unreadable = "re:(?<!x)y: expected a regular expression in ";
  // A list of either name in one entry.
  const auto add_to_both = [](Save& save) {
    save.edit("config.json", [](Json& j) {
      j["quantization_config"]["ignore"].push_back("re:(?<!x)y");
      j["quantization_config"]["exclude_modules"] = Json::array({"lm_head"});
    });
  };
  check(add_to_both, "python-only-pattern: config.json: " + unreadable + "quantization_config.ignore, found");
  const auto add_to_file = [](Save& save) {
    save.edit("config.json", [](Json& j) { j.erase("quantization_config"); });
    save.edit("hf_quant_config.json", [](Json& j) {
      j["quantization"]["exclude_modules"].push_back("re:(?<!x)y");
      j["quantization"]["exclude_modules"].push_back("nothing.*");
    });
  };
  check(add_to_file,
        "python-only-pattern: hf_quant_config.json: " + unreadable + "quantization.exclude_modules, found");
  check(add_to_file, "unused-pattern: hf_quant_config.json: nothing.*: expected to match a module");
  for (const Json& nothing : {Json(nullptr), Json(false), Json("none"), Json::array({1})}) {
    const auto say_nothing = [&](Save& save) {
      add_to_file(save);
      save.edit("config.json", [&](Json& j) { j["quantization_config"] = nothing; });
    };
    check(say_nothing, "unused-pattern: hf_quant_config.json: nothing.*: expected to match a module");
  }
  for (const std::string place :
       {"quantization_config", "text_config.quantization_config", "compression_config"}) {
    const auto move_there = [&](Save& save) {
      save.edit("config.json", [&](Json& j) {
        Json entry = j["quantization_config"];
        j.erase("quantization_config");
        entry["config_groups"]["group_0"]["weights"]["group_size"] = 32;
        (place.starts_with("text") ? j["text_config"] : j)[place.substr(place.find('.') + 1)] = entry;
      });
    };
    check(move_there, "config-group-size: config.json: " + place +
                          ".config_groups.group_0.weights.group_size: expected 16");
  }
}

TEST_CASE("a quantized router is found by every name that families give it") {
  for (const char* name : {"mlp.gate", "mlp.gate.wg", "mlp.router.layer", "feed_forward.router"}) {
    CAPTURE(name);
    const Scratch scratch;
    Save save = sound_checkpoint();
    const std::string router = fmt::format("model.layers.0.{}", name);
    save.erase_below("model.layers.0.mlp.gate.");
    for (const char* part : {"weight", "weight_scale", "weight_scale_2"}) {
      TensorData t = save.at(fmt::format("model.layers.0.self_attn.o_proj.{}", part));
      t.name = fmt::format("{}.{}", router, part);
      save.add(t);
    }
    write_save(save, scratch / "checkpoint");
    const std::string text = findings_in(scratch / "checkpoint");
    CAPTURE(text);
    CHECK(text.find(fmt::format(": {}: expected an unquantized router, found NVFP4", router)) != text.npos);
  }
}

TEST_CASE("a router with a bias for its choice is no linear that a config must name") {
  const auto linted = [](const std::string& bias) {
    Tensors tensors;
    for (const char* name : {"model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"})
      add_modelopt(tensors, name, random_matrix(16, 32, 1));
    add_bf16(tensors, "model.layers.0.mlp.gate.weight", {4, 32}, 2);
    if (!bias.empty()) add_bf16(tensors, "model.layers.0.mlp.gate" + bias, {4}, 3);
    const Scratch scratch;
    write_checkpoint(scratch / "c", {tensors}, R"({"model_type": "deepseek_v3", "quantization_config": {
      "quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "group_size": 16, "ignore": []}})");
    return findings_in(scratch / "c").find("unquantized-not-ignored: ") != std::string::npos;
  };
  CHECK(linted(""));
  CHECK(linted(".bias"));
  CHECK(!linted(".e_score_correction_bias"));
  CHECK(!linted(".expert_bias"));
}

TEST_CASE("factors of rotary embeddings are numbers, and what is turned is a share of a head") {
  const auto linted = [](const std::function<void(Json&)>& change) {
    const Scratch scratch;
    Save save = sound_checkpoint();
    save.edit("config.json", [&](Json& j) {
      Json rope = {{"rope_type", "longrope"}, {"factor", 4.0}};
      rope["long_factor"] = rope["short_factor"] = Json(std::vector<double>(16, 1.5));
      j["head_dim"] = 32;
      change(rope);
      j["rope_scaling"] = rope;
    });
    write_save(save, scratch / "checkpoint");
    return findings_in(scratch / "checkpoint");
  };
  const auto says = [&](const std::string& words, const std::function<void(Json&)>& change) {
    const std::string found = linted(change);
    CAPTURE(found);
    CHECK(found.find("odd-setting: config.json: rope_scaling." + words) != std::string::npos);
    CHECK(found.find("one for each pair") == std::string::npos);
  };
  CHECK(linted([](Json&) {}).find("rope_scaling") == std::string::npos);
  const std::string share = "partial_rotary_factor: expected a number of more than 0, at most 1, found ";
  says(share + "-1", [](Json& j) { j["partial_rotary_factor"] = -1; });
  says(share + "1e+300", [](Json& j) { j["partial_rotary_factor"] = 1e300; });
  says(share + "true", [](Json& j) { j["partial_rotary_factor"] = true; });
  const std::string list = "short_factor: expected a list of numbers of more than 0, found ";
  says(list + "null", [](Json& j) { j["short_factor"] = Json(); });
  says(list + "3", [](Json& j) { j["short_factor"] = 3; });
  says(list + "0", [](Json& j) { j["short_factor"] = Json(std::vector<double>{1, 0, 2}); });
  says(list + "\"a\"", [](Json& j) { j["short_factor"] = Json(std::vector<std::string>{"a"}); });
}

TEST_CASE("lists of factors have a number for each pair that rotary embeddings turn") {
  const auto linted = [](size_t longer, size_t shorter, const std::function<void(Json&, Json&)>& change) {
    const Scratch scratch;
    Save save = sound_checkpoint();
    save.edit("config.json", [&](Json& j) {
      Json rope = {{"rope_type", "longrope"}, {"factor", 4.0}};
      rope["long_factor"] = Json(std::vector<double>(longer, 1.5));
      rope["short_factor"] = Json(std::vector<double>(shorter, 1.0));
      j["head_dim"] = 32;
      change(j, rope);
      j["rope_scaling"] = rope;
    });
    write_save(save, scratch / "checkpoint");
    std::string found;
    for (const char* key : {"long_factor", "short_factor"}) {
      for (const char* pairs : {"16", "8", "4"}) {
        if (findings_in(scratch / "checkpoint")
                .find(fmt::format("odd-setting: config.json: rope_scaling.{}: expected {} numbers", key,
                                  pairs)) != std::string::npos)
          found += fmt::format("{}: {}; ", key, pairs);
      }
    }
    return found;
  };
  const auto as_it_is = [](Json&, Json&) {};
  CHECK(linted(16, 16, as_it_is) == "");
  CHECK(linted(15, 16, as_it_is) == "long_factor: 16; ");
  CHECK(linted(16, 32, as_it_is) == "short_factor: 16; ");
  const auto half = [](Json& j, Json&) { j["partial_rotary_factor"] = 0.5; };
  CHECK(linted(8, 8, half) == "");
  CHECK(linted(16, 16, half) == "long_factor: 8; short_factor: 8; ");
  const auto quarter = [](Json& j, Json& rope) {
    j["partial_rotary_factor"] = 0.5;
    rope["partial_rotary_factor"] = 0.25;
  };
  CHECK(linted(4, 4, quarter) == "");
  CHECK(linted(8, 4, quarter) == "long_factor: 4; ");
  // Without a size in the configuration the lists need only agree.
  const auto unknown = [](Json& j, Json&) { j["model_type"] = "unheard_of"; };
  CHECK(linted(8, 8, unknown) == "");
  CHECK(linted(4, 8, unknown) == "long_factor: 8; ");
}

TEST_CASE("codes with scales of another format beside them are whole") {
  const auto linted = [](const char* suffix, DType type) {
    Tensors tensors;
    tensors.push_back(
        {"model.layers.0.mlp.experts.0.up_proj.weight", DType::kU8, {16, 32}, random_bytes(512)});
    tensors.push_back({"model.layers.0.mlp.experts.0.up_proj" + std::string(suffix),
                       type,
                       {16, 2},
                       random_bytes(type == DType::kF32 ? 128 : 32)});
    const Scratch scratch;
    write_checkpoint(scratch / "c", {tensors});
    const std::string text = findings_in(scratch / "c"), rule = "incomplete-module: ";
    size_t count = 0;
    for (size_t at = text.find(rule); at != text.npos; at = text.find(rule, at + 1)) ++count;
    return count;
  };
  CHECK(linted(".weight_scale_inv", DType::kU8) == 0);  // Ling's
  CHECK(linted(".weight_scale_inv", DType::kF8E8M0) == 0);
  CHECK(linted(".weight_scale_inv", DType::kF32) == 1);
  CHECK(linted(".other", DType::kU8) == 1);
}

}  // namespace lint_config_test
