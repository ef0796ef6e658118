// The examples of formats/README.md, read from it: the text and the code cannot drift apart.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/layouts/layouts.h"

namespace spec_test {

using namespace twofour;

namespace {

unsigned hex(const std::string& text) { return static_cast<unsigned>(std::stoul(text, nullptr, 16)); }

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

/// The examples of one kind, as words behind it.
std::vector<std::vector<std::string>> examples(const std::string& kind) {
  std::ifstream file(TWOFOUR_SOURCE_DIR "/formats/README.md");
  std::vector<std::vector<std::string>> found;
  for (std::string line; std::getline(file, line);) {
    const auto w = words(line);
    if (w.size() > 2 && w[0] == "example" && w[1] == kind) found.emplace_back(w.begin() + 2, w.end());
  }
  return found;
}

}  // namespace

TEST_CASE("codes and scales have the values that the spec names") {
  CHECK(examples("e2m1").size() == 2);
  for (const auto& w : examples("e2m1")) CHECK(e2m1_to_float(hex(w[0])) == std::stof(w[2]));
  CHECK(examples("e4m3").size() == 3);
  for (const auto& w : examples("e4m3")) CHECK(e4m3_to_float(hex(w[0])) == std::stof(w[2]));
}

TEST_CASE("a group is pruned as the spec shows") {
  REQUIRE(examples("prune").size() == 1);
  const auto w = examples("prune")[0];
  DenseGroup dense{};
  for (size_t i = 0; i < 8; ++i) dense.codes[i] = static_cast<uint8_t>(hex(w[i]));
  dense.scale = 0x38;
  const SparseGroup sparse = prune(dense);
  for (size_t i = 0; i < 4; ++i) CHECK(sparse.comp[i] == hex(w[9 + i]));
  for (size_t i = 0; i < 2; ++i) CHECK(sparse.meta[i] == hex(w[13 + i]));
  CHECK(sparse.scale == 0x38);
}

TEST_CASE("stored bytes hold what the spec says") {
  size_t seen = 0;
  for_each_layout([&]<class L>() {
    for (const auto& w : examples(L::name)) {
      // shape E N K [gated] PART OFFSET = expert E n N group G byte B, or padding
      const size_t i = w[4] == "gated" ? 5 : 4;
      const Shape shape{std::stoll(w[1]), std::stoll(w[2]), std::stoll(w[3]), i == 5};
      for (int p = 0; p < L::part_count; ++p) {
        const Part part = L::part(p, shape);
        if (w[i] != part.suffix) continue;
        const int64_t offset = std::stoll(w[i + 1]);
        const Place at{offset / part.bytes(), offset % part.bytes() / part.cols, offset % part.cols};
        const Source s = L::source(p, shape, at);
        if (w[i + 3] == "padding") {
          CHECK(s.byte == kPadding);
        } else {
          CHECK(s == Source{std::stoll(w[i + 4]), std::stoll(w[i + 6]), std::stoll(w[i + 8]),
                            std::stoi(w[i + 10])});
        }
        ++seen;
      }
    }
  });
  CHECK(seen == 8);
}

TEST_CASE("a folded block scale is rounded as the spec shows") {
  CHECK(examples("fold").size() == 2);
  for (const auto& w : examples("fold")) {
    const float factor = std::stof(w[1]) / std::stof(w[2]);
    CHECK(e4m3_from_float(e4m3_to_float(hex(w[0])) * factor) == hex(w[4]));
  }
}

}  // namespace spec_test
