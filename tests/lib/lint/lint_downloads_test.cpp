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

namespace lint_downloads_test {

using namespace twofour;
using namespace twofour::lint_words;
namespace fs = std::filesystem;

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
      {"{\"error\":\"Repository not found\"}", "a server's message"},
      {"{\"message\": \"Not Found\", \"status\": 404, \"documentation_url\": \"x\"}", "a server's message"},
      {"Entry not found", "a server's message"},
      {"Access to model x/y is restricted. You must be authenticated to access it.", "a server's message"},
      {"Invalid username or password.", "a server's message"},
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

}  // namespace lint_downloads_test
