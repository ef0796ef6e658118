#include <doctest/doctest.h>

#include "formats/json.h"
#include "tests/support/conversion.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_rewrite_test {

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
    const Json proven = parse_json("stdout", proof.out);
    CHECK(proven["source_tensors"] == 58);
    CHECK(proven["values"].size() == 13);
    const Json& error = proven["values"][0]["error"];
    CHECK(error["weights"] == 96 * 48);
    const bool lossless = to == "nvfp4";  // this module's global scale is its reciprocal's reciprocal
    CHECK((error["different"] == 0) == lossless);
    CHECK(error["snr_db"].is_null() == lossless);  // infinite
    CHECK(error["relative_error"].get<double>() <= (lossless ? 0 : 0.003));
    CHECK(proven["layers"].size() == 1);
    CHECK(!proven["layers"][0].contains("exact"));  // there is no third layer to equal
    CHECK(proven["layers"][0]["cosine"].get<double>() > 0.9999);
    const Outcome text = run_program({"validate", out, "--source", kGolden, "--verbose"});
    CHECK(text.out.find(lossless
                            ? "0.down_proj [1, 96, 48]: all 4608 weights equal\n"
                            : "0.down_proj [1, 96, 48]: relative error 0.179 %, SNR 54.94 dB, cosine ") !=
          std::string::npos);
    CHECK(text.out.find("\n13 matrices: relative error ") != std::string::npos);
    CHECK(text.out.find("\n1 of 1 layers run; cosine to the source's layers 1.0000\n") != std::string::npos);
    CHECK(run_program({"validate", out}).code == 0);
  }
}

TEST_CASE("a dialect is for number formats alone; the source's own is copied with a warning") {
  const Scratch scratch;
  const std::string out = (scratch / "out").string();
  const Outcome v7 = run_program({"convert", kGolden, out, "--to", "v7", "--dialect", "modelopt"});
  CHECK(v7.code == 2);
  CHECK(v7.err ==
        "twofour: --dialect: expected with --to nvfp4, fp8, mxfp8, mxfp6, mxfp4 or quantize only, found with "
        "--to "
        "v7\n");
  const std::string same = (scratch / "same").string();
  const Outcome own = run_program({"convert", kGolden, same, "--to", "nvfp4", "--dialect", "modelopt"});
  CHECK(own.code == 0);
  CHECK_MESSAGE(own.err.find("is in the modelopt dialect already: everything is copied") != std::string::npos,
                own.err);
  CHECK((read_tensors(same) == read_tensors(kGolden)));
  CHECK(run_program({"convert", kGolden, out, "--to", "nvfp4", "--dialect", "compressed-tensors"}).code == 0);
}

}  // namespace cli_rewrite_test
