#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/source/hub/sha.h"
#include "tests/support/conversion.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

/// Artifacts of older versions, and what e2686c9 said of them: see tests/golden/artifacts/README.md.

namespace cli_old_artifact_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kFolder = std::string(TWOFOUR_GOLDEN_DIR) + "/artifacts/";
const std::string kOut = "OUT", kCopy = "COPY";

struct OldVersion {
  std::string folder, commit;
  int format;
};
const std::vector<OldVersion> kVersions = {{"0.1.0", "568ef9b5a1dc", 2}, {"0.2.0", "e2686c9cf1f7", 3}};

std::set<std::string> artifacts_of(const OldVersion& version) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder + version.folder))
    names.insert(version.folder + "/" + entry.path().filename().string());
  return names;
}

/// An entry of outcomes.json.
struct HeldOutcome {
  std::string artifact;
  std::vector<std::string> words;
  int code;
  std::string tensors;  ///< of what was written; empty: nothing was, or a file
};

std::vector<HeldOutcome> held_outcomes() {
  std::vector<HeldOutcome> outcomes;
  for (const Json& entry : parse_json("outcomes.json", read_text(kFolder + "outcomes.json"))) {
    outcomes.push_back({entry["artifact"].get<std::string>(), entry["run"].get<std::vector<std::string>>(),
                        entry["code"].get<int>(), entry.value("tensors", "")});
  }
  return outcomes;
}

/// A word of a command with its place in the file system.
std::string placed(std::string word, const fs::path& scratch) {
  if (word == kOut || word == kCopy) return scratch / word;
  for (const char* folder : {"source/", "0.1.0/", "0.2.0/"}) {
    const size_t at = word.starts_with("from ") ? 5 : 0;
    if (word.substr(at).starts_with(folder)) word.insert(at, kFolder);
  }
  return word;
}

/// As make.py hashes them.
std::string hash_tensors(const fs::path& directory) {
  Sha256 hasher;
  for (const auto& [name, t] : read_tensors(directory)) {
    const std::string line = fmt::format("{} {} [{}]\n", name, dtype_name(t.dtype), fmt::join(t.shape, ", "));
    hasher.update({reinterpret_cast<const uint8_t*>(line.data()), line.size()});
    hasher.update(t.bytes);
  }
  return hasher.hex();
}

/// Exit codes of lint that are others today. 0.2.0 named no expert_dtype, so that SGLang reads FP8 experts as
/// MXFP4. A list of exclusions may name shared experts where there are none.
const std::map<std::string, int> kLintToday = {{"0.2.0/fp8-deepseek-v4", 1},
                                               {"0.2.0/fp8-deepseek-v4-e8m0", 1},
                                               {"0.2.0/quantize-deepseek-v4", 0},
                                               {"0.2.0/quantize-deepseek-v4-cast", 0},
                                               {"0.2.0/recipe-deepseek-v4", 0}};

/// One thread: teams of threads would take most of the time that tiny artifacts need.
Outcome check_exit(int expected, std::vector<std::string> words) {
  words.insert(words.end(), {"-j", "1"});
  const Outcome outcome = run_program(words);
  CHECK_MESSAGE(outcome.code == expected,
                fmt::format("{}\n{}{}", fmt::join(words, " "), outcome.out, outcome.err));
  return outcome;
}

}  // namespace

TEST_CASE("old artifacts are in the format of their version, and outcomes of each are held") {
  std::set<std::string> held;
  for (const HeldOutcome& o : held_outcomes()) held.insert(o.artifact);
  size_t artifacts = 0;
  for (const OldVersion& version : kVersions) {
    for (const std::string& name : artifacts_of(version)) {
      CAPTURE(name);
      const Json manifest = parse_json(name, read_text(kFolder + name + "/twofour.json"));
      CHECK(manifest["format"] == version.format);
      CHECK(manifest["tool"]["version"] == version.folder);
      CHECK(manifest["tool"]["commit"] == version.commit);
      CHECK(held.contains(name));
      ++artifacts;
    }
  }
  CHECK(artifacts == held.size());
}

TEST_CASE("old artifacts are read, proven and converted as they were") {
  for (const HeldOutcome& o : held_outcomes()) {
    const Scratch scratch;
    std::vector<std::string> words;
    for (const std::string& word : o.words) {
      if (word == kCopy) fs::copy(kFolder + o.artifact, scratch / kCopy, fs::copy_options::recursive);
      words.push_back(placed(word, scratch / ""));
    }
    const auto today = words[0] == "lint" ? kLintToday.find(o.artifact) : kLintToday.end();
    if (today != kLintToday.end()) CHECK(today->second != o.code);
    check_exit(today != kLintToday.end() ? today->second : o.code, words);
    if (o.tensors.empty()) continue;
    const fs::path out = scratch / kOut;
    CAPTURE(o.artifact);
    CAPTURE(o.words);
    REQUIRE(fs::exists(out));
    CHECK(hash_tensors(out) == o.tensors);
    check_exit(0, {"validate", out, "--source", kFolder + o.artifact, "--tokens", "1"});
  }
}

TEST_CASE("the text of a manifest is derived again from format 3 on") {
  const std::string source = kFolder + "source/modelopt";
  for (const OldVersion& version : kVersions) {
    const Outcome proof =
        check_exit(0, {"validate", kFolder + version.folder + "/v7", "--source", source, "--verbose"});
    const bool is_noted = (proof.out + proof.err).find("older-manifest") != std::string::npos;
    CHECK_MESSAGE(is_noted == (version.format < 3), proof.out << proof.err);
  }
}

TEST_CASE("a changed byte of an old artifact is found") {
  for (const OldVersion& version : kVersions) {
    for (const std::string& name : artifacts_of(version)) {
      CAPTURE(name);
      const Scratch scratch;
      const fs::path copy = scratch / "copy";
      fs::copy(kFolder + name, copy, fs::copy_options::recursive);
      for (const auto& entry : fs::directory_iterator(copy)) {
        if (entry.path().extension() == ".safetensors") flip_bit(entry.path(), fs::file_size(entry) - 1, 0);
      }
      check_exit(1, {"validate", copy});
    }
  }
}

TEST_CASE("--force, and nothing else, replaces an old artifact") {
  const std::string source = kFolder + "source/modelopt";
  for (const OldVersion& version : kVersions) {
    CAPTURE(version.folder);
    const Scratch scratch;
    const fs::path copy = scratch / "copy";
    fs::copy(kFolder + version.folder + "/v7", copy, fs::copy_options::recursive);
    check_exit(2, {"convert", source, copy, "--to", "g8"});
    check_exit(0, {"convert", source, copy, "--to", "g8", "--force"});
    check_exit(0, {"validate", copy, "--source", source});
  }
}

TEST_CASE("the way back from an old artifact is exact") {
  const std::map<std::string, std::string> sources = {
      {"0.1.0/nvfp4-compressed-tensors", "source/modelopt"},
      {"0.1.0/nvfp4-modelopt", "source/compressed-tensors"},
      {"0.2.0/nvfp4-compressed-tensors", "source/modelopt"},
      {"0.2.0/nvfp4-modelopt", "source/compressed-tensors"},
      {"0.2.0/g8-compressed-tensors", "source/compressed-tensors"}};
  for (const auto& [name, source] : sources) {
    CAPTURE(name);
    const Scratch scratch;
    check_exit(0, {"convert", kFolder + name, scratch / "back", "--to", "nvfp4"});
    CHECK((read_tensors(scratch / "back") == read_tensors(kFolder + source)));
  }
}

}  // namespace cli_old_artifact_test
