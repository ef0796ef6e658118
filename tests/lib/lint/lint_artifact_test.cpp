#include <doctest/doctest.h>

#include <cstring>
#include <set>

#include "formats/safetensors.h"
#include "lib/base/io/file.h"
#include "lib/lint/lint.h"
#include "tests/support/conversion.h"
#include "tests/support/faults/faults.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace lint_artifact_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

LintReport lint_quietly(const fs::path& path, LintOptions options = {}) {
  Progress progress;
  return lint(path, options, progress);
}

std::set<std::string> fired(const LintReport& report) {
  std::set<std::string> ids;
  for (const LintFinding& f : report.findings) ids.insert(lint_rules()[f.rule].id);
  return ids;
}

std::string text_of(const LintReport& report) {
  std::string text;
  for (const LintFinding& f : report.findings)
    text += std::string(lint_rules()[f.rule].id) + ": " + f.where() + ": " + f.message + "\n";
  return text;
}

/// An artifact of the sound checkpoint.
struct Artifact {
  explicit Artifact(const OneRule& recipe) {
    write_save(sound_checkpoint(), scratch / "source");
    convert(scratch / "source", path, recipe);
  }
  /// Sets bytes of a tensor where it stands in its file.
  void set(const std::string& tensor, uint64_t offset, const std::function<uint8_t(uint8_t)>& change) {
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::string text = read_text(entry.path());
      uint64_t length = 0;
      std::memcpy(&length, text.data(), sizeof(length));
      const auto header = parse_safetensors_header("file", std::string_view(text).substr(8, length),
                                                   text.size() - 8 - length);
      for (const TensorInfo& t : header.tensors) {
        if (t.name != tensor) continue;
        char& byte = text[8 + length + t.begin + offset];
        byte = static_cast<char>(change(static_cast<uint8_t>(byte)));
        fs::remove(entry.path());
        write_text(entry.path(), text);
        return;
      }
    }
    FAIL("no tensor " << tensor);
  }
  void set(const std::string& tensor, uint64_t offset, uint8_t value) {
    set(tensor, offset, [=](uint8_t) { return value; });
  }
  /// The findings. The changed byte breaks a hash, too, which has a test of its own.
  LintReport report() const { return lint_quietly(path, {.levels = {{"manifest-hash", std::nullopt}}}); }

  Scratch scratch;
  fs::path path = scratch / "artifact";
};

OneRule recipe_to(const char* layout) {
  OneRule recipe;
  recipe.to = layout;
  return recipe;
}

const std::string kBlock = "model.layers.1.mlp.experts";

}  // namespace

TEST_CASE("nothing is found in what twofour writes") {
  for (const char* layout : {"v7", "v7-packed", "g8", "nvfp4", "bf16", "fp8", "mxfp8", "mxfp6", "mxfp4"}) {
    CAPTURE(layout);
    const Artifact artifact(recipe_to(layout));
    const LintReport report = lint_quietly(artifact.path, {.jobs = 2});
    CAPTURE(text_of(report));
    CHECK(!report.failed());
    // TensorRT-LLM has no loader for experts of FP8 with a scale a row, which is a note.
    CHECK(fired(report).size() == (layout == std::string("fp8") ? 1 : 0));
  }
  for (const char* pattern : {"2:4", "4:8-paired"}) {
    CAPTURE(pattern);
    OneRule recipe = recipe_to("prune");
    recipe.pattern = pattern;
    const Artifact artifact(recipe);
    CHECK(text_of(lint_quietly(artifact.path)) == "");
  }
}

TEST_CASE("the config of an artifact that engines load is held against its tensors") {
  const auto rules_with = [](const OneRule& recipe, const char* key, const Json& value) {
    const Artifact artifact(recipe);
    Json config = Json::parse(read_text(artifact.path / "config.json"));
    Json& entry = config["quantization_config"];
    REQUIRE(entry.contains(key));
    entry[key] = value;
    write_text(artifact.path / "config.json", config.dump());
    return fired(artifact.report());
  };
  OneRule blocks = recipe_to("fp8");
  blocks.dialect = "deepseek";
  blocks.granularity = "block";
  blocks.odd_blocks = "write";
  CHECK(rules_with(blocks, "weight_block_size", {16, 16}) == std::set<std::string>{"config-group-size"});
  CHECK(rules_with(blocks, "weight_block_size", {128, 128}).empty());
  CHECK(rules_with(recipe_to("mxfp8"), "quant_method", "fp8").contains("config-format"));
}

