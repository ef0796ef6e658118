#include "lib/recipe/choice/format_choice.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "tests/support/message.h"

namespace format_choice_test {

using namespace twofour;

namespace {

struct Best {
  double loss = std::numeric_limits<double>::infinity();
  uint64_t cost = 0;
};

/// The least loss of all choices, one after the other.
Best best_of_all(const std::vector<ChoiceUnit>& units, uint64_t limit, size_t unit = 0, double loss = 0,
                 uint64_t cost = 0) {
  if (unit == units.size()) return cost <= limit ? Best{loss, cost} : Best{};
  Best best;
  for (const FormatOption& o : units[unit].options) {
    const Best one = best_of_all(units, limit, unit + 1, loss + o.loss, cost + o.cost);
    if (one.loss < best.loss) best = one;
  }
  return best;
}

/// Units of random sizes, with formats whose losses fall by about four a bit.
std::vector<ChoiceUnit> random_units(std::mt19937& random, size_t count, bool coarse) {
  constexpr double kBits[] = {3.5, 4.25, 4.5, 6.25, 8, 16};
  std::vector<ChoiceUnit> units;
  for (size_t i = 0; i < count; ++i) {
    ChoiceUnit unit{fmt::format("unit {}", i), {}};
    const uint64_t weights = 64 * (1 + random() % 9);
    const double scale = std::exp2(static_cast<double>(random() % 80) / 10);
    for (const double bits : kBits) {
      if (random() % 5 == 0 && !unit.options.empty()) continue;
      double loss = scale * std::exp2(-2 * bits) * (1 + static_cast<double>(random() % 100) / 100);
      if (coarse) loss = std::floor(loss * 64);  // many choices are equal
      unit.options.push_back(
          {fmt::format("{}", bits), static_cast<uint64_t>(bits * static_cast<double>(weights)), loss});
    }
    std::shuffle(unit.options.begin(), unit.options.end(), random);
    units.push_back(std::move(unit));
  }
  return units;
}

Best sums_of(const std::vector<ChoiceUnit>& units, const FormatChoice& choice) {
  Best sum{0, 0};
  for (size_t i = 0; i < units.size(); ++i) {
    sum.loss += units[i].options.at(choice.options.at(i)).loss;
    sum.cost += units[i].options.at(choice.options.at(i)).cost;
  }
  return sum;
}

}  // namespace

TEST_CASE("a choice is the best of all choices, and never larger than asked for") {
  std::mt19937 random(1);
  for (int round = 0; round < 600; ++round) {
    const auto units = random_units(random, 1 + random() % 6, round % 3 == 0);
    const uint64_t least = least_cost(units);
    const uint64_t limit = least + random() % (3 * least);
    const FormatChoice found = choose_formats(units, limit);
    const Best sums = sums_of(units, found), best = best_of_all(units, limit);
    CAPTURE(round);
    CHECK(found.cost == sums.cost);
    CHECK(found.loss == doctest::Approx(sums.loss).epsilon(1e-12));
    CHECK(found.cost <= limit);
    CHECK(found.is_best);
    CHECK(found.loss <= best.loss * (1 + 1e-9) + 1e-12);
    CHECK(found.least_loss <= best.loss * (1 + 1e-9) + 1e-12);
    CHECK(choose_formats(units, limit).options == found.options);
  }
}

TEST_CASE("a size that is not to be had is refused with the least, which can be had") {
  std::mt19937 random(2);
  const auto units = random_units(random, 5, false);
  const uint64_t least = least_cost(units);
  CHECK(choose_formats(units, least).cost == least);
  CHECK(message_of([&] { choose_formats(units, least - 1); }) ==
        fmt::format("expected a size of {} or more, the least of these formats, found {}", least, least - 1));
  CHECK(message_of([] {
          choose_formats(std::vector<ChoiceUnit>{{"a", {}}}, 1);
        }) == "a: expected a format that it may get, found none");
  CHECK(message_of([] {
          format_curve(std::vector<ChoiceUnit>{{"a", {{"x", 1, -1.0}}}});
        }) == "a: expected a loss of 0 or more in x, found -1");
  CHECK(choose_formats({}, 0).is_best);
}

TEST_CASE("the curve falls, and each of its points is what the choice finds for its cost") {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    const auto units = random_units(random, 6, round % 2 == 0);
    const FormatCurve curve = format_curve(units);
    CHECK(curve.first.cost == least_cost(units));
    uint64_t cost = curve.first.cost;
    double loss = curve.first.loss, saved = std::numeric_limits<double>::infinity();
    for (const FormatCurve::Step& step : curve.steps) {
      CHECK(step.cost > cost);
      CHECK(step.loss < loss);
      CHECK(step.saved <= saved);
      cost = step.cost, loss = step.loss, saved = step.saved;
      CHECK(choose_formats(units, cost).loss == doctest::Approx(loss).epsilon(1e-9));
    }
  }
}

TEST_CASE("a Qwen3-Next of 48 layers is chosen for within ten seconds, exactly") {
  // q+k+v or linear attention's two projections, o, the shared expert's two, and 512 experts of 512 x 2048.
  std::mt19937 random(4);
  constexpr std::pair<const char*, double> kMenu[] = {{"v7", 3.5},     {"mxfp4", 4.25}, {"nvfp4", 4.5},
                                                      {"mxfp6", 6.25}, {"fp8", 8},      {"bf16", 16}};
  std::vector<ChoiceUnit> units;
  for (int layer = 0; layer < 48; ++layer) {
    const bool is_full = layer % 4 == 3;
    std::vector<std::pair<std::string, uint64_t>> parts = {{"experts", 512ull * 3 * 512 * 2048},
                                                           {"shared_gate_up", 2ull * 512 * 2048},
                                                           {"shared_down", 512ull * 2048}};
    if (is_full) {
      parts.insert(parts.end(), {{"qkv", 9216ull * 2048}, {"o", 4096ull * 2048}});
    } else {
      parts.insert(parts.end(), {{"qkvz", 12288ull * 2048}, {"ba", 64ull * 2048}, {"out", 4096ull * 2048}});
    }
    for (const auto& [name, weights] : parts) {
      ChoiceUnit unit{fmt::format("{}.{}", layer, name), {}};
      const double scale = std::exp(static_cast<double>(random() % 1000) / 300) * 1e-3;
      for (const auto& [format, bits] : kMenu) {
        const double noise = 1 + static_cast<double>(random() % 1000) / 3000;
        unit.options.push_back({format, static_cast<uint64_t>(bits * static_cast<double>(weights)),
                                format == std::string("bf16") ? 0 : scale * noise * std::exp2(-1.9 * bits)});
      }
      units.push_back(std::move(unit));
    }
  }
  uint64_t weights = 0;
  for (const ChoiceUnit& unit : units) weights += unit.options.back().cost / 16;
  for (const double bits : {3.75, 4.25, 4.5, 4.75, 5.0, 5.5, 6.25, 9.0}) {
    const auto start = std::chrono::steady_clock::now();
    const auto limit = static_cast<uint64_t>(bits * static_cast<double>(weights));
    const FormatChoice found = choose_formats(units, limit);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    MESSAGE(bits, " bits: ", seconds, " s, ", found.loss / found.least_loss - 1,
            " above the bound, best: ", found.is_best);
    CHECK(seconds < 10);
    CHECK(found.cost <= limit);
    CHECK(found.is_best);
  }
}

}  // namespace format_choice_test
