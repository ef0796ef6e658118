#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lib/base/io/file.h"
#include "lib/lint/bytes/downloads.h"
#include "lib/lint/lint.h"
#include "tests/support/lint_words.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace lint_causes_test {

using namespace twofour;
using namespace twofour::lint_words;
namespace fs = std::filesystem;

TEST_CASE("what a missing weight file held is missed below the finding about it") {
  const Save save = checkpoint();
  const Scratch scratch;
  const std::string file = kExpertFile;
  write_save(save, scratch / "checkpoint");
  fs::remove(scratch / "checkpoint" / file);
  const LintReport report = lint_headers(scratch / "checkpoint");
  CAPTURE(text_of(report.findings));
  REQUIRE(report.findings.size() == 1);
  CHECK(rules_of(report.findings) == std::set<std::string>{"missing-shard"});
  CHECK(report.count(Severity::kError) == 1);
  CHECK(report.consequences() == report.findings[0].consequences.size());
  CHECK(rules_of(report.findings[0].consequences).contains("experts-missing"));
}

TEST_CASE("each weight file that can be missing is one cause") {
  const Save save = checkpoint();
  const Scratch scratch;
  for (const auto& [file, tensors] : save.shards) {
    for (const bool pointer : {false, true}) {
      CAPTURE(file);
      fs::remove_all(scratch / "checkpoint");
      write_save(save, scratch / "checkpoint");
      fs::remove(scratch / "checkpoint" / file);
      if (pointer) write_text(scratch / "checkpoint" / file, kLfs);
      const LintReport report = lint_headers(scratch / "checkpoint");
      CAPTURE(text_of(report.findings));
      REQUIRE(report.findings.size() == 1);
      CHECK(report.findings[0].file == file);
    }
  }
}

TEST_CASE("a missing weight file hides nothing that another one lacks") {
  Save save = checkpoint();
  const Scratch scratch;
  const std::string file = kExpertFile, other = "model.layers.0.mlp.experts.5.";
  save.erase_below(other + "down_proj.");
  write_save(save, scratch / "checkpoint");
  fs::remove(scratch / "checkpoint" / file);
  const LintReport report = lint_headers(scratch / "checkpoint");
  CAPTURE(text_of(report.findings));
  REQUIRE(report.findings.size() == 2);
  CHECK(report.findings[1].name == other + "down_proj");
}

TEST_CASE("a cause of lower severity, or one that is off, takes nothing in") {
  const Save save = checkpoint();
  const Scratch scratch;
  write_save(save, scratch / "checkpoint");
  fs::remove(scratch / "checkpoint" / kExpertFile);
  for (const auto& level : {std::optional(Severity::kNote), std::optional<Severity>()}) {
    const LintReport report = lint_headers(scratch / "checkpoint", {{"missing-shard", level}});
    CAPTURE(text_of(report.findings));
    CHECK(report.failed());
    CHECK(rules_of(report.findings).contains("experts-missing"));
  }
}

TEST_CASE("an index of another save is one finding") {
  Save save = checkpoint();
  const Scratch scratch;
  const fs::path path = scratch / "checkpoint";
  write_save(save, path);
  const fs::path index = path / "model.safetensors.index.json";
  Json json = parse_json("index", read_text(index));
  for (int i = 0; i < 20; ++i) json["weight_map"]["model.gone." + std::to_string(i) + ".weight"] = kExtraFile;
  replace(index, format_json(json));
  const LintReport report = lint_headers(path);
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].consequences.size() == 19);
}

TEST_CASE("an expert that is missing is one finding, with the entries of the index that name it") {
  Save save = checkpoint();
  const Scratch scratch;
  const fs::path path = scratch / "checkpoint";
  write_save(save, path);
  const std::string index = read_text(path / "model.safetensors.index.json");
  save.erase_below(kExpert);
  write_save(save, path);
  replace(path / "model.safetensors.index.json", index);
  const LintReport report = lint_headers(path);
  CAPTURE(text_of(report.findings));
  REQUIRE(report.findings.size() == 1);
  CHECK(rules_of(report.findings) == std::set<std::string>{"experts-missing"});
  CHECK(rules_of(report.findings[0].consequences).contains("index-stale-tensor"));
}

