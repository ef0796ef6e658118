#include <doctest/doctest.h>

#include <algorithm>

#include "formats/json.h"
#include "lib/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_old_artifact_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kFolder = std::string(TWOFOUR_GOLDEN_DIR) + "/artifacts/";

/// An artifact that 568ef9b wrote, and what its commands said of it.
struct OldArtifact {
  std::string name, source;
  int lint;        ///< 1: what the source has, too (gate and up with unequal global scales)
  int diff;        ///< against the source; 1: the layout or the format changed weights
  bool is_layout;  ///< layers that `run` takes
  bool is_nvfp4;   ///< holds NVFP4, pruned or not, so that it can be a source of conversions
};
const std::vector<OldArtifact> kArtifacts = {
    {"v7", "modelopt", 0, 1, true, true},
    {"v7-linear", "modelopt", 0, 1, true, true},
    {"v7-packed", "modelopt", 0, 1, true, true},
    {"v7-compressed-tensors", "compressed-tensors", 0, 1, true, true},
    {"g8", "modelopt", 0, 1, true, true},
    {"nvfp4-compressed-tensors", "modelopt", 1, 0, false, true},
    {"nvfp4-modelopt", "compressed-tensors", 1, 0, false, true},
    {"fp8-compressed-tensors-tensor", "modelopt", 0, 1, false, false},
    {"fp8-compressed-tensors-row", "modelopt", 0, 1, false, false},
    {"fp8-compressed-tensors-block", "modelopt", 0, 1, false, false},
    {"fp8-modelopt-tensor", "modelopt", 0, 1, false, false},
    {"fp8-deepseek", "modelopt", 0, 1, false, false},
    {"bf16", "modelopt", 0, 1, false, false},
    {"prune", "modelopt", 1, 1, false, true},
    {"prune-paired", "modelopt", 1, 1, false, true},
    {"quantize-modelopt", "bf16", 0, 1, false, true},
    {"quantize-compressed-tensors", "bf16", 0, 1, false, true},
};

void check_exit(int expected, const std::vector<std::string>& arguments) {
  const Outcome outcome = run_program(arguments);
  CAPTURE(arguments);
  CHECK_MESSAGE(outcome.code == expected, outcome.out << outcome.err);
}

/// A copy that a test may change.
std::string copy_of(const Scratch& scratch, const std::string& artifact, const std::string& name) {
  fs::copy(artifact, scratch / name, fs::copy_options::recursive);
  return (scratch / name).string();
}

void flip_last_bit(const fs::path& file) { flip_bit(file, fs::file_size(file) - 1, 0); }

}  // namespace

TEST_CASE("the golden artifacts are of format 2, all of them are in the table") {
  size_t folders = 0;
  for (const auto& entry : fs::directory_iterator(kFolder)) folders += entry.is_directory();
  CHECK(folders == kArtifacts.size() + 1);  // and `source`
  for (const OldArtifact& a : kArtifacts) {
    const Json manifest = parse_json(a.name, read_text(kFolder + a.name + "/twofour.json"));
    CHECK(manifest["format"] == 2);
    CHECK(manifest["tool"]["commit"] == "568ef9b5a1dc");
  }
}

TEST_CASE("artifacts of format 2 stay readable: inspect, lint, diff, validate, run") {
  for (const OldArtifact& a : kArtifacts) {
    CAPTURE(a.name);
    const Scratch scratch;
    const std::string artifact = kFolder + a.name, source = kFolder + "source/" + a.source;
    check_exit(0, {"inspect", artifact});
    check_exit(0, {"inspect", artifact, "--stats"});
    check_exit(a.lint, {"lint", artifact});
    check_exit(a.diff, {"diff", source, artifact});
    check_exit(0, {"diff", artifact, artifact});
    check_exit(0, {"validate", artifact});
    check_exit(0, {"validate", artifact, "--source", source});
    const std::string output = (scratch / "output.safetensors").string();
    check_exit(a.is_layout ? 0 : 2, {"run", artifact, "--layer", "0", "--random", "3", "-o", output});
  }
}

TEST_CASE("artifacts of format 2 stay sources: of conversions back, of prune and of quantize") {
  for (const OldArtifact& a : kArtifacts) {
    CAPTURE(a.name);
    const Scratch scratch;
    const auto path = [&](const char* name) { return (scratch / name).string(); };
    const std::string artifact = kFolder + a.name;
    if (!a.is_nvfp4) {
      check_exit(0, {"quantize", artifact, path("nvfp4")});
      check_exit(0, {"validate", path("nvfp4"), "--source", artifact});
      continue;
    }
    check_exit(0, {"convert", artifact, path("nvfp4"), "--to", "nvfp4"});
    check_exit(0, {"diff", artifact, path("nvfp4")});
    check_exit(0, {"validate", path("nvfp4"), "--source", artifact});
    check_exit(0, {"convert", artifact, path("bf16"), "--to", "bf16"});
    check_exit(0, {"convert", artifact, path("v7"), "--to", "v7"});
    check_exit(0, {"validate", path("v7"), "--source", artifact});
    check_exit(0, {"prune", artifact, path("pruned")});
  }
}

TEST_CASE("the way back from an artifact of format 2 is exact") {
  for (const std::string name : {"nvfp4-compressed-tensors", "nvfp4-modelopt"}) {
    CAPTURE(name);
    const Scratch scratch;
    const std::string back = (scratch / "back").string();
    const auto a =
        std::find_if(kArtifacts.begin(), kArtifacts.end(), [&](auto& x) { return x.name == name; });
    check_exit(0, {"convert", kFolder + name, back, "--to", "nvfp4"});
    CHECK((read_tensors(back) == read_tensors(kFolder + "source/" + a->source)));
  }
}

TEST_CASE("hashes in a manifest of format 2 are checked, and --force replaces what it describes") {
  const Scratch scratch;
  for (const OldArtifact& a : kArtifacts) {
    CAPTURE(a.name);
    const std::string copy = copy_of(scratch, kFolder + a.name, a.name);
    flip_last_bit(fs::path(copy) / "model-00001-of-00001.safetensors");
    check_exit(1, {"validate", copy});
    check_exit(1, {"validate", copy, "--source", kFolder + "source/" + a.source});
  }
  const std::string copy = copy_of(scratch, kFolder + "v7", "replaced"), source = kFolder + "source/modelopt";
  check_exit(2, {"convert", source, copy, "--to", "g8"});
  check_exit(0, {"convert", source, copy, "--to", "g8", "--force"});
  check_exit(0, {"validate", copy, "--source", source});
}

}  // namespace cli_old_artifact_test
