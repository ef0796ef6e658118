#include "lib/base/names/natural.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace natural_test {

using namespace twofour;

namespace {

std::string random_name(std::mt19937& random) {
  // Few letters, so that names share beginnings; '/' and ':' stand right before and behind the digits.
  static constexpr std::string_view kLetters = "001129.a:/\xC3\xA9";
  std::string name;
  for (auto length = random() % 7; length > 0; --length) name += kLetters[random() % kLetters.size()];
  return name;
}

}  // namespace

TEST_CASE("numbers within names compare as numbers") {
  CHECK(natural_less("model.layers.2.mlp", "model.layers.10.mlp"));
  CHECK(!natural_less("model.layers.10.mlp", "model.layers.2.mlp"));
  CHECK(natural_less("experts.9.w1", "experts.10.w1"));
  CHECK(natural_less("a.1.10", "a.2.9"));
  CHECK(natural_less("a2b10", "a2b11"));
  CHECK(natural_less("a99999999999999999999998", "a99999999999999999999999"));
  CHECK(natural_less("a9", "a99999999999999999999999"));
}

TEST_CASE("what is no number compares by bytes, the shorter first") {
  CHECK(natural_less("", "a"));
  CHECK(natural_less("a", "b"));
  CHECK(natural_less("a", "a.b"));
  CHECK(natural_less("a.0", "a.0.b"));
  CHECK(natural_less("A", "a"));
  CHECK(natural_less("model.10", "model.a"));
}

TEST_CASE("bytes compare as unsigned, for names sort alike on every processor") {
  CHECK(natural_less("z", "\xC3\xA9"));
  CHECK(!natural_less("\xC3\xA9", "z"));
}

TEST_CASE("names equal but for leading zeros are distinguished, so that the order is total") {
  CHECK(natural_less("a.01", "a.1"));
  CHECK(!natural_less("a.1", "a.01"));
  CHECK(natural_less("a.1.b", "a.01.c"));
  CHECK(natural_less("0", "00") != natural_less("00", "0"));
}

TEST_CASE("the order is strict and total on any names") {
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const std::string a = random_name(random), b = random_name(random), c = random_name(random);
    CAPTURE(a);
    CAPTURE(b);
    CAPTURE(c);
    REQUIRE(!natural_less(a, a));
    REQUIRE((natural_less(a, b) + natural_less(b, a)) == (a == b ? 0 : 1));
    if (natural_less(a, b) && natural_less(b, c)) REQUIRE(natural_less(a, c));
  }
}

TEST_CASE("sorting gives one result whatever the order before") {
  std::mt19937 random(2);
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back(random_name(random));
  std::sort(names.begin(), names.end(), natural_less);
  for (int round = 0; round < 20; ++round) {
    auto shuffled = names;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    std::sort(shuffled.begin(), shuffled.end(), natural_less);
    CHECK(shuffled == names);
  }
}

}  // namespace natural_test