TEST_CASE("a folded artifact carries a note") {
  const Scratch scratch;
  convert(fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-mixtral-uneven" / "src", scratch / "artifact");
  const LintReport report = lint_quietly(scratch / "artifact");
  CHECK(fired(report) == std::set<std::string>{"folded"});
  CHECK(!report.failed());
}

TEST_CASE("an artifact that lost its manifest is found, a checkpoint that any engine loads needs none") {
  for (const char* layout : {"v7", "v7-packed", "g8", "nvfp4"}) {
    CAPTURE(layout);
    const Artifact artifact(recipe_to(layout));
    REQUIRE(fs::remove(artifact.path / "twofour.json"));
    const bool engines_load_it = layout == std::string("nvfp4");
    CHECK(fired(lint_quietly(artifact.path)) ==
          (engines_load_it ? std::set<std::string>{} : std::set<std::string>{"no-manifest"}));
    write_text(artifact.path / ".twofour-unfinished", "");
    CHECK(fired(lint_quietly(artifact.path)) == std::set<std::string>{"unfinished-output"});
  }
}

TEST_CASE("any changed bit breaks a hash of the manifest") {
  std::mt19937 random(5);
  for (const char* layout : {"v7", "g8"}) {
    Artifact artifact(recipe_to(layout));
    const std::string part = layout == std::string("v7") ? ".w2_comp" : ".w13_weight";
    artifact.set(kBlock + part, random() % 2048,
                 [&](uint8_t b) { return static_cast<uint8_t>(b ^ 1u << random() % 8); });
    const LintReport report = lint_quietly(artifact.path);
    CHECK(fired(report) == std::set<std::string>{"manifest-hash"});
    REQUIRE(report.findings.size() == 1);
    CHECK(report.findings[0].name == kBlock + part);
  }
  Artifact artifact(recipe_to("nvfp4"));
  artifact.set("model.layers.0.self_attn.o_proj.weight_packed", random() % 2048,
               [](uint8_t b) { return static_cast<uint8_t>(b ^ 0x80); });
  CHECK(fired(lint_quietly(artifact.path)) == std::set<std::string>{"manifest-hash"});

  // Other files, missing ones, and a manifest that is none.
  write_text(artifact.path / "tokenizer_config.json", "{}");
  fs::remove(artifact.path / "generation_config.json");
  LintReport report = lint_quietly(artifact.path);
  CHECK(fired(report) == std::set<std::string>{"manifest-hash"});
  CHECK(report.findings.size() == 3);
  write_text(artifact.path / "twofour.json", R"({"format": 1})");
  CHECK(fired(lint_quietly(artifact.path)) == std::set<std::string>{"bad-manifest"});
}

TEST_CASE("illegal metadata is found, each of the ten nibbles") {
  Artifact v7(recipe_to("v7")), packed(recipe_to("v7-packed"));
  CHECK(text_of(v7.report()) == "");
  const uint64_t row = 4 * 64;  // of v7-packed's w13: N = 64
  for (unsigned nibble = 0; nibble < 16; ++nibble) {
    const bool legal = nibble == 4 || nibble == 8 || nibble == 9 || nibble >= 12;
    const auto bad = legal && nibble != 15 ? std::set<std::string>{} : std::set<std::string>{"meta-nibbles"};
    CAPTURE(nibble);
    v7.set(kBlock + ".w13_meta", 1001, static_cast<uint8_t>(0x40 | nibble));
    CHECK(fired(v7.report()) == bad);
    v7.set(kBlock + ".w13_meta", 1001, static_cast<uint8_t>(nibble << 4 | 0xE));
    CHECK(fired(v7.report()) == bad);
    packed.set(kBlock + ".w13_packed", 5 * row + 2 * 64 + 63, static_cast<uint8_t>(0x90 | nibble));
    CHECK(fired(packed.report()) == bad);
  }
}

TEST_CASE("copies of block scales must agree") {
  Artifact artifact(recipe_to("v7-packed"));
  artifact.set(kBlock + ".w2_packed", 7 * 4 * 64 + 3 * 64 + 17,
               [](uint8_t b) { return static_cast<uint8_t>(b ^ 1); });
  const LintReport report = artifact.report();
  CHECK(fired(report) == std::set<std::string>{"scale-copies"});
  CHECK(report.findings[0].message ==
        "expected equal copies, found 1 bytes that differ, the first at byte 2001");
}

TEST_CASE("padding of g8 must be zero") {
  // N = 64 of 128 rows: rows 64 to 127 of a tile are bytes 8 to 15 of each 16.
  Artifact artifact(recipe_to("g8"));
  artifact.set(kBlock + ".w13_scale", 512 + 16 * 5 + 9, 0x38);
  const LintReport report = artifact.report();
  CHECK(fired(report) == std::set<std::string>{"padding"});
  CHECK(report.findings[0].message == "expected zeros, found 1 other bytes, the first at byte 601");
}

TEST_CASE("block scales of every layout are checked") {
  for (const auto& [layout, tensor, offset] : {std::tuple{"v7", ".w13_scale", 100},
                                               {"g8", ".w13_scale", 512},
                                               {"v7-packed", ".w13_packed", 3 * 64 + 1}}) {
    CAPTURE(layout);
    Artifact artifact(recipe_to(layout));
    artifact.set(kBlock + tensor, static_cast<uint64_t>(offset), 0x7F);
    std::set<std::string> ids = fired(artifact.report());
    ids.erase("scale-copies");  // the other copy is sound
    CHECK(ids == std::set<std::string>{"bad-block-scale"});
  }
}

TEST_CASE("a claim to be pruned is held against every group") {
  for (const char* pattern : {"2:4", "4:8-paired"}) {
    CAPTURE(pattern);
    OneRule recipe = recipe_to("prune");
    recipe.pattern = pattern;
    Artifact artifact(recipe);
    // Six codes of a group of eight.
    for (uint64_t i = 0; i < 3; ++i) artifact.set(kBlock + ".5.up_proj.weight", 4 * 77 + i, 0x21);
    const LintReport report = artifact.report();
    CHECK(fired(report) == std::set<std::string>{"not-2-4"});
    REQUIRE(report.findings.size() == 1);
    CHECK(report.findings[0].name == kBlock + ".5.up_proj.weight");
    CHECK(report.findings[0].message.ends_with(
        "found 1 of 256 groups of eight that are not, the first at byte 308"));
  }
}

}  // namespace lint_artifact_test
