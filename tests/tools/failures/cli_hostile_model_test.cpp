// Whole models that cannot be run: one message each, exit code 2, for every command that runs them.
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>

#include "tests/support/models/decoder_golden.h"
#include "tests/support/models/letter_tokenizer.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_hostile_model_test {

using namespace twofour;

namespace {

using Words = std::vector<std::string>;

struct HostileModel {
  HostileModel()
      : golden(read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", "qwen3_moe")) {
    write({});
    TensorData t{"tokens", DType::kI32, {2, 600}, std::vector<uint8_t>(2 * 600 * sizeof(int32_t))};
    write_safetensors(scratch / "tokens.safetensors", {t});
    std::ofstream(scratch / "text") << "AAAABBBB";
    std::ofstream(scratch / "bytes") << "AA\xFF";
  }
  void write(const std::string& config) {
    std::filesystem::remove_all(scratch / "model");
    write_decoder_checkpoint(golden, scratch / "model", config);
    std::ofstream(scratch / "model" / "tokenizer.json") << letter_tokenizer();
  }
  std::string path(const std::string& name) const { return (scratch / name).string(); }
  /// Every command that runs the model, on a text.
  std::vector<Words> commands(const Words& input) const {
    std::vector<Words> all{{"eval", path("model")},
                           {"stats", "collect", path("model"), "-o", path("stats")},
                           {"compress", path("model"), path("out"), "--to", "nvfp4"}};
    for (Words& words : all) words.insert(words.end(), input.begin(), input.end());
    return all;
  }
  void check(const std::vector<Words>& commands, const std::string& part) const {
    for (const Words& words : commands) {
      CAPTURE(words[0]);
      check_one_line(run_program(words), part);
      CHECK_FALSE(std::filesystem::exists(scratch / "out"));
      CHECK_FALSE(std::filesystem::exists(scratch / "stats"));
    }
  }
  Scratch scratch;
  DecoderGolden golden;
};

}  // namespace

TEST_CASE("hostile configs are one message for every command that runs a model") {
  HostileModel model;
  struct Case {
    const char *key, *value, *message;
  };
  const Case cases[] = {
      {"num_attention_heads", "0", "num_attention_heads: expected a whole number above 0, found 0"},
      {"head_dim", "0", "head_dim: expected a whole number above 0, found 0"},
      {"num_experts_per_tok", "9", "num_experts_per_tok: expected at most the 8 experts, found 9"},
      {"rope_parameters", R"({"rope_type": "linear", "factor": NaN})",
       "rope_parameters.factor: expected a finite number above 0, found NaN"},
      {"vocab_size", "49", "expected model.embed_tokens [49, 32]"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.key);
    Json config = model.golden.config;
    config[c.key] = "HERE";
    std::string text = config.dump();
    text.replace(text.find("\"HERE\""), 6, c.value);
    model.write(text);
    std::vector<Words> commands = model.commands({"--text", model.path("text")});
    commands.push_back({"generate", model.path("model"), "--prompt", "AB"});
    model.check(commands, c.message);
  }
}

TEST_CASE("texts that are no UTF-8, and windows beyond the positions, are one message") {
  const HostileModel model;
  model.check(model.commands({"--text", model.path("bytes")}), "expected UTF-8, found 0xFF at byte 2");
  model.check(model.commands({"--tokens", model.path("tokens.safetensors"), "--context", "600"}),
              "expected windows of at most the 512 tokens of max_position_embeddings, found 600");
}

}  // namespace cli_hostile_model_test
