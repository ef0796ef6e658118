#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "lib/base/io/file.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"
#include "tests/support/weights/stored_int4.h"

// --zero-points, in every command that reads values.

namespace cli_zero_points_test {

using namespace twofour;

namespace {

using Words = std::vector<std::string>;

/// A small model in GPTQ's format, with the zero points of gptq_v2 under the name gptq.
struct OtherVersion {
  OtherVersion() {
    files.write_calibration("tokens.safetensors");
    const auto edit = [](Tensors& tensors) {
      Tensors all;
      for (const TensorData& t : tensors) {
        if (t.shape.size() != 2 || t.name.find("_proj.weight") == t.name.npos) {
          all.push_back(t);
          continue;
        }
        StoredInt4 m(t.shape[0], t.shape[1], 16, DType::kF16, static_cast<unsigned>(all.size()));
        m.make_symmetric();
        m.add_gptq(all, t.name.substr(0, t.name.size() - 7), 0);
      }
      tensors = std::move(all);
    };
    Json config = files.golden.config;
    config["quantization_config"] = parse_json(
        "config",
        int4_config("gptq", 16, R"(, "sym": true, "checkpoint_format": "gptq")"))["quantization_config"];
    write_decoder_checkpoint(files.golden, files.scratch / "int4", config.dump(), edit);
    std::filesystem::copy(files.scratch / "model" / "tokenizer.json", files.scratch / "int4");
  }
  std::string path(const std::string& name) const { return files.path(name); }
  DecoderFiles files{"llama"};
};

}  // namespace

TEST_CASE("every command that reads values refuses such zero points, and reads them as --zero-points says") {
  const OtherVersion model;
  const std::string source = model.path("int4"), tokens = model.path("tokens.safetensors");
  const std::vector<Words> commands = {
      {"convert", source, model.path("o"), "--to", "bf16"},
      {"convert", source, model.path("o"), "--to", "fp8"},
      {"quantize", source, model.path("o")},
      {"plan", source, model.path("o"), "--to", "bf16", "-o", model.path("plan.json")},
      {"compress", source, model.path("o"), "--to", "nvfp4", "--tokens", tokens},
      {"stats", "collect", source, "--tokens", tokens, "-o", model.path("stats.safetensors"), "--force"},
      {"eval", source, "--tokens", tokens, "--context", "64"},
      {"generate", source, "--prompt", "abc", "--max-tokens", "2"},
      {"inspect", source, "--values", "model.layers.0.mlp.gate_proj"},
      {"diff", source, source, "--fail-on", "unreadable"},
  };
  for (Words words : commands) {
    CAPTURE(words[0]);
    CAPTURE(words.back());
    const Outcome refused = run_program(words);
    CHECK(refused.code == (words[0] == "diff" ? 1 : 2));
    CHECK(contains(refused.err + refused.out, "--zero-points stored, symmetric or v2 decides"));
    CHECK(!std::filesystem::exists(model.files.scratch / "o" / "twofour.json"));
    words.insert(words.end(), {"--zero-points", "v2"});
    const Outcome taken = run_program(words);
    CHECK_MESSAGE(taken.code == 0, taken.err);
    std::filesystem::remove_all(model.files.scratch / "o");
  }
  // What reads no values passes them on.
  CHECK(run_program({"drop", source, model.path("dropped"), "--modules", "head"}).code == 0);
  CHECK(run_program({"inspect", source}).code == 0);
}

TEST_CASE("the word for zero points is kept in twofour.json, and a proof goes by it") {
  const OtherVersion model;
  const std::string source = model.path("int4");
  std::ofstream(model.path("recipe.yaml"))
      << "format: 1\nzero_points: v2\nrules:\n  - match: [mlp, attention]\n    to: bf16\n";
  for (const std::string word : {"stored", "symmetric", "v2"}) {
    CAPTURE(word);
    const std::string out = model.path("bf16-" + word);
    REQUIRE(run_program({"convert", source, out, "--to", "bf16", "--zero-points", word, "-q"}).code == 0);
    const Json manifest = parse_json("twofour.json", read_text(out + "/twofour.json"));
    CHECK(manifest["recipe"]["zero_points"] == word);
    const Outcome proof = run_program({"validate", out, "--source", source});
    CHECK_MESSAGE(proof.code == 0, proof.err << proof.out);
  }
  // 8 in both of the last, 9 in the first.
  CHECK(run_program({"diff", model.path("bf16-symmetric"), model.path("bf16-v2"), "-q"}).code == 0);
  CHECK(run_program({"diff", model.path("bf16-stored"), model.path("bf16-v2"), "-q"}).code == 1);
  // A recipe says it, and the option overrides the recipe.
  const auto converted = [&](const std::string& out, const Words& more) {
    Words words{"convert", source, model.path(out), "--recipe", model.path("recipe.yaml"), "-q"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_program(words);
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    return parse_json("twofour.json", read_text(model.path(out) + "/twofour.json"))["recipe"]["zero_points"];
  };
  CHECK(converted("by-recipe", {}) == "v2");
  CHECK(converted("by-option", {"--zero-points", "stored"}) == "stored");
  // A plan for several machines has it, too.
  REQUIRE(run_program({"plan", source, model.path("tasks"), "--to", "bf16", "-o", model.path("plan.json"),
                       "--zero-points", "v2", "-q"})
              .code == 0);
  REQUIRE(run_program({"convert", "--plan", model.path("plan.json"), "--task", "0/1", "-q"}).code == 0);
  REQUIRE(run_program({"merge", model.path("tasks"), "-q"}).code == 0);
  CHECK(run_program({"diff", model.path("tasks"), model.path("bf16-v2"), "-q"}).code == 0);
}

TEST_CASE("a word for zero points of a source that has none is refused") {
  const OtherVersion model;
  const Outcome outcome =
      run_program({"quantize", model.path("model"), model.path("o"), "--zero-points", "v2"});
  CHECK(outcome.code == 2);
  CHECK(contains(outcome.err, "expected INT4 with zero points, which are read as v2, found none"));
}

}  // namespace cli_zero_points_test
