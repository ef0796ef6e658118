#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "formats/json.h"
#include "tests/support/conversion.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

using namespace twofour;

namespace {

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

}  // namespace

TEST_CASE("convert --to nvfp4 and --to bf16, then validate --source, end to end") {
  for (const std::string to : {"nvfp4", "bf16"}) {
    CAPTURE(to);
    const Scratch scratch;
    const std::string out = (scratch / "out").string();
    const Outcome made = run_program({"convert", kGolden, out, "--to", to, "--json"});
    REQUIRE_MESSAGE(made.code == 0, made.err);
    const Json report = parse_json("stdout", made.out);
    CHECK(report["layout"] == to);
    CHECK(report["modules"].size() == 13);
    CHECK(!report["modules"][0].contains("quality"));  // nothing was lost
    const Outcome proof = run_program({"validate", out, "--source", kGolden, "--json"});
    CHECK_MESSAGE(proof.code == 0, proof.out);
    CHECK(parse_json("stdout", proof.out)["source_tensors"] == 58);
    CHECK(run_program({"validate", out}).code == 0);
  }
}

TEST_CASE("a dialect is for nvfp4 alone and must be another than the source's") {
  const Scratch scratch;
  const std::string out = (scratch / "out").string();
  const Outcome v7 = run_program({"convert", kGolden, out, "--to", "v7", "--dialect", "modelopt"});
  CHECK(v7.code == 2);
  CHECK(v7.err == "twofour: --dialect: expected with --to nvfp4 only, found with --to v7\n");
  CHECK(run_program({"convert", kGolden, out, "--to", "nvfp4", "--dialect", "modelopt"}).code == 2);
  CHECK(run_program({"convert", kGolden, out, "--to", "nvfp4", "--dialect", "compressed-tensors"}).code == 0);
}

TEST_CASE("an artifact of another layout is not taken for an NVFP4 checkpoint") {
  const Scratch scratch;
  const std::string v7 = (scratch / "v7").string(), out = (scratch / "out").string();
  REQUIRE(run_program({"convert", kGolden, v7, "--to", "v7"}).code == 0);
  for (const std::string to : {"nvfp4", "bf16"}) {
    const Outcome o = run_program({"convert", v7, out, "--to", to});
    CHECK(o.code == 2);
    CHECK(o.err.find("expected NVFP4 as the only quantization") != std::string::npos);
  }
}
