#include <doctest/doctest.h>

#include <fstream>

#include "tests/support/models/decoder_golden.h"
#include "tests/support/models/letter_tokenizer.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_generate_test {

using namespace twofour;

namespace {

/// A golden model with a tokenizer, and its experts pruned.
struct GenerateFiles {
  GenerateFiles() {
    write_decoder_checkpoint(
        read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", "qwen3_moe"),
        scratch / "model");
    std::ofstream(scratch / "model" / "tokenizer.json") << letter_tokenizer();
    REQUIRE(run_program({"convert", path("model"), path("v7"), "--to", "v7", "-q"}).code == 0);
  }
  std::string path(const std::string& name) const { return (scratch / name).string(); }
  Scratch scratch;
};

}  // namespace

TEST_CASE("generate continues a text, beside another model up to where they part and on") {
  const GenerateFiles files;
  const Json json = json_of(run_program({"generate", files.path("v7"), "--prompt", "HELLO", "--max-tokens",
                                         "12", "--against", files.path("model"), "--json"}));
  CHECK(json["prompt_tokens"] == 5);
  const Json &own = json["tokens"], &other = json["against"]["tokens"];
  std::string text;
  for (const Json& t : own) text += t["text"].get<std::string>();
  CHECK(json["text"] == text);
  size_t same = 0;
  while (same < own.size() && same < other.size() && own[same]["token"] == other[same]["token"]) ++same;
  if (json["parts_at"].is_null()) {
    CHECK(same == own.size());
  } else {
    CHECK(json["parts_at"].get<size_t>() == same);
  }
  const Json itself =
      json_of(run_program({"generate", files.path("model"), "--prompt", "HELLO", "--max-tokens", "12",
                           "--against", files.path("model"), "--json", "-j", "2"}));
  CHECK(itself["parts_at"].is_null());
  CHECK(itself["text"] == json["against"]["text"]);
  const Outcome plain =
      run_program({"generate", files.path("model"), "--prompt", "HELLO", "--max-tokens", "12", "-q"});
  CHECK(plain.code == 0);
  CHECK(plain.out == itself["text"].get<std::string>() + "\n");
}

TEST_CASE("generate ends at any token of a list in generation_config.json") {
  const GenerateFiles files;
  const std::vector<std::string> words{
      "generate", files.path("model"), "--prompt", "HELLO", "--max-tokens", "12", "--json"};
  const Json whole = json_of(run_program(words));
  const int end = whole["tokens"][5]["token"].get<int>();
  size_t first = 0;
  while (whole["tokens"][first]["token"] != end) ++first;
  std::ofstream(files.scratch / "model" / "generation_config.json")
      << Json{{"eos_token_id", Json::array({1'000'000, end})}}.dump();
  const Json ended = json_of(run_program(words));
  CHECK(ended["ended"] == true);
  CHECK(ended["tokens"].size() == first + 1);
}

TEST_CASE("generate says where it ended for want of positions") {
  const GenerateFiles files;
  const Outcome o =
      run_program({"generate", files.path("model"), "--prompt", "HELLO", "--max-tokens", "100000"});
  CHECK(o.code == 0);
  CHECK_MESSAGE(o.err.find("; " + files.path("model") + " has 512 positions") != std::string::npos, o.err);
  CHECK(run_program({"generate", files.path("model"), "--prompt", "HELLO", "--max-tokens", "2"})
            .err.find(" positions") == std::string::npos);
}

TEST_CASE("ids that the model has and its tokenizer has not are shown as ids") {
  const GenerateFiles files;
  // One token: the model's other 47 rows are padding.
  std::string tokenizer = letter_tokenizer();
  const size_t begin = tokenizer.find(", \"B\""), end = tokenizer.find("}, \"merges\"");
  std::ofstream(files.scratch / "model" / "tokenizer.json") << tokenizer.erase(begin, end - begin);
  const std::vector<std::string> words{"generate", files.path("model"), "--prompt",
                                       "AAAA",     "--max-tokens",      "8"};
  std::vector<std::string> json_words = words, beside = words;
  json_words.insert(json_words.end(), {"--json", "-q"});
  beside.insert(beside.end(), {"--against", files.path("model"), "-q"});
  const Json json = json_of(run_program(json_words));
  std::string text;
  int padding = 0;
  for (const Json& t : json["tokens"]) {
    text += t["text"].get<std::string>();
    padding += t["token"] != 0;
    CHECK((t["token"] == 0) == (t["text"] == "A"));
  }
  REQUIRE(padding > 0);
  CHECK(json["text"] == text);
  const Outcome o = run_program(beside);
  CHECK(o.code == 0);
  CHECK(o.out.find(" id ") != std::string::npos);
}

TEST_CASE("generate and eval refuse texts and models with one line") {
  const GenerateFiles files;
  const std::string model = files.path("model");
  check_one_line(run_program({"generate", model, "--prompt", ""}), "--prompt");
  check_one_line(run_program({"generate", model, "--prompt", "A\xFF"}), "--prompt");
  check_one_line(run_program({"generate", model, "--prompt", std::string(600, 'A')}),
                 "expected at most the 512 tokens of max_position_embeddings, found 600");
  std::ofstream(files.scratch / "text") << "AB\xFF";
  check_one_line(run_program({"eval", model, "--text", files.path("text")}), files.path("text"));
  std::ofstream(files.scratch / "empty") << "";
  check_one_line(run_program({"eval", model, "--text", files.path("empty")}),
                 "expected a text of two tokens and more, found none");
  std::filesystem::remove(files.scratch / "model" / "tokenizer.json");
  check_one_line(run_program({"generate", model, "--prompt", "A"}), "tokenizer.json");
}

TEST_CASE("eval of a text shows what the worst predictions are of") {
  const GenerateFiles files;
  std::ofstream(files.scratch / "text") << "ABCDEFGHIJKLMNOPABCD";
  const Json json = json_of(run_program({"eval", files.path("model"), "--text", files.path("text"), "--json",
                                         "-q", "--context", "8", "--stride", "4"}));
  CHECK(json["predictions"] == 19);
  REQUIRE(json["worst"].size() == 10);
  const Json& first = json["worst"][0];
  CHECK(first["text"] == std::string(1, static_cast<char>('A' + first["token"].get<int>())));
  CHECK(first["before"].get<std::string>().size() == first["position"].get<size_t>());
}

}  // namespace cli_generate_test
