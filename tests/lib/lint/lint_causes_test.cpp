#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lib/io/file.h"
#include "lib/lint/bytes/downloads.h"
#include "lib/lint/lint.h"
#include "tests/support/faults/faults.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace lint_causes_test {

using namespace twofour;
namespace fs = std::filesystem;

namespace {

LintReport lint_headers(const fs::path& path, LintLevels levels = {}) {
  Progress progress;
  return lint(path, {.headers_only = true, .levels = std::move(levels)}, progress);
}

/// A line a finding, those of consequences indented.
std::string text_of(const std::vector<LintFinding>& findings, const std::string& indent = "") {
  std::string text;
  for (const LintFinding& f : findings) {
    text += fmt::format("{}{}: {}\n", indent, lint_rules()[f.rule].id, f.where());
    text += text_of(f.consequences, indent + "  ");
  }
  return text;
}

std::set<std::string> rules_of(const std::vector<LintFinding>& findings) {
  std::set<std::string> rules;
  for (const LintFinding& f : findings) rules.insert(lint_rules()[f.rule].id);
  return rules;
}

void replace(const fs::path& path, const std::string& text) {
  fs::remove(path);
  write_text(path, text);
}

const std::string kExpert = "model.layers.1.mlp.experts.3.";
const std::string kExpertFile = "model-experts.safetensors";
const std::string kLfs =
    "version https://git-lfs.github.com/spec/v1\noid "
    "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daa\n"
    "size 4976698672\n";

/// A sound checkpoint with an expert in a file of its own.
Save checkpoint() {
  Save save = sound_checkpoint();
  Tensors own;
  for (auto& [file, tensors] : save.shards) {
    for (const TensorData& t : tensors)
      if (t.name.starts_with(kExpert)) own.push_back(t);
    std::erase_if(tensors, [](const TensorData& t) { return t.name.starts_with(kExpert); });
  }
  save.shards[kExpertFile] = own;
  return save;
}

}  // namespace

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

TEST_CASE("pointers in place of all weights are one finding that says what to do") {
  const Save save = checkpoint();
  const Scratch scratch;
  const fs::path path = scratch / "checkpoint";
  write_save(save, path);
  size_t files = 0;
  for (const auto& [file, tensors] : save.shards) {
    replace(path / file, kLfs);
    ++files;
  }
  for (const char* file : {"tokenizer.json", "config.json"}) {
    replace(path / file, kLfs);
    ++files;
  }
  const LintReport report = lint_headers(path);
  CAPTURE(text_of(report.findings));
  REQUIRE(report.findings.size() == 1);
  CHECK(rules_of(report.findings) == std::set<std::string>{"not-downloaded"});
  CHECK(
      contains(report.findings[0].message, "found a Git LFS pointer to 4976698672 bytes: run git lfs pull"));
  const auto& below = report.findings[0].consequences;
  CHECK(static_cast<size_t>(std::count_if(below.begin(), below.end(), [&](const LintFinding& f) {
          return f.rule == report.findings[0].rule;
        })) == files - 1);
}

TEST_CASE("what servers and version control put in place of files is named") {
  const std::pair<const char*, const char*> cases[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
       "a Git LFS pointer to 12 bytes"},
      {"# xet version 0\nfilesize = 12\nhash = '00'\n", "a Xet pointer"},
      {"/annex/objects/SHA256E-s12--00.safetensors\n", "a git-annex pointer"},
      {"<!DOCTYPE html><html></html>", "an HTML page"},
      {"\n <HTML>\n<body>", "an HTML page"},
      {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", "an XML document"},
      {"{\"error\":\"Repository not found\"}", "a message of a server"},
      {"{\"message\": \"Not Found\", \"status\": 404, \"documentation_url\": \"x\"}",
       "a message of a server"},
      {"Entry not found", "a message of a server"},
      {"Access to model x/y is restricted. You must be authenticated to access it.", "a message of a server"},
      {"Invalid username or password.", "a message of a server"},
      {"", "an empty file"}};
  const Save save = checkpoint();
  for (const auto& [text, found] : cases) {
    for (const std::string file :
         {kExtraFile, "config.json", "tokenizer.json", "model.safetensors.index.json"}) {
      CAPTURE(text);
      CAPTURE(file);
      const Scratch scratch;
      write_save(save, scratch / "checkpoint");
      replace(scratch / "checkpoint" / file, text);
      const LintReport report = lint_headers(scratch / "checkpoint");
      CAPTURE(text_of(report.findings));
      REQUIRE(report.findings.size() == 1);
      CHECK(report.findings[0].file == file);
      CHECK(rules_of(report.findings) == std::set<std::string>{"not-downloaded"});
      CHECK(contains(report.findings[0].message, found));
    }
  }
  // What looks like it and is not.
  const Scratch scratch;
  for (const char* text : {"{\"error\": \"x\", \"model_type\": \"y\"}", "{}", "[\"error\"]", "hello"}) {
    CAPTURE(text);
    replace(scratch / "a.json", text);
    CHECK(!find_placeholder(scratch / "a.json"));
  }
  write_text(scratch / "__init__.py", "");
  CHECK(!find_placeholder(scratch / "__init__.py"));
  CHECK(!find_placeholder(scratch / "nothing"));
}

