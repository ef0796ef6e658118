#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/json.h"
#include "tests/support/conversion.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"

namespace cli_formats_test {

// Every format and dialect that convert makes of floats, proven against its source, and one flipped byte
// refused.

using namespace twofour;

namespace {

/// Experts and a down_proj, K a multiple of 32 and not of 128.
Tensors small_model() {
  Tensors t;
  for (const std::string expert : {"0", "1"}) {
    const std::string block = "model.layers.0.mlp.experts." + expert + ".";
    add_floats(t, block + "gate_proj", random_floats(40, 160, 1));
    add_floats(t, block + "up_proj", random_floats(40, 160, 2));
    add_floats(t, block + "down_proj", random_floats(160, 64, 3));
  }
  return t;
}

struct Case {
  std::vector<std::string> options;
  const char* algorithm;  ///< what the configuration says
};

}  // namespace

TEST_CASE("MXFP6 is written in the dialect and the arithmetic that have it, and read back") {
  const Scratch scratch;
  write_checkpoint(scratch / "plain", {small_model()});
  const std::string src = (scratch / "plain").string(), out = (scratch / "six").string();
  for (const char* dialect : {"modelopt", "deepseek", "deepseek-v4"}) {
    CHECK(run_program({"convert", src, out, "--to", "mxfp6", "--dialect", dialect}).err ==
          fmt::format("twofour: --dialect: expected compressed-tensors, which alone has MXFP6, found {}\n",
                      dialect));
  }
  CHECK(
      run_program({"convert", src, out, "--to", "mxfp6", "--arithmetic", "modelopt"}).err ==
      "twofour: --arithmetic: expected compressed-tensors, which alone defines the rounding of MXFP6, found "
      "modelopt\n");
  REQUIRE(run_program({"convert", src, out, "--to", "mxfp6", "-q"}).code == 0);
  const Checkpoint six = Checkpoint::open(out);
  const auto packed = std::find_if(six.tensors().begin(), six.tensors().end(),
                                   [](const TensorInfo& t) { return t.name.ends_with(".weight_packed"); });
  REQUIRE(packed != six.tensors().end());
  CHECK(packed->dtype == DType::kU8);
  CHECK(packed->shape.back() % 24 == 0);
  const Outcome diff = run_program({"diff", src, out});
  CHECK_MESSAGE(diff.out.find("MXFP6") != std::string::npos, diff.out);
  REQUIRE(run_program({"convert", out, (scratch / "back").string(), "--to", "bf16", "-q"}).code == 0);
}

TEST_CASE("each format in each dialect is proven, and one flipped byte is found") {
  const Scratch scratch;
  write_checkpoint(scratch / "plain", {small_model()});
  write_checkpoint(scratch / "v4", {small_model()},
                   R"({"model_type": "deepseek_v4", "quantization_config": {"quant_method": "fp8"}})");
  const Case cases[] = {
      {{"--to", "mxfp8", "--dialect", "modelopt"}, "\"MXFP8\""},
      {{"--to", "mxfp8", "--dialect", "compressed-tensors"}, "\"mxfp8-quantized\""},
      {{"--to", "mxfp8", "--dialect", "modelopt", "--arithmetic", "compressed-tensors"}, "\"MXFP8\""},
      {{"--to", "mxfp6", "--dialect", "compressed-tensors"}, "\"mxfp6-pack-quantized\""},
      {{"--to", "mxfp4", "--dialect", "modelopt"}, "\"W4A8_MXFP4_FP8\""},
      {{"--to", "mxfp4", "--dialect", "compressed-tensors"}, "\"mxfp4-pack-quantized\""},
      {{"--to", "mxfp4", "--dialect", "deepseek-v4"}, "\"fp8\""},
      {{"--to", "fp8", "--dialect", "compressed-tensors", "--block", "32x32", "--scale-dtype", "bf16"},
       "\"float-quantized\""},
      {{"--to", "fp8", "--dialect", "compressed-tensors", "--block", "1x128"}, "\"float-quantized\""},
      {{"--to", "fp8", "--dialect", "modelopt", "--granularity", "tensor"}, "\"FP8\""},
      {{"--to", "fp8", "--dialect", "deepseek", "--block", "32x32", "--scale-dtype", "bf16"}, "\"fp8\""},
      {{"--to", "fp8", "--dialect", "deepseek-v4"}, "\"fp8\""},
      {{"--to", "fp8", "--dialect", "deepseek-v4", "--block", "32x32", "--scale-dtype", "f32"}, "\"fp8\""},
  };
  int number = 0;
  for (const Case& c : cases) {
    const std::string out = (scratch / std::to_string(number++)).string();
    const std::string src = (scratch / (c.options[3] == "deepseek-v4" ? "v4" : "plain")).string();
    std::vector<std::string> arguments{"convert", src, out, "-q"};
    arguments.insert(arguments.end(), c.options.begin(), c.options.end());
    if (c.options[1] == "fp8") arguments.insert(arguments.end(), {"--odd-blocks", "write"});
    CAPTURE(c.options);
    const Outcome made = run_program(arguments);
    REQUIRE_MESSAGE(made.code == 0, made.err);
    const Outcome proof = run_program({"validate", out, "--source", src, "--tokens", "0"});
    CHECK_MESSAGE(proof.code == 0, proof.out << proof.err);
    CHECK(read_text(std::filesystem::path(out) / "config.json").find(c.algorithm) != std::string::npos);
    const Checkpoint written = Checkpoint::open(out);
    for (const size_t i : {size_t{0}, written.tensors().size() - 1}) {
      const uint64_t at = written.shard_of(i).data_begin + written.tensors()[i].begin;
      flip_bit(written.shard_of(i).file.path(), at, 1);
      const Outcome wrong = run_program({"validate", out, "--source", src, "--tokens", "0"});
      CHECK_MESSAGE(wrong.code == 1, wrong.out << wrong.err);
      flip_bit(written.shard_of(i).file.path(), at, 1);
    }
  }
}

TEST_CASE("options of formats name what they expect") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {small_model()});
  const std::string src = (scratch / "src").string(), out = (scratch / "out").string();
  const auto error_of = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"convert", src, out, "--to"});
    const Outcome outcome = run_program(options);
    CHECK(outcome.code == 2);
    CHECK(!std::filesystem::exists(out));
    return outcome.err;
  };
  CHECK(error_of({"fp8", "--block", "64x64"}) ==
        "twofour: --block: expected 128x128, 32x32 or 1x128, found 64x64\n");
  CHECK(error_of({"fp8", "--block", "32x32", "--granularity", "row"}) ==
        "twofour: --block: expected with --granularity block, found with row\n");
  CHECK(error_of({"fp8", "--block", "32x32", "--dialect", "modelopt"}) ==
        "twofour: --block: expected 128x128, the only choice of the modelopt dialect, found 32x32\n");
  CHECK(error_of({"fp8", "--scale-dtype", "f16"}) ==
        "twofour: --scale-dtype: expected f32, bf16 or e8m0, found f16\n");
  CHECK(error_of({"fp8", "--scale-dtype", "e8m0"}) ==
        "twofour: --scale-dtype: expected f32, bf16, the only choice of the compressed-tensors dialect, "
        "found e8m0\n");
  CHECK(error_of({"mxfp8", "--dialect", "deepseek"}) ==
        "twofour: --dialect: expected modelopt or compressed-tensors, which have MXFP8, found deepseek\n");
  CHECK(error_of({"bf16", "--exact", "strict"}) ==
        "twofour: --exact: expected with --to v7, v7-packed, g8, fp8, mxfp8, mxfp6, mxfp4 or quantize only, "
        "found "
        "with --to bf16\n");
}

}  // namespace cli_formats_test
