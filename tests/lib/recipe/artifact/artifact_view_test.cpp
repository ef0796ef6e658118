#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "formats/layouts/layouts.h"
#include "lib/base/io/file.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/kept_tensors.h"

namespace artifact_view_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";
constexpr const char* kGoldens[] = {"modelopt-qwen3", "compressed-tensors-qwen3", "modelopt-mixtral-uneven"};

fs::path golden(const std::string& name) { return fs::path(TWOFOUR_GOLDEN_DIR) / name / "src"; }

}  // namespace

TEST_CASE("a golden artifact shows its source: all of it in g8, the pruned one in v7 and v7-packed") {
  for (const char* name : kGoldens) {
    const bool folded = std::string(name).ends_with("uneven");
    for_each_layout([&]<class L>() {
      CAPTURE(std::string(name));
      CAPTURE(std::string(L::name));
      const Scratch scratch;
      convert(golden(name), scratch / "there", rule_to(L::name));
      const ConvertResult result = convert(scratch / "there", scratch / "back", rule_to("nvfp4"));
      ReadTensors expected = kept_by(L::name, golden(name)), found = read_tensors(scratch / "back");
      CHECK(findings_of(result.findings, "folded-source").size() == (folded ? 1 : 0));
      if (folded) {  // block scales and global scales of one of gate and up are others
        const auto touched = [](auto& t) {
          return t.first.find("w1.weight_scale") != t.first.npos ||
                 t.first.find("w3.weight_scale") != t.first.npos;
        };
        CHECK(std::erase_if(expected, touched) == std::erase_if(found, touched));
      }
      check_equal(found, expected);
      check_proven(scratch / "there", scratch / "back");
      for (const char* file :
           {"config.json", "hf_quant_config.json", "tokenizer.json", "generation_config.json"}) {
        CAPTURE(std::string(file));
        REQUIRE(fs::exists(scratch / "back" / file) == fs::exists(golden(name) / file));
        if (!fs::exists(golden(name) / file)) continue;
        CHECK(parse_json(file, read_text(scratch / "back" / file)) ==
              parse_json(file, read_text(golden(name) / file)));
      }
    });
  }
}

TEST_CASE("an artifact converts to every layout as its source or pruned source does") {
  for (const std::string how : {"modelopt", "stack, interleaved, k outer", "stack"}) {
    const Scratch scratch;
    write_checkpoint(scratch / "src", {experts_stored_as(how, kBlock, 2, 48, 2064)});
    convert(scratch / "src", scratch / "pruned", rule_to("prune"));
    for_each_layout([&]<class From>() {
      const fs::path artifact = scratch / From::name;
      convert(scratch / "src", artifact, rule_to(From::name));
      const fs::path source = std::string(From::name) == "g8" ? scratch / "src" : scratch / "pruned";
      for (const std::string layout : {"v7", "v7-packed", "g8", "bf16", "prune"}) {
        CAPTURE(how);
        CAPTURE(std::string(From::name));
        CAPTURE(layout);
        const fs::path direct = scratch / "direct", over = scratch / "over";
        convert(source, direct, rule_to(layout));
        MemoryLimits limits;
        limits.piece = 16 << 10;  // experts in pieces
        if (layout != "bf16" && layout != "prune") {
          convert(artifact, over, rule_to(layout), {.jobs = 2}, limits);
        } else {
          convert(artifact, over, rule_to(layout));
        }
        check_equal(read_tensors(over), read_tensors(direct));
        CHECK(read_tree(over).at("config.json") ==
              (layout == "prune" ? format_json(parse_json("", read_tree(direct).at("config.json")))
                                 : read_tree(direct).at("config.json")));
        CHECK(!read_tree(over).count(".twofour.json"));
        check_proven(artifact, over);
        fs::remove_all(direct);
        fs::remove_all(over);
      }
    });
  }
}