TEST_CASE("a download that was interrupted is the cause of what it left") {
  const Save save = checkpoint();
  const std::string file = kExpertFile;
  const std::string hash(64, 'a');
  const std::string parts[] = {file + ".incomplete",
                               file + ".part",
                               file + ".crdownload",
                               file + ".tmp",
                               "." + file + ".Xy12ab",
                               ".cache/huggingface/download/" + file + "." + hash + ".incomplete",
                               ".cache/huggingface/download/aBc123=." + hash + ".incomplete"};
  for (const std::string& part : parts) {
    CAPTURE(part);
    const Scratch scratch;
    const fs::path path = scratch / "checkpoint";
    write_save(save, path);
    fs::create_directories((path / part).parent_path());
    fs::rename(path / file, path / part);
    const LintReport report = lint_headers(path);
    CAPTURE(text_of(report.findings));
    REQUIRE(report.findings.size() == 1);
    CHECK(rules_of(report.findings) == std::set<std::string>{"unfinished-download"});
    CHECK(rules_of(report.findings[0].consequences).contains("missing-shard"));
    CHECK(rules_of(report.findings[0].consequences).contains("experts-missing"));
    CHECK(contains(report.findings[0].message, part));
  }
}

TEST_CASE("a file that aria2 has not filled is an unfinished download, whatever its size") {
  const Save save = checkpoint();
  for (const bool cut : {false, true}) {
    const Scratch scratch;
    const fs::path path = scratch / "checkpoint";
    write_save(save, path);
    write_text(path / (std::string(kExtraFile) + ".aria2"), "control");
    if (cut) fs::resize_file(path / kExtraFile, fs::file_size(path / kExtraFile) - 4);
    const LintReport report = lint_headers(path);
    CAPTURE(text_of(report.findings));
    REQUIRE(report.findings.size() == 1);
    CHECK(report.findings[0].where() == kExtraFile);
    CHECK(rules_of(report.findings) == std::set<std::string>{"unfinished-download"});
    CHECK(rules_of(report.findings[0].consequences) ==
          (cut ? std::set<std::string>{"file-size"} : std::set<std::string>{}));
  }
}

TEST_CASE("zeros up to the end of a weight file are one finding") {
  const Scratch scratch;
  const fs::path path = scratch / "checkpoint";
  const Save save = checkpoint();
  const std::string file = save.shards.begin()->first;
  for (const double share : {0.0, 0.4, 0.6, 0.95}) {
    CAPTURE(share);
    fs::remove_all(path);
    write_save(save, path);
    const auto size = fs::file_size(path / file);
    fs::resize_file(path / file, static_cast<uintmax_t>(share * static_cast<double>(size)));
    fs::resize_file(path / file, size);
    Progress progress;
    const LintReport report = lint(path, {}, progress);
    CAPTURE(text_of(report.findings));
    REQUIRE(report.findings.size() == 1);
    CHECK(report.findings[0].where() == file);
    CHECK(rules_of(report.findings) ==
          std::set<std::string>{share == 0 ? "not-downloaded" : "unfinished-download"});
  }
}

TEST_CASE("weights that are all unfinished are a finding") {
  const Scratch scratch;
  write_text(scratch / "config.json", "{}");
  CHECK_THROWS_AS(lint_headers(scratch.path), Error);
  write_text(scratch / "model.safetensors.part", "x");
  const LintReport report = lint_headers(scratch.path);
  CAPTURE(text_of(report.findings));
  CHECK(report.failed());
  CHECK(rules_of(report.findings).contains("unfinished-download"));
  CHECK(report.files == 0);
}

TEST_CASE("parts of downloads beside whole files are notes") {
  const Scratch scratch;
  const fs::path path = scratch / "snapshots/abc";
  write_save(sound_checkpoint(), path);
  fs::create_directories(path / ".cache/huggingface/download");
  fs::create_directories(scratch / "blobs");
  for (const std::string& part :
       {std::string(kExtraFile) + ".part", std::string("other.safetensors.incomplete"),
        std::string("tokenizer.json.tmp"), std::string("notes.txt.tmp"),
        ".cache/huggingface/download/aBc=." + std::string(40, '1') + ".incomplete",
        "../../blobs/" + std::string(64, '2') + ".incomplete"}) {
    CAPTURE(part);
    write_text(path / part, "x");
    const LintReport report = lint_headers(path);
    CAPTURE(text_of(report.findings));
    CHECK(!report.failed());
    REQUIRE(report.findings.size() == 1);
    CHECK(report.findings[0].file == part);
    fs::remove(path / part);
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
    reporter.add("module-shape", "a", name, "", {.key = "num_attention_heads", .value = "32"});
  }
  reporter.add("module-shape", "a", "model.layers.3.mlp.up_proj", "", {.key = "hidden_size", .value = "7"});
  reporter.add("module-shape", "a", "model.layers.5.mlp.up_proj", "", {.key = "hidden_size", .value = "8"});
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
      reporter.add("implausible-weights", "a", name, "expected 8, found " + std::to_string(300 + e));
    }
    reporter.add("implausible-weights", "a", "model.layers.2.mlp.up_proj", "expected more than nothing");
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
  reporter.add("odd-setting", "config.json", "num_experts", "expected a whole number");
  reporter.add("experts-extra", "", "m.experts", "", {.key = "text_config.num_experts", .value = "8"});
  reporter.add("bad-global-scale", "a", "m.q_proj.weight_scale_2", "");
  reporter.add("unequal-global-scales", "", "m", "");
  reporter.add("unequal-global-scales", "", "n", "");
  reporter.add("amax-mismatch", "a", "m.q_proj.weight", "");
  reporter.add("zero-weights", "a", "x.y", "", {.cause = "two-weights"});
  reporter.add("two-weights", "b", "x.y", "");
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
  reporter.add("amax-mismatch", "a", "x.y", "", {.cause = "zero-scale"});
  reporter.add("zero-scale", "a", "x.y", "", {.cause = "amax-mismatch"});
  reporter.add("not-finite", "a", "z", "", {.cause = "no-such-rule"});
  LintReport report;
  reporter.move_to(report);
  CHECK(report.findings.size() == 3);
}

}  // namespace lint_causes_test
