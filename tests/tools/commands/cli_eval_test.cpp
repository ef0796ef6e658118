#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"

namespace cli_eval_test {

using namespace twofour;

namespace {

/// A golden model and its tokens as two rows of a file.
struct EvalFiles : DecoderFiles {
  EvalFiles() : DecoderFiles("qwen3_moe") { write_tokens("tokens.safetensors", golden.tokens, 2); }
  Outcome eval(std::vector<std::string> more) const {
    std::vector<std::string> words{"eval", path("model"), "--tokens", path("tokens.safetensors")};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  }
};

}  // namespace

TEST_CASE("eval prints the same figures for any number of threads") {
  const EvalFiles files;
  Json one = json_of(files.eval({"--json", "-q", "-j", "1", "--context", "16", "--stride", "8"}));
  Json three = json_of(files.eval({"--json", "-q", "-j", "3", "--context", "16", "--stride", "8"}));
  CHECK(one["predictions"] == 46);
  CHECK(one["windows"] == 4);
  one["seconds"] = three["seconds"] = 0;
  CHECK(one.dump() == three.dump());
}

TEST_CASE("eval of a pruned artifact against its source says how far they are apart") {
  const EvalFiles files;
  REQUIRE(run_program({"convert", files.path("model"), files.path("v7"), "--to", "v7", "-q"}).code == 0);
  const Outcome o = run_program({"eval", files.path("v7"), "--tokens", files.path("tokens.safetensors"),
                                 "--against", files.path("model"), "--json", "-q"});
  const Json json = json_of(o);
  CHECK(json["against"]["divergence"].get<double>() > 1e-4);
  CHECK(json["against"]["layers"].size() == 3);
  // Only the second layer has experts, which are pruned.
  CHECK(json["against"]["layers"][0]["relative_error"] == 0.0);
  CHECK(json["against"]["layers"][1]["relative_error"].get<double>() > 1e-3);
  CHECK(json["against"]["layers"][2]["cosine"].get<double>() < 1);
  const Outcome text = run_program({"eval", files.path("v7"), "--tokens", files.path("tokens.safetensors"),
                                    "--against", files.path("model"), "-v"});
  CHECK(text.code == 0);
  CHECK(text.out.find("same most probable token") != std::string::npos);
  CHECK(text.out.find("residual stream behind each layer") != std::string::npos);
}

TEST_CASE("eval moves on by half of the context where no stride is given") {
  const EvalFiles files;
  Json own = json_of(files.eval({"--json", "-q", "--context", "8"}));
  Json given = json_of(files.eval({"--json", "-q", "--context", "8", "--stride", "4"}));
  own["seconds"] = given["seconds"] = 0;
  CHECK(own.dump() == given.dump());
  CHECK(json_of(files.eval({"--json", "-q", "--context", "2"}))["predictions"] == 46);
}

TEST_CASE("what is before a bad prediction is shown with the characters that tokens have in common") {
  const EvalFiles files;
  std::string tokenizer = letter_tokenizer();
  tokenizer.replace(tokenizer.find("\"A\""), 3, "\"\u00C3\"");  // the bytes of \u00E9
  tokenizer.replace(tokenizer.find("\"B\""), 3, "\"\u00A9\"");
  std::ofstream(files.scratch / "model" / "tokenizer.json") << tokenizer;
  files.write_tokens("accents.safetensors", {2, 0, 1, 3, 4, 5, 0, 1}, 2);
  const Json json = json_of(run_program(
      {"eval", files.path("model"), "--tokens", files.path("accents.safetensors"), "--json", "-q"}));
  int shown = 0;
  for (const Json& place : json["worst"]) {
    if (place["window"] != 0 || place["position"] != 3) continue;
    ++shown;
    CHECK(place["before"] == "C\u00E9");
  }
  CHECK(shown == 1);
}

TEST_CASE("eval refuses what it cannot run with one line") {
  const EvalFiles files;
  check_one_line(files.eval({"--context", "8", "--stride", "9"}),
                 "--stride: expected at most the 8 tokens of --context");
  std::vector<int32_t> tokens = files.golden.tokens;
  tokens[5] = 48;
  files.write_tokens("beyond.safetensors", tokens, 2);
  check_one_line(run_program({"eval", files.path("model"), "--tokens", files.path("beyond.safetensors")}),
                 "48");
  files.write_tokens("long.safetensors", std::vector<int32_t>(2 * 600, 3), 2);
  check_one_line(run_program({"eval", files.path("model"), "--tokens", files.path("long.safetensors"),
                              "--context", "600"}),
                 "expected windows of at most the 512 tokens");
  check_one_line(run_program({"eval", std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-mixtral-uneven/src",
                              "--tokens", files.path("tokens.safetensors")}),
                 "config.json: ");
  check_one_line(files.eval({"--device", "cuda"}), "cuda");
}

TEST_CASE("a dry run of eval states its memory and runs nothing") {
  const EvalFiles files;
  const Json json = json_of(files.eval({"--dry-run", "--json"}));
  CHECK(json["predictions"] == 46);
  CHECK(json["peak_memory"].get<uint64_t>() > 0);
  CHECK_FALSE(json.contains("loss"));
}

}  // namespace cli_eval_test
