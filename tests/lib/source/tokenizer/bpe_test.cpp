#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "lib/source/tokenizer/bpe.h"

namespace bpe_test {

using namespace twofour;

namespace {

std::vector<int32_t> encode(const Bpe& bpe, std::string_view word) {
  std::vector<int32_t> ids;
  Bpe::Encoder(bpe).encode(word, ids);
  return ids;
}

/// Letters a to d and random merges of what there is.
BpeModel random_model(std::mt19937& random, size_t merges) {
  BpeModel model;
  std::map<std::string, int32_t> ids;
  const auto add = [&](const std::string& token) {
    if (ids.emplace(token, static_cast<int32_t>(ids.size())).second)
      model.vocabulary.emplace_back(token, static_cast<int32_t>(ids.size()) - 1);
  };
  for (const char* letter : {"a", "b", "c", "d"}) add(letter);
  while (model.merges.size() < merges) {
    const std::string left = model.vocabulary[random() % model.vocabulary.size()].first;
    const std::string right = model.vocabulary[random() % model.vocabulary.size()].first;
    const std::pair merge(left, right);
    if (std::find(model.merges.begin(), model.merges.end(), merge) != model.merges.end()) continue;
    model.merges.push_back(merge);
    add(left + right);
  }
  return model;
}

/// The definition: of all pairs the one of lowest rank, the leftmost of those, until there is none.
std::vector<std::string> merge_slowly(const BpeModel& model, const std::string& word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (;;) {
    size_t best = model.merges.size(), place = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found =
          std::find(model.merges.begin(), model.merges.end(), std::pair(parts[i], parts[i + 1]));
      const auto rank = static_cast<size_t>(found - model.merges.begin());
      if (rank < best) best = rank, place = i;
    }
    if (best == model.merges.size()) return parts;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

}  // namespace

TEST_CASE("words have the ids of the definition, long ones too, which are cut") {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    const BpeModel model = random_model(random, 1 + random() % 30);
    const Bpe bpe(model);
    Bpe::Encoder encoder(bpe);  // words come again
    for (int i = 0; i < 60; ++i) {
      std::string word;
      for (size_t size = random() % (i % 10 == 0 ? 400 : 20); word.size() < size;)
        word += static_cast<char>('a' + random() % (2 + random() % 3));
      CAPTURE(word);
      std::vector<int32_t> ids, expected;
      encoder.encode(word, ids);
      for (const std::string& part : merge_slowly(model, word)) expected.push_back(bpe.find(part));
      CHECK(ids == expected);
    }
  }
}

TEST_CASE("a word of ten million letters takes seconds") {
  BpeModel model;
  std::string token = "a";
  model.vocabulary = {{token, 0}};
  for (int32_t id = 1; id < 12; ++id) {
    model.merges.emplace_back(token, token);
    token += token;
    model.vocabulary.emplace_back(token, id);
  }
  const std::vector<int32_t> ids = encode(Bpe(model), std::string(10'000'001, 'a'));
  CHECK(ids.size() == 10'000'001 / 2048 + 4);  // 10000001 = 4882 * 2048 + 1024 + 512 + 128 + 1
  CHECK(std::count(ids.begin(), ids.end(), 11) == 4882);
  CHECK(std::vector<int32_t>(ids.end() - 4, ids.end()) == std::vector<int32_t>{10, 9, 7, 0});
}

TEST_CASE("of a pair that comes twice the last counts") {
  const BpeModel model{
      "m", {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}}, {{"a", "b"}, {"b", "c"}, {"a", "b"}}};
  CHECK(encode(Bpe(model), "abc") == std::vector<int32_t>{0, 4});
}

TEST_CASE("unknown characters are bytes, one token together, one each, or nothing") {
  BpeModel model{"m", {{"a", 0}, {"?", 1}, {"aa", 2}}, {{"a", "a"}}};
  const std::string word = "a\xC3\xA9\xE4\xB8\xADxa";
  CHECK(encode(Bpe(model), word) ==
        std::vector<int32_t>{2});  // what is left is next to each other, as in tokenizers
  model.unknown_token = "?";
  CHECK(encode(Bpe(model), word) == std::vector<int32_t>{0, 1, 1, 1, 0});
  model.fuse_unknown = true;
  CHECK(encode(Bpe(model), word) == std::vector<int32_t>{0, 1, 0});
  model.byte_fallback = true;
  for (int32_t byte = 0; byte < 256; ++byte) {
    const char* hex = "0123456789ABCDEF";
    model.vocabulary.emplace_back(std::string("<0x") + hex[byte / 16] + hex[byte % 16] + ">", byte + 3);
  }
  CHECK(encode(Bpe(model), word) == std::vector<int32_t>{0, 0xC6, 0xAC, 0xE7, 0xBB, 0xB0, 0x7B, 0});
}

TEST_CASE("a word that is a token is one where merges are ignored") {
  BpeModel model{"m", {{"a", 0}, {"b", 1}, {"aba", 2}, {std::string(80, 'b'), 3}}, {}};
  CHECK(encode(Bpe(model), "aba") == std::vector<int32_t>{0, 1, 0});
  model.ignore_merges = true;
  CHECK(encode(Bpe(model), "aba") == std::vector<int32_t>{2});
  CHECK(encode(Bpe(model), std::string(80, 'b')) == std::vector<int32_t>{3});
}

}  // namespace bpe_test
