#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/source/tokenizer/tokenizer.h"
#include "tests/support/message.h"

namespace golden_test {

using namespace twofour;

namespace {

const std::string kFolder = TWOFOUR_GOLDEN_DIR "/tokenizer/";

const Json& cases() {
  static const Json all = parse_json("cases.json", read_text(kFolder + "cases.json"));
  return all;
}

/// A text, or, of null, another one.
std::string text_or(const Json& json, const std::string& other) {
  return json.is_null() ? other : json.get<std::string>();
}

}  // namespace

// The files are what `tokenizers` made of small vocabularies; see tests/tokenizers/make_golden.py.
TEST_CASE("ids and decoded texts of every family are those of tokenizers") {
  const Json& texts = cases()["texts"];
  CHECK(cases()["families"].size() == 12);
  for (const auto& [family, expected] : cases()["families"].items()) {
    CAPTURE(family);
    const Tokenizer tokenizer = Tokenizer::load(kFolder + family + ".json");
    CHECK(tokenizer.vocabulary_size() == expected["size"].get<int32_t>());
    CHECK(tokenizer.encode(texts[2].get<std::string>(), true) ==
          expected["framed"].get<std::vector<int32_t>>());
    for (size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(i);
      const auto text = texts[i].get<std::string>();
      const auto ids = expected["ids"][i].get<std::vector<int32_t>>();
      CHECK(tokenizer.encode(text, false) == ids);
      const std::string decoded = text_or(expected["decoded"][i], text);
      CHECK(tokenizer.decode(ids, false) == decoded);
      CHECK(tokenizer.decode(ids, true) == text_or(expected["skipped"][i], decoded));
    }
  }
}

TEST_CASE("the parts of a text that are encoded one after the other have the ids of the whole") {
  // At ends of lines no token of GPT-2's goes on, and none of its families looks back.
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "gpt2.json");
  std::string all;
  std::vector<int32_t> ids;
  for (int i = 0; i < 3000; ++i) {
    const std::string line = "line " + std::to_string(i * 7919) + " of h\xC3\xA9llo <|endoftext|> x\n";
    all += line;
    const std::vector<int32_t> part = tokenizer.encode(line, false);
    ids.insert(ids.end(), part.begin(), part.end());
  }
  CHECK(tokenizer.encode(all, false) == ids);
  CHECK(tokenizer.decode(ids, false) == all);
}

TEST_CASE("tokens are found by their texts, and texts by ids") {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "smollm2.json");
  const int32_t end = tokenizer.find("<|endoftext|>");
  CHECK(tokenizer.token(end) == "<|endoftext|>");
  CHECK(tokenizer.token(tokenizer.find("\xC4\xA0")) == "\xC4\xA0");
  CHECK(tokenizer.find("no such token") == -1);
  CHECK(tokenizer.token(tokenizer.vocabulary_size()).empty());
  CHECK(tokenizer.token(-1).empty());
}

TEST_CASE("a directory with a tokenizer.json is a tokenizer, another one is not") {
  CHECK(contains(message_of([] { Tokenizer::load(kFolder); }), "tokenizer.json: cannot open"));
}

TEST_CASE("a text that is no UTF-8 is refused with the place") {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "llama3.json");
  CHECK(message_of([&] { tokenizer.encode("abc\xFF", false, "text.txt"); }) ==
        "text.txt: expected UTF-8, found 0xFF at byte 3");
  CHECK(message_of([&] { tokenizer.encode("\xE2\x82", false); }) ==
        "text: expected UTF-8, found 0xE2 at byte 0");
}

TEST_CASE("ids that no token has are left out of a text") {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "llama3.json");
  const int32_t token = tokenizer.find("a");
  REQUIRE(token >= 0);
  CHECK(tokenizer.decode(std::vector<int32_t>{token, tokenizer.vocabulary_size(), token, -1}, false) == "aa");
}

TEST_CASE("every beginning of a file is refused") {
  const std::string text = read_text(kFolder + "mixtral.json");
  for (size_t size = 0; size + 2 < text.size(); size += 37) {
    CAPTURE(size);
    CHECK_THROWS_AS(Tokenizer::parse("t", std::string_view(text).substr(0, size)), Error);
  }
}

}  // namespace golden_test
