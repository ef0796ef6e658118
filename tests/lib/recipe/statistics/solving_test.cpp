#include "lib/recipe/statistics/solving.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/prove/expected/expected_hessian.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/statistics_builder.h"

namespace solving_test {

using namespace twofour;

TEST_CASE("what a file holds of a linear decides how it is solved") {
  const Scratch scratch;
  const auto choose = [&](const char* kind, int64_t tokens, bool pattern, const SolvingSettings& words = {}) {
    StatisticsBuilder b;
    b.add({"m"}, 32, tokens, kind);
    b.write(scratch / "s");
    const Statistics s = Statistics::open(scratch / "s");
    const Solving solving = choose_solving(s, "m", words, pattern);
    return fmt::format("{} {} {}{}{}", solving_name(solving, pattern), solving.sweeps, solving.damping,
                       solving.why.empty() ? "" : ": ", solving.why);
  };
  CHECK(choose("hessian", 128, true) == "joint 4 0.01");
  CHECK(choose("packed", 128, false) == "gptq 2 0.01");
  CHECK(choose("hessian", 127, true) ==
        "joint 0 0.1: fewer than 4 tokens an input, 127 tokens for 32 inputs");
  CHECK(choose("hessian", 32, false) == "gptq 0 0.1: fewer than 4 tokens an input, 32 tokens for 32 inputs");
  CHECK(choose("hessian", 31, true) == "wanda 0 0.01: fewer tokens than inputs, 31 tokens for 32 inputs");
  CHECK(choose("hessian", 31, false) == "rtn 0 0.01: fewer tokens than inputs, 31 tokens for 32 inputs");
  CHECK(choose("hessian", 0, true) == "plain 0 0.01: no tokens");
  CHECK(choose("hessian_blocks", 64, true) == "joint 4 0.01");
  CHECK(choose("sum_squares", 1000, true) == "wanda 0 0.01: only a diagonal");
  CHECK(choose("hessian", 128, true, {SolveBy::kWanda}) == "wanda 0 0.01");
  CHECK(choose("hessian", 128, true, {SolveBy::kWanda, 3}) == "wanda 3 0.01");
  CHECK(choose("sum_squares", 128, true, {SolveBy::kWanda, 3}) == "wanda 0 0.01");
  CHECK(choose("hessian", 128, true, {SolveBy::kJoint, 0}) == "joint 0 0.01");
  // Where a rule says how far scales are searched, squares alone have weights that are not damped.
  const SolvingSettings own = {{}, -1, 0.5, 7};
  const SolvingSettings by_squares = {SolveBy::kRtn, -1, 0.5, 7}, descends = {SolveBy::kRtn, 2, 0.5, 7};
  CHECK(choose("sum_squares", 1000, false, own) == "rtn 0 0: only a diagonal");
  CHECK(choose("hessian", 128, false, by_squares) == "rtn 0 0");
  CHECK(choose("hessian", 128, false, descends) == "rtn 2 0.01");
  CHECK(choose("hessian", 31, false, own) == "rtn 0 0: fewer tokens than inputs, 31 tokens for 32 inputs");
  CHECK(choose("hessian", 31, true, own) ==
        "wanda 0 0.01: fewer tokens than inputs, 31 tokens for 32 inputs");
  CHECK(choose("hessian", 128, false, own) == "gptq 2 0.01");
  CHECK(choose("hessian", 127, false, own) ==
        "gptq 0 0.1: fewer than 4 tokens an input, 127 tokens for 32 inputs");
  const auto settings = [&](const SolvingSettings& words) {
    const Solving s = choose_solving(Statistics::open(scratch / "s"), "m", words, false);
    return fmt::format("{} {}", s.shrink, s.scale_search);
  };
  CHECK(settings({}) == "0 2");
  CHECK(settings(own) == "0.5 7");
  // Sums of zeros choose nothing: the same methods, and a reason.
  for (const std::string kind : {"hessian", "hessian_blocks", "sum_squares"}) {
    StatisticsBuilder zeros;
    zeros.add({"m"}, 32, 128, kind);
    std::fill(zeros.tensors[0].bytes.begin(), zeros.tensors[0].bytes.end(), uint8_t{0});
    zeros.write(scratch / "s");
    const Solving solving = choose_solving(Statistics::open(scratch / "s"), "m", {}, true);
    CHECK(solving_name(solving, true) == (kind == "sum_squares" ? "wanda" : "joint"));
    CHECK(solving.why == "inputs that are all 0, in 128 tokens");
    // Of a run that has not ended they say nothing yet.
    zeros.metadata["format"] = "twofour statistics 0";
    zeros.write(scratch / "s");
    const Statistics unfinished = Statistics::open_unfinished(scratch / "s");
    CHECK(choose_solving(unfinished, "m", {}, true).why == (kind == "sum_squares" ? "only a diagonal" : ""));
  }
  StatisticsBuilder b;
  b.add({"m"}, 32, 100);
  b.write(scratch / "s");
  CHECK(choose_solving(Statistics::open(scratch / "s"), "n", {}, true).why == "no statistics");
}

TEST_CASE("statistics are shrunk, less with a pattern and less if tokens are guided") {
  const Scratch scratch;
  const auto shrink = [&](const char* weighting, bool pattern) {
    StatisticsBuilder b;
    b.add({"m"}, 32, 128);
    if (*weighting != '\0') b.metadata["weighting"] = weighting;
    b.write(scratch / "s");
    return default_shrink(Statistics::open(scratch / "s"), pattern);
  };
  for (const char* weighting : {"", "plain"}) {
    CHECK(shrink(weighting, false) == 0.5);
    CHECK(shrink(weighting, true) == 0.1);
  }
  CHECK(shrink("guided", false) == 0.2);
  CHECK(shrink("guided", true) == 0.05);
}

TEST_CASE("means far from 1 are brought near to it exactly, by a power of four that the proof finds too") {
  const auto at = [](int power, bool diagonal) {
    std::vector<float> mean;
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < (diagonal ? 1 : 4); ++j)
        mean.push_back(i == 2 ? 0.0f : std::ldexp(static_cast<float>(3 + i + j), power));
    }
    return mean;
  };
  for (const bool diagonal : {false, true}) {
    for (int power = -120; power <= 120; ++power) {
      CAPTURE(power);
      std::vector<float> mean = at(power, diagonal);
      const ExpectedMean expected = expect_mean(mean, 4);
      const double unit = take_unit(mean, 4);
      CHECK(unit == expected.unit);
      CHECK((mean == expected.numbers));
      const int shift = std::ilogb(unit);
      CHECK(unit == std::ldexp(1.0, shift));
      CHECK(shift % 2 == 0);
      CHECK((mean == at(power + shift, diagonal)));
      // Of 4 columns one is empty; the others are 13/3 or 17/3 on average.
      if (power >= -34 && power <= 29) {
        CHECK(unit == 1);
      } else {
        CHECK(power + shift == (power % 2 == 0 ? -2 : -1));
      }
    }
  }
  std::vector<float> zeros(16);
  CHECK(take_unit(zeros, 4) == 1);
  CHECK(expect_mean(zeros, 4).unit == 1);
  std::vector<float> least(1, 0x1p-149f);
  CHECK(take_unit(least, 1) == 0x1p150);
  CHECK(least[0] == 2);
}

}  // namespace solving_test