TEST_CASE("where gate and up were folded the view shows the folded scales and says so") {
  ExpertSet set = random_experts(2, 16, 32);
  set.gate[0].global = 0.3f;
  set.up[0].global = 0.7f;
  Tensors tensors;
  add_experts(tensors, kBlock, set);
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  convert(scratch / "src", scratch / "g8", rule_to("g8"));
  const ConvertResult result = convert(scratch / "g8", scratch / "back", rule_to("nvfp4"));
  const auto findings = findings_of(result.findings, "folded-source");
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].severity == Severity::kWarning);
  CHECK(findings[0].where == kBlock + ".w13");
  CHECK(findings[0].message.starts_with("gate and up of 1 of 2 experts were folded"));
  const ReadTensors back = read_tensors(scratch / "back"), src = read_tensors(scratch / "src");
  const std::string gate = kBlock + ".0.gate_proj";
  CHECK((back.at(gate + ".weight") == src.at(gate + ".weight")));
  CHECK(back.at(gate + ".weight_scale_2").as<float>() == std::vector{0.7f});
  CHECK(back.at(gate + ".weight_scale").bytes != src.at(gate + ".weight_scale").bytes);
  size_t others = 0;
  for (const auto& [name, tensor] : src) {
    if (name.starts_with(gate)) continue;
    CHECK((back.at(name) == tensor));
    ++others;
  }
  CHECK(others == src.size() - 3);
  // Folded once, it is folded for good: the same artifact comes of it.
  convert(scratch / "back", scratch / "again", rule_to("g8"));
  check_equal(read_tensors(scratch / "again"), read_tensors(scratch / "g8"));
}

TEST_CASE("stored bits of a global scale come back though its reciprocal would not") {
  Tensors tensors;
  ExpertSet set = random_experts(1, 16, 32);
  add_compressed_tensors(tensors, kBlock + ".0.gate_proj", set.gate[0]);
  add_compressed_tensors(tensors, kBlock + ".0.up_proj", set.up[0]);
  add_compressed_tensors(tensors, kBlock + ".0.down_proj", set.down[0]);
  for (TensorData& t : tensors) {
    if (!t.name.ends_with("down_proj.weight_global_scale")) continue;
    float g = 3.0f;
    while (1.0f / (1.0f / g) == g) g = std::nextafter(g, 100.0f);
    std::memcpy(t.bytes.data(), &g, sizeof(g));
  }
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  for_each_layout([&]<class L>() {
    convert(scratch / "src", scratch / L::name, rule_to(L::name));
    convert(scratch / L::name, scratch / (std::string(L::name) + " back"), rule_to("nvfp4"));
    const std::string name = kBlock + ".0.down_proj.weight_global_scale";
    CHECK((read_tensors(scratch / (std::string(L::name) + " back")).at(name) ==
           read_tensors(scratch / "src").at(name)));
  });
}

TEST_CASE("the config is as it was: entry in config.json, in hf_quant_config.json, in both or none") {
  const std::string hf = R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}})";
  const std::string entry = R"({"a": 1, "quantization_config": {"quant_method": "modelopt"}, "b": 2})";
  for (const std::string& config : {entry, std::string(R"({"a": 1, "b": 2})")}) {
    for (const std::string& file : {hf, std::string()}) {
      const Scratch scratch;
      write_checkpoint(scratch / "src", {experts_stored_as("modelopt", kBlock, 1, 16, 32)}, config);
      if (!file.empty()) write_text(scratch / "src/hf_quant_config.json", file);
      convert(scratch / "src", scratch / "v7");
      for (const char* layout : {"nvfp4", "prune"}) {
        const fs::path back = scratch / layout;
        convert(scratch / "v7", back, rule_to(layout));
        CHECK(read_text(back / "config.json") == format_json(parse_json("", config)));
        REQUIRE(fs::exists(back / "hf_quant_config.json") == !file.empty());
        if (!file.empty())
          CHECK(read_text(back / "hf_quant_config.json") == format_json(parse_json("", file)));
      }
      convert(scratch / "v7", scratch / "v7 again");
      CHECK(read_text(scratch / "v7 again/config.json") == read_text(scratch / "v7/config.json"));
    }
  }
}

