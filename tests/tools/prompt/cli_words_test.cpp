#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/models/prompt_model.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

/// Words of refusals, and small values that are taken.

namespace cli_words_test {

using namespace twofour;
namespace fs = std::filesystem;

namespace {

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

}  // namespace

TEST_CASE("prune of floats names what prunes them; quantize says that it quantizes the rest") {
  const PromptModel model;
  check_one_line(run_program({"prune", model.at("model"), model.at("out")}),
                 "twofour quantize --pattern 2:4");
  const Scratch scratch;
  const std::string source = (scratch / "source").string();
  REQUIRE(run_program({"synth", source, "--shape", "qwen3-moe", "--small", "--layers", "2", "-q"}).code == 0);
  const Outcome o = run_program({"quantize", source, (scratch / "out").string(), "--dry-run"});
  CHECK(o.code == 0);
  CHECK_MESSAGE(o.err.find("in NVFP4 already, which stay; ") != std::string::npos, o.err);
  CHECK(o.err.find("[quantizes-the-rest]") != std::string::npos);
}

TEST_CASE("eval takes a model of few positions without --context") {
  const PromptModel model;
  model.configure([](Json& config) { config["max_position_embeddings"] = 24; });
  const Outcome o =
      run_program({"eval", model.at("model"), "--text", model.at("text"), "--limit", "3", "-q"});
  CHECK_MESSAGE(o.code == 0, o.err);
  const Outcome asked = run_program(
      {"eval", model.at("model"), "--text", model.at("text"), "--context", "24", "--limit", "3", "-q"});
  CHECK(o.out == asked.out);
  check_one_line(run_program({"eval", model.at("model"), "--text", model.at("text"), "--context", "25"}),
                 "at most the 24 tokens");
}

TEST_CASE("messages about a config name what is wrong with it") {
  const PromptModel model;
  const auto eval = [&] { return run_program({"eval", model.at("model"), "--text", model.at("text")}); };
  model.configure([](Json& config) { config["rope_scaling"] = {{"rope_type", "spiral"}}; });
  check_one_line(eval(), "expected default, linear, llama3 or yarn, found \"spiral\"");
  model.configure([](Json& config) {
    config.erase("rope_scaling");
    config["head_dim"] = int64_t{1'000'000'000'000'000'000};
  });
  check_one_line(eval(), "head_dim: expected a size that a model can have, found 1000000000000000000");
}

TEST_CASE("small values of options are taken, and refused in words that say what to type") {
  const Scratch scratch;
  const std::string source = (scratch / "source").string(), out = (scratch / "out").string();
  const fs::path amax = scratch / "amax.safetensors";
  REQUIRE(run_program({"synth", source, "--shape", "tiny", "-q"}).code == 0);
  check_one_line(run_program({"convert", source, out, "--to", "nvfp4", "--input-scale", amax.string()}),
                 "neighbours or from FILE, found '");
  check_one_line(run_program({"convert", "--plan", kGolden + "/config.json", "--task", "0/1000001"}),
                 "--task: expected at most 1000000 tasks, found 1000001");
  write_text(scratch / "odd.npy", std::string("\x93NUMPY\x01\x00\x76\x00", 10) +
                                      "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4), }" +
                                      std::string(58, ' ') + "\n" + std::string(16, 'x'));
  const std::string npy = run_program({"eval", source, "--tokens", (scratch / "odd.npy").string()}).err;
  CHECK_MESSAGE(npy.find("(1, 4), }\"") != npy.npos, npy);
}

TEST_CASE("a module that was named and has odd inputs is the reason that nothing is quantized") {
  const Scratch scratch;
  Tensors tensors;
  add_bf16(tensors, "model.layers.0.mlp.down_proj.weight", {32, 40});
  add_bf16(tensors, "model.layers.0.mlp.up_proj.weight", {40, 32});
  write_checkpoint(scratch / "source", {tensors});
  check_one_line(
      run_program({"quantize", (scratch / "source").string(), (scratch / "out").string(), "--include",
                   "model.layers.0.mlp.down_proj"}),
      "found none among 2; model.layers.0.mlp.down_proj is left unquantized: expected K a multiple of 16, "
      "found 40");
}

TEST_CASE("a list of one amax is taken as a single one is") {
  const Scratch scratch;
  TensorData weight{"model.layers.0.mlp.down_proj.weight", DType::kBF16, {32, 32}, {}};
  for (int i = 0; i < 32 * 32; ++i)
    weight.bytes.insert(weight.bytes.end(),
                        {static_cast<uint8_t>(i * 5), static_cast<uint8_t>(0x3C + i % 3)});
  write_checkpoint(scratch / "source", {{weight}});
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{}, {1}}) {
    const std::string name = shape.empty() ? "scalar" : "list";
    write_safetensors(scratch / (name + ".safetensors"),
                      {{"model.layers.0.mlp.down_proj.amax", DType::kF32, shape, {0, 0, 0x80, 0x40}}});
    const Outcome o =
        run_program({"quantize", (scratch / "source").string(), (scratch / name).string(), "--input-scale",
                     fmt::format("from {}/{}.safetensors", scratch.path.string(), name)});
    CHECK_MESSAGE(o.code == 0, o.err);
  }
  const std::string file = "model-00001-of-00001.safetensors";
  CHECK(same_contents(scratch / "scalar" / file, scratch / "list" / file));
}

TEST_CASE("stats says how many paths an action takes, and that a last token alone is left out") {
  const std::string help = run_program({"stats", "--help-all"}).out;
  CHECK(help.find("ACTION says which and how many") != help.npos);
  const size_t path = help.find("\n  PATH");
  CHECK(help.substr(path, help.find("\n\n", path) - path).find("may be given again") == std::string::npos);
  CHECK(help.find("of one token is left out") != help.npos);
}

}  // namespace cli_words_test
