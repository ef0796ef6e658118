#include "lib/base/names/name_tree.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>

namespace name_tree_test {

using namespace twofour;

namespace {

/// "  label bytes" a line, the position of a leaf behind it.
std::string tree(const std::vector<std::pair<std::string, uint64_t>>& names) {
  std::string text;
  for (const TreeLine& l : name_tree(names)) {
    text += fmt::format("{:{}}{} {}{}\n", "", 2 * l.depth, l.label, l.bytes,
                        l.leaf ? fmt::format(" #{}", *l.leaf) : "");
  }
  return text;
}

}  // namespace

TEST_CASE("numbers stay with what they count, parents hold the sum, chains are one line") {
  CHECK(tree({{"lm_head.weight", 5},
              {"model.layers.0-47.mlp.experts.0-511.gate_proj.weight", 100},
              {"model.layers.0-47.mlp.experts.0-511.gate_proj.weight_scale", 10},
              {"model.layers.0-47.norm", 3},
              {"model.layers.3,7.norm", 2}}) ==
        "lm_head.weight 5 #0\n"
        "model 115\n"
        "  layers.0-47 113\n"
        "    mlp.experts.0-511.gate_proj 110\n"
        "      weight 100 #1\n"
        "      weight_scale 10 #2\n"
        "    norm 3 #3\n"
        "  layers.3,7.norm 2 #4\n");
}

TEST_CASE("a name may be the beginning of another, stand twice, begin with a number or be empty") {
  CHECK(tree({{"a", 1}, {"a.b", 2}, {"a.b", 3}, {"a.b.c", 4}, {"7.a", 5}, {"", 6}}) ==
        "a 1 #0\n"
        "a 9\n"
        "  b 2 #1\n"
        "  b 3 #2\n"
        "  b.c 4 #3\n"
        "7.a 5 #4\n"
        " 6 #5\n");
  CHECK(tree({}).empty());
}

TEST_CASE("a parent keeps its place and its children wherever their names stand") {
  CHECK(tree({{"a.x", 1}, {"b", 2}, {"a.y.u", 3}, {"a.y", 4}, {"a.y.v", 5}}) ==
        "a 13\n"
        "  x 1 #0\n"
        "  y 8\n"
        "    u 3 #2\n"
        "    v 5 #4\n"
        "  y 4 #3\n"
        "b 2 #1\n");
}

TEST_CASE("names that have nothing in common take no more than a look-up each") {
  constexpr size_t kNames = 300'000;
  std::vector<std::pair<std::string, uint64_t>> names;
  for (size_t i = 0; i < kNames; ++i) names.emplace_back(fmt::format("x{}y.a.w", i), 1);
  const auto start = std::chrono::steady_clock::now();
  const auto lines = name_tree(names);
  CHECK(std::chrono::steady_clock::now() - start <
        std::chrono::seconds(20));  // minutes, if all were searched
  REQUIRE(lines.size() == kNames);
  CHECK(lines.back().label == fmt::format("x{}y.a.w", kNames - 1));
}

}  // namespace name_tree_test