TEST_CASE("findings with one key and one value that it would have to have are one") {
  LintReporter reporter;
  for (int layer = 0; layer < 12; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer) + ".self_attn.q_proj";
    reporter.add("module-shape", {"a", name}, "", {.key = "num_attention_heads", .value = "32"});
  }
  reporter.add("module-shape", {"a", "model.layers.3.mlp.up_proj"}, "", {.key = "hidden_size", .value = "7"});
  reporter.add("module-shape", {"a", "model.layers.5.mlp.up_proj"}, "", {.key = "hidden_size", .value = "8"});
  LintReport report;
  reporter.move_to(report);
  CHECK(report.findings.size() == 3);
  CHECK(report.consequences() == 11);
}

TEST_CASE("of many findings that say the same but for numbers one is the cause, of few each") {
  for (const size_t count : {15, 16}) {
    LintReporter reporter;
    for (size_t e = 0; e < count; ++e) {
      const std::string name = "model.layers.1.mlp.experts." + std::to_string(e) + ".up_proj";
      reporter.add("implausible-weights", {"a", name}, "expected 8, found " + std::to_string(300 + e));
    }
    reporter.add("implausible-weights", {"a", "model.layers.2.mlp.up_proj"}, "expected more than nothing");
    LintReport report;
    reporter.move_to(report);
    CHECK(report.findings.size() == (count == 16 ? 2 : 16));
    CHECK(report.findings[0].name == "model.layers.1.mlp.experts.0.up_proj");
    CHECK(report.consequences() == (count == 16 ? 15 : 0));
  }
}

TEST_CASE("an index of other files, or a file under another name, is one finding") {
  const Save save = checkpoint();
  const Scratch scratch;
  const fs::path path = scratch / "checkpoint";
  write_save(save, path);
  fs::rename(path / kExpertFile, path / "experts.safetensors");
  const LintReport report = lint_headers(path);
  CAPTURE(text_of(report.findings));
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].where() == kExpertFile);
  CHECK(rules_of(report.findings[0].consequences).contains("leftover-file"));
}

TEST_CASE("a check can state the cause, and a key that is wrong is the cause of what it promises") {
  LintReporter reporter;
  reporter.add("odd-setting", {"config.json", "num_experts"}, "expected a whole number");
  reporter.add("experts-extra", {"", "m.experts"}, "", {.key = "text_config.num_experts", .value = "8"});
  reporter.add("bad-global-scale", {"a", "m.q_proj.weight_scale_2"}, "");
  reporter.add("unequal-global-scales", {"", "m"}, "");
  reporter.add("unequal-global-scales", {"", "n"}, "");
  reporter.add("amax-mismatch", {"a", "m.q_proj.weight"}, "");
  reporter.add("zero-weights", {"a", "x.y"}, "", {.cause = "two-weights"});
  reporter.add("two-weights", {"b", "x.y"}, "");
  LintReport report;
  reporter.move_to(report);
  CHECK(text_of(report.findings) ==
        "two-weights: b: x.y\n"
        "  zero-weights: a: x.y\n"
        "odd-setting: config.json: num_experts\n"
        "  experts-extra: m.experts\n"
        "unequal-global-scales: n\n"
        "bad-global-scale: a: m.q_proj.weight_scale_2\n"
        "  unequal-global-scales: m\n"
        "  amax-mismatch: a: m.q_proj.weight\n");
}

TEST_CASE("findings that state each other as cause, or one that is not there, stay") {
  LintReporter reporter;
  reporter.add("amax-mismatch", {"a", "x.y"}, "", {.cause = "zero-scale"});
  reporter.add("zero-scale", {"a", "x.y"}, "", {.cause = "amax-mismatch"});
  reporter.add("not-finite", {"a", "z"}, "", {.cause = "no-such-rule"});
  LintReport report;
  reporter.move_to(report);
  CHECK(report.findings.size() == 3);
}

}  // namespace lint_causes_test