TEST_CASE("an artifact converts to the other dialect on request, as its source does") {
  const Scratch scratch;
  convert(golden("modelopt-qwen3"), scratch / "g8", rule_to("g8"));
  OneRule other = rule_to("nvfp4");
  other.dialect = "compressed-tensors";
  convert(golden("modelopt-qwen3"), scratch / "direct", other);
  convert(scratch / "g8", scratch / "over", other);
  check_equal(read_tensors(scratch / "over"), read_tensors(scratch / "direct"));
  CHECK(read_text(scratch / "over/config.json") == read_text(scratch / "direct/config.json"));
  check_proven(scratch / "g8", scratch / "over");
  // What came of it is a checkpoint like any other: in its own dialect it is copied.
  const ConvertResult same = convert(scratch / "over", scratch / "x", other);
  CHECK(findings_of(same.findings, "same-dialect").size() == 1);
  check_equal(read_tensors(scratch / "x"), read_tensors(scratch / "over"));
  CHECK(read_text(scratch / "x/config.json") == read_text(scratch / "over/config.json"));
}

TEST_CASE("a manifest of another format, or one that leaves a matrix out, is no source") {
  const Scratch scratch;
  const fs::path manifest = scratch / "artifact/twofour.json";
  OneRule recipe;
  recipe.to = "g8";
  convert(fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-qwen3/src", scratch / "artifact", recipe);
  const std::string text = read_text(manifest);
  const auto refusal = [&](const std::string& from, const std::string& to, bool sealed = true) {
    std::string changed = text;
    const size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    changed.replace(at, from.size(), to);
    sealed ? write_sealed(manifest, changed) : write_text(manifest, changed);
    return message_of([&] { open_source(scratch / "artifact"); });
  };
  CHECK(refusal("\"format\": 4", "\"format\": 4") == "");
  CHECK(contains(refusal("\"format\": 4", "\"format\": 5"), "expected manifest format 2 to 4, found 5"));
  CHECK(contains(refusal("\"format\": 4", "\"format\": 1"), "expected manifest format 2 to 4, found 1"));
  // What no check of the contents can see.
  CHECK(refusal("\"commit\":\"", "\"commit\":\"0").empty());
  CHECK(refusal("\"commit\":\"", "\"commit\":\"0", false).find("expected it to end with ") !=
        std::string::npos);
  const size_t begin = text.find("{\"name\":\"model.layers.0.mlp.experts.w2\"");
  REQUIRE(begin != std::string::npos);
  const std::string line = text.substr(begin, text.find('\n', begin) - begin);
  // Its own line and the comma before or behind it.
  const std::string without = line.ends_with(',') ? line + "\n" : ",\n" + line;
  CHECK(refusal(without, "").find("expected the source of") != std::string::npos);
}

TEST_CASE("an artifact in no layout with a manifest that is damaged or another's is no source either") {
  const Scratch scratch;
  const fs::path manifest = scratch / "artifact/twofour.json";
  convert(golden("modelopt-qwen3"), scratch / "artifact", rule_to("nvfp4"));
  const std::string text = read_text(manifest);
  std::string tampered = text;
  tampered.replace(tampered.find("\"commit\":\""), 10, "\"commit\":\"0");
  const auto refusal = [&](const std::string& layout, const std::string& changed) {
    write_text(manifest, changed);
    return message_of([&] { convert(scratch / "artifact", scratch / "out", rule_to(layout)); });
  };
  for (const char* layout : {"nvfp4", "prune", "bf16", "v7"}) {
    CAPTURE(std::string(layout));
    CHECK(contains(refusal(layout, text.substr(0, 100)), "twofour.json: not JSON: error at byte 101"));
    CHECK(contains(refusal(layout, R"({"a": 1})"), "twofour.json: expected a twofour manifest"));
    CHECK(contains(refusal(layout, tampered), "twofour.json: expected it to end with "));
    CHECK(!fs::exists(scratch / "out"));
    CHECK(refusal(layout, text).empty());
    fs::remove_all(scratch / "out");
  }
}

TEST_CASE("a single file is converted into a directory beside it") {
  const Scratch scratch;
  Tensors tensors;
  add_modelopt(tensors, "model.layers.0.mlp.down_proj", random_matrix(16, 32, 1));
  fs::create_directories(scratch / "dir");
  write_safetensors(scratch / "dir/one.safetensors", tensors);
  OneRule recipe;
  recipe.to = "nvfp4";
  const Checkpoint source = open_source(scratch / "dir/one.safetensors");
  Progress progress;
  convert(source, make_plan(source, recipe), scratch / "dir/out", {}, progress);
  CHECK(fs::exists(scratch / "dir/out/twofour.json"));
}

}  // namespace artifact_view_test
