#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "lib/look/inspect/inspect.h"

namespace fold_names_test {

using namespace twofour;

namespace {

/// "name x count" of each group, in order.
std::vector<std::string> folded(const std::vector<std::string>& names) {
  std::vector<std::string> texts;
  for (const auto& [name, members] : fold_names(names)) {
    texts.push_back(fmt::format("{} x {}", name, members.size()));
  }
  return texts;
}

using Texts = std::vector<std::string>;

/// How many names "l.0-2,5.e.1" stands for.
size_t claimed_by(const std::string& name) {
  size_t all = 1, here = 0;
  for (size_t i = 0; i <= name.size(); ++i) {
    const char c = i < name.size() ? name[i] : '.';
    const bool digit = c >= '0' && c <= '9';
    if (digit && name[i - 1] == '-') {
      here += static_cast<size_t>(c - name[i - 2]);
    } else if (digit) {
      ++here;
    } else if (c == '.' && here > 0) {
      all *= here;
      here = 0;
    }
  }
  return all;
}

}  // namespace

TEST_CASE("names that differ only in numbers fold into ranges") {
  CHECK(folded({"layers.0.norm", "layers.1.norm", "layers.2.norm"}) == Texts{"layers.0-2.norm x 3"});
  CHECK(folded({"layers.7.norm", "layers.0.norm", "layers.3.norm", "layers.1.norm"}) ==
        Texts{"layers.0-1,3,7.norm x 4"});
  CHECK(folded({"norm"}) == Texts{"norm x 1"});
  CHECK(folded({"layers.5.norm"}) == Texts{"layers.5.norm x 1"});
  CHECK(folded({}).empty());
}

TEST_CASE("all combinations of two numbers fold into one name") {
  Texts names;
  for (int l = 0; l < 12; ++l) {
    for (int e = 0; e < 8; ++e) names.push_back(fmt::format("l.{}.e.{}.up", l, e));
  }
  CHECK(folded(names) == Texts{"l.0-11.e.0-7.up x 96"});
}

TEST_CASE("where a combination is missing the name splits, and no name claims what is not there") {
  CHECK(folded({"l.0.e.0", "l.0.e.1", "l.1.e.0"}) == Texts{"l.0.e.0-1 x 2", "l.1.e.0 x 1"});
}

TEST_CASE("numbers behind which the same stands fold together beside others") {
  Texts names;
  for (const int l : {0, 1, 2, 3, 5}) {
    for (int e = 0; e < (l == 2 ? 3 : 4); ++e) {
      for (int s = 0; s < (l == 3 && e == 1 ? 1 : 2); ++s)
        names.push_back(fmt::format("l.{}.e.{}.s.{}", l, e, s));
    }
  }
  CHECK(folded(names) ==
        Texts{"l.0-1,5.e.0-3.s.0-1 x 24", "l.2.e.0-2.s.0-1 x 6", "l.3.e.0,2-3.s.0-1 x 6", "l.3.e.1.s.0 x 1"});
}

TEST_CASE("names of a thousand numbers, of which each place parts one from the rest, fold truly and soon") {
  constexpr size_t kPlaces = 1000;
  Texts names;
  for (size_t i = 0; i < kPlaces; ++i) {
    names.push_back("x");
    for (size_t place = 0; place < kPlaces; ++place) names.back() += place == i ? ".1" : ".0";
  }
  std::vector<size_t> found;
  for (const auto& [name, members] : fold_names(names)) {
    CHECK(claimed_by(name) == members.size());
    CHECK(name == names[members[0]]);
    found.insert(found.end(), members.begin(), members.end());
  }
  std::sort(found.begin(), found.end());
  REQUIRE(found.size() == kPlaces);
  for (size_t i = 0; i < kPlaces; ++i) CHECK(found[i] == i);
}

TEST_CASE("numbers stand between dots; others belong to the name") {
  CHECK(folded({"w1", "w2"}) == Texts{"w1 x 1", "w2 x 1"});
  CHECK(folded({"l.0.w1", "l.1.w1", "l.0.w2"}) == Texts{"l.0-1.w1 x 2", "l.0.w2 x 1"});
  CHECK(folded({"0", "1"}) == Texts{"0-1 x 2"});
  CHECK(folded({"a.1234567890123", "a.1234567890124"}).size() == 2);  // too long for a number
}

TEST_CASE("groups come in natural order") {
  CHECK(folded({"b.0", "a.10.x", "a.9.y", "a.9.x"}) == Texts{"a.9-10.x x 2", "a.9.y x 1", "b.0 x 1"});
}

TEST_CASE("names with a sign for numbers, empty pieces or leading zeros do not mix with numbers") {
  for (Texts names : {Texts{"a.5", "a.#"}, Texts{"a.#", "a.5"}}) {
    CHECK(folded(names) == Texts{"a.# x 1", "a.5 x 1"});
  }
  for (Texts names : {Texts{"5.#", "#.5"}, Texts{"#.5", "5.#"}}) {
    CHECK(folded(names) == Texts{"#.5 x 1", "5.# x 1"});
  }
  CHECK(folded({"a..5", "a.5.", ".5"}).size() == 3);
  CHECK(folded({""}) == Texts{" x 1"});
  // Two names that read alike as numbers stay two members.
  size_t members = 0;
  for (const auto& [name, indices] : fold_names({"a.01", "a.1"})) members += indices.size();
  CHECK(members == 2);
}

TEST_CASE("each name is in one group, whatever the names") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    Texts names;
    for (auto i = random() % 40; i > 0; --i) {
      std::string name = fmt::format("l.{}.e.{}", random() % 4, random() % 4);
      if (random() % 3 == 0) name += fmt::format(".{}", random() % 2);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    std::vector<size_t> seen;
    for (const auto& [name, members] : fold_names(names)) {
      CHECK(claimed_by(name) == members.size());
      seen.insert(seen.end(), members.begin(), members.end());
    }
    std::sort(seen.begin(), seen.end());
    REQUIRE(seen.size() == names.size());
    for (size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == i);
  }
}

}  // namespace fold_names_test
