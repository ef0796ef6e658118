#include <doctest/doctest.h>

#include "formats/json.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_prune_test {

using namespace twofour;

namespace {

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

}  // namespace

TEST_CASE("prune, inspect and validate --source, end to end") {
  for (const std::string pattern : {"2:4", "4:8-paired"}) {
    CAPTURE(pattern);
    const Scratch scratch;
    const std::string out = (scratch / "out").string();
    const Outcome pruned = run_program({"prune", kGolden, out, "--pattern", pattern, "--json"});
    REQUIRE_MESSAGE(pruned.code == 0, pruned.err);
    const Json report = parse_json("stdout", pruned.out);
    CHECK(report["modules"].size() == 12);
    CHECK(report["modules"][0]["quality"]["retained_energy"].get<double>() < 1);
    const Json seen = parse_json(
        "stdout", run_program({"inspect", out, "--stats", "--json", "--tensor", "*.experts.*"}).out);
    const char* share = pattern == "2:4" ? "share_2_4" : "share_4_8_paired";
    for (const Json& m : seen["nvfp4_modules"]) CHECK(m["stats"][share] == 1.0);
    const Outcome proof = run_program({"validate", out, "--source", kGolden, "--json"});
    CHECK_MESSAGE(proof.code == 0, proof.out);
    CHECK(parse_json("stdout", proof.out)["weights"].size() == 12);
  }
}

TEST_CASE("prune --dry-run writes nothing and tells what each tensor becomes") {
  const Scratch scratch;
  const Outcome o = run_program({"prune", kGolden, (scratch / "out").string(), "--dry-run", "--json"});
  REQUIRE_MESSAGE(o.code == 0, o.err);
  size_t pruned = 0;
  const Json plan = parse_json("stdout", o.out);
  for (const Json& t : plan["tensors"]) pruned += t["decision"] == "prune";
  CHECK(pruned == 12);
  CHECK(plan["tensors"].size() == 58);
  CHECK(!std::filesystem::exists(scratch / "out"));
}

TEST_CASE("prune refuses a pattern that it does not know") {
  const Scratch scratch;
  CHECK(run_program({"prune", kGolden, (scratch / "out").string(), "--pattern", "1:2"}).code == 2);
}

}  // namespace cli_prune_test
