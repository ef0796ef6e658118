#include <doctest/doctest.h>
#include <fmt/format.h>

#include "formats/json.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/conversion.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_back_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

}  // namespace

TEST_CASE("there and back: every layout is a source of every command that reads a checkpoint") {
  for (const std::string layout : {"v7", "v7-packed", "g8"}) {
    CAPTURE(layout);
    const Scratch scratch;
    const std::string there = (scratch / "there").string();
    REQUIRE(run_program({"convert", kGolden, there, "--to", layout}).code == 0);
    const std::string pruned = (scratch / "pruned").string();
    REQUIRE(run_program({"prune", layout == "g8" ? there : kGolden, pruned}).code == 0);
    const ReadTensors expected = read_tensors(layout == "g8" ? kGolden : pruned);
    for (const std::string to : {"nvfp4", "bf16", "v7", "v7-packed", "g8"}) {
      CAPTURE(to);
      const std::string out = (scratch / to).string();
      const Outcome made = run_program({"convert", there, out, "--to", to, "--json"});
      REQUIRE_MESSAGE(made.code == 0, made.err);
      CHECK(parse_json("stdout", made.out)["layout"] == to);
      const Outcome proof = run_program({"validate", out, "--source", there, "--json"});
      CHECK_MESSAGE(proof.code == 0, proof.out);
      CHECK(parse_json("stdout", proof.out)["source_tensors"] == 58);
      CHECK(run_program({"validate", out}).code == 0);
      if (to == "nvfp4") CHECK((read_tensors(out) == expected));
    }
    const std::string again = (scratch / "pruned again").string();
    REQUIRE(run_program({"prune", there, again}).code == 0);
    CHECK((read_tensors(again) == read_tensors(pruned)));
    CHECK(run_program({"validate", again, "--source", there}).code == 0);
    const Outcome inspected = run_program({"inspect", there});
    CHECK(inspected.out.find("twofour artifact, layout " + layout) != std::string::npos);
  }
}

TEST_CASE("BF16 of an artifact is BF16 of the pruned source") {
  const Scratch scratch;
  const auto path = [&](const char* name) { return (scratch / name).string(); };
  REQUIRE(run_program({"prune", kGolden, path("pruned")}).code == 0);
  REQUIRE(run_program({"convert", path("pruned"), path("expected"), "--to", "bf16"}).code == 0);
  for (const char* layout : {"v7", "v7-packed"}) {
    REQUIRE(run_program({"convert", kGolden, path(layout), "--to", layout}).code == 0);
    const std::string out = path(layout) + "-bf16";
    REQUIRE(run_program({"convert", path(layout), out, "--to", "bf16"}).code == 0);
    CHECK((read_tensors(out) == read_tensors(path("expected"))));
  }
}

TEST_CASE("copies of a block scale that differ end a conversion and a proof with exit code 2") {
  const Scratch scratch;
  const std::string bad = (scratch / "bad").string(), out = (scratch / "out").string();
  REQUIRE(run_program({"convert", kGolden, bad, "--to", "v7-packed"}).code == 0);
  const std::string good = (scratch / "good").string();
  REQUIRE(run_program({"convert", bad, good, "--to", "nvfp4"}).code == 0);
  const std::string name = "model.layers.0.mlp.experts.w2_packed";
  const Checkpoint c = Checkpoint::open(bad);
  const size_t i = c.find(name).value();
  const int64_t n = c.tensors()[i].shape[2] / 4;
  // Expert 0, row 1 of its groups of eight inputs: the second copy of the first block scale of row 5.
  const uint64_t offset = c.tensors()[i].begin + static_cast<uint64_t>(4 * n + 3 * n + 5);
  flip_bit(fs::path(bad) / c.shard_of(i).name, c.shard_of(i).data_begin + offset, 0);
  const std::string where =
      fmt::format("{}: {}: expert 0, row 1, n 5: expected the b", c.shard_of(i).name, name);
  for (const char* to : {"nvfp4", "bf16", "v7", "g8"}) {
    const Outcome o = run_program({"convert", bad, out, "--to", to});
    CHECK(o.code == 2);
    CHECK_MESSAGE(o.err.starts_with("twofour: " + where), o.err);
    CHECK(!fs::exists(out));
  }
  const Outcome proof = run_program({"validate", good, "--source", bad});
  CHECK(proof.code == 2);
  CHECK_MESSAGE(proof.err.starts_with("twofour: " + where.substr(0, where.find(" the b"))), proof.err);
}

TEST_CASE("the dialect of an artifact's source is legal, and the default") {
  const Scratch scratch;
  const auto path = [&](const char* name) { return (scratch / name).string(); };
  REQUIRE(run_program({"convert", kGolden, path("g8"), "--to", "g8"}).code == 0);
  REQUIRE(run_program({"convert", path("g8"), path("own"), "--to", "nvfp4", "--dialect", "modelopt"}).code ==
          0);
  REQUIRE(run_program({"convert", path("g8"), path("default"), "--to", "nvfp4"}).code == 0);
  CHECK((read_tensors(path("own")) == read_tensors(path("default"))));
  REQUIRE(
      run_program({"convert", path("g8"), path("other"), "--to", "nvfp4", "--dialect", "compressed-tensors"})
          .code == 0);
  CHECK(read_tensors(path("other")).size() == read_tensors(path("own")).size());
  // A checkpoint that came of it is one like any other, and copied.
  REQUIRE(run_program({"convert", path("own"), path("x"), "--to", "nvfp4", "--dialect", "modelopt"}).code ==
          0);
  CHECK((read_tensors(path("x")) == read_tensors(path("own"))));
}

TEST_CASE("folded gate and up are a warning on the way back") {
  const std::string uneven = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-mixtral-uneven/src";
  const Scratch scratch;
  const std::string g8 = (scratch / "g8").string(), out = (scratch / "out").string();
  REQUIRE(run_program({"convert", uneven, g8, "--to", "g8"}).code == 0);
  const Outcome dry = run_program({"convert", g8, out, "--to", "nvfp4", "--dry-run"});
  CHECK(dry.code == 0);
  CHECK(dry.err.find("folded-source") != std::string::npos);
  CHECK(!fs::exists(out));
  CHECK(run_program({"convert", g8, out, "--to", "nvfp4"}).err.find("folded-source") != std::string::npos);
}

}  // namespace cli_back_test
