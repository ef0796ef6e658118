#include "kernels/solve/solve.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "formats/e2m1.h"
#include "formats/error.h"
#include "lib/prove/expected/expected_solve.h"
#include "tests/support/message.h"
#include "tests/support/weights/solve_problem.h"

namespace solve_test {

// Every instruction set and any division of rows, against one row at a time in plain loops.

using namespace twofour;

namespace {

using Pattern = std::optional<PrunePattern>;
const std::vector<Pattern> kPatterns = {std::nullopt, PrunePattern::k2of4, PrunePattern::k4of8Paired};

struct Solved {
  std::vector<uint8_t> codes, scales;
  bool operator==(const Solved&) const = default;
};

Solved empty_for(const SolveProblem& p) {
  return {std::vector<uint8_t>(p.weights.size() / 2), std::vector<uint8_t>(p.weights.size() / 16)};
}

Solved solved(const SolveProblem& p, const SolveRule& rule, Regularization regularization,
              std::span<const uint8_t> mask, int threads, Isa isa) {
  Solved out = empty_for(p);
  const DampedHessian hessian =
      damped_hessian(p.hessian, p.k, regularization, rule.method != SolveMethod::diagonal, threads, isa);
  const GroupMaps maps(hessian, rule.pattern);
  solve_rows(rule, hessian, &maps, p.stored, {p.weights, mask}, {out.codes.data(), out.scales.data()},
             threads, isa);
  return out;
}

ExpectedSolver expected_of(const SolveRule& rule, float stored) {
  ExpectedSolver e;
  e.method =
      rule.method == SolveMethod::joint ? ExpectedSolver::Method::kJoint : ExpectedSolver::Method::kDiagonal;
  e.group = rule.pattern == PrunePattern::k4of8Paired ? 8 : 4;
  e.dense = !rule.pattern;
  e.divides = rule.arithmetic == Arithmetic::compressed_tensors;
  e.global = stored;
  e.zero_scale = rule.zero_scale;
  e.highest = rule.scale_search;
  e.sweeps = rule.sweeps;
  e.min_gain = rule.min_gain;
  return e;
}

Solved expected(const SolveProblem& p, const SolveRule& rule, Regularization regularization,
                std::span<const uint8_t> mask) {
  Solved out;
  const ExpectedHessian hessian = expect_hessian(p.hessian, p.k, regularization.damping,
                                                 regularization.shrink, rule.method != SolveMethod::diagonal);
  const auto k = static_cast<size_t>(p.k);
  for (size_t r = 0; r < static_cast<size_t>(p.rows()); ++r) {
    const ExpectedRow row =
        expect_row(expected_of(rule, p.stored), hessian, std::span(p.weights).subspan(r * k, k),
                   mask.empty() ? mask : mask.subspan(r * k, k));
    for (size_t i = 0; i < k; i += 2) {
      out.codes.push_back(static_cast<uint8_t>(row.codes[i] | row.codes[i + 1] << 4));
    }
    out.scales.insert(out.scales.end(), row.scales.begin(), row.scales.end());
  }
  return out;
}

std::vector<float> values_of(const SolveProblem& p, const Solved& s,
                             Arithmetic arithmetic = Arithmetic::modelopt) {
  std::vector<float> values(p.weights.size());
  dequantize_nvfp4(arithmetic, p.stored, s.codes.data(), s.scales.data(), values);
  return values;
}

bool has_pattern(const SolveProblem& p, const Solved& s, PrunePattern pattern) {
  const std::vector<float> values = values_of(p, s);
  const size_t each = pattern == PrunePattern::k2of4 ? 1 : 2;
  for (size_t first = 0; first < values.size(); first += 4 * each) {
    size_t kept = 0;
    for (size_t c = 0; c < 4; ++c) {
      bool any = false;
      for (size_t i = 0; i < each; ++i) any = any || values[first + c * each + i] != 0;
      kept += any;
    }
    if (kept > 2) return false;
  }
  return true;
}

std::vector<double> losses(const SolveProblem& p, const Solved& s, double damping) {
  const ExpectedHessian h = expect_hessian(p.hessian, p.k, damping, 0, false);
  const std::vector<float> values = values_of(p, s);
  const auto k = static_cast<size_t>(p.k);
  std::vector<double> out;
  for (size_t r = 0; r < static_cast<size_t>(p.rows()); ++r) {
    std::vector<float> e;
    for (size_t i = r * k; i < (r + 1) * k; ++i) e.push_back(p.weights[i] - values[i]);
    out.push_back(expect_form(h.matrix, e));
  }
  return out;
}

}  // namespace

TEST_CASE("every method gives the bytes of plain loops, on every instruction set, for any threads") {
  unsigned seed = 1;
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    for (const auto& [rows, k] : {std::pair{1, 16}, {33, 48}, {37, 144}}) {
      const SolveProblem p(rows, k, 3 * k, ++seed, arithmetic);
      for (const Pattern& pattern : kPatterns) {
        for (const SolveMethod method : {SolveMethod::joint, SolveMethod::diagonal}) {
          for (const int sweeps : {0, 3}) {
            SolveRule rule{method, pattern, arithmetic,
                           0x38,   sweeps,  sweeps == 3 && rows == 33 ? 0.0f : 0.005f};
            const Solved wanted = expected(p, rule, 0.01, {});
            for (const Isa isa : available_isas()) {
              REQUIRE(solved(p, rule, 0.01, {}, 1, isa) == wanted);
              REQUIRE(solved(p, rule, 0.01, {}, 3, isa) == wanted);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("shrunk Hessians and a wider search of scales give the bytes of plain loops") {
  unsigned seed = 200;
  for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
    const SolveProblem p(37, 144, 300, ++seed, arithmetic);
    for (const Pattern& pattern : kPatterns) {
      for (const SolveMethod method : {SolveMethod::joint, SolveMethod::diagonal}) {
        for (const double shrink : {0.0, 0.1, 0.5, 1.0}) {
          for (const int highest : {0, 7, 16}) {
            SolveRule rule{method, pattern, arithmetic, 0x38, highest == 7 ? 2 : 0};
            rule.scale_search = highest;
            const Solved wanted = expected(p, rule, {0.01, shrink}, {});
            for (const Isa isa : available_isas())
              REQUIRE(solved(p, rule, {0.01, shrink}, {}, 2, isa) == wanted);
          }
        }
      }
    }
  }
}

TEST_CASE(
    "a wider search never raises the loss by the diagonal, and lowers it; shrink 1 leaves the diagonal") {
  const SolveProblem p(64, 128, 1000, 9);
  std::vector<float> diagonal;
  for (size_t j = 0; j < 128; ++j) diagonal.push_back(p.hessian[j * 129]);
  const auto loss_of = [&](int highest) {
    SolveRule rule{SolveMethod::diagonal, std::nullopt};
    rule.scale_search = highest;
    Solved out = empty_for(p);
    solve_rows_by_diagonal(rule, diagonal, p.stored, {p.weights}, {out.codes.data(), out.scales.data()});
    const std::vector<float> values = values_of(p, out);
    std::vector<double> blocks(values.size() / 16);
    for (size_t i = 0; i < values.size(); ++i)
      blocks[i / 16] += std::pow(double{p.weights[i]} - double{values[i]}, 2) * double{diagonal[i % 128]};
    return blocks;
  };
  const std::vector<double> narrow = loss_of(2), wide = loss_of(7);
  size_t lower = 0;
  for (size_t b = 0; b < wide.size(); ++b) {
    REQUIRE(wide[b] <= narrow[b] * (1 + 1e-6));
    lower += wide[b] < narrow[b] * (1 - 1e-6);
  }
  CHECK(lower > 0);
  const DampedHessian shrunk = damped_hessian(p.hessian, p.k, {0.01, 1}, true);
  for (int64_t i = 0; i < p.k; ++i) {
    for (int64_t j = 0; j < p.k; ++j) {
      const auto at = static_cast<size_t>(i * p.k + j);
      if (i != j) REQUIRE((shrunk.matrix[at] == 0 && shrunk.factor[at] == 0));
    }
  }
}

TEST_CASE("importance is the diagonal itself, but ones where a block has none") {
  std::vector<float> diagonal(48, 0.25f);
  std::fill(diagonal.begin() + 16, diagonal.begin() + 32, 0.0f);
  diagonal[3] = 0;
  std::vector<float> wanted = diagonal;
  std::fill(wanted.begin() + 16, wanted.begin() + 32, 1.0f);
  CHECK(importance_weights(diagonal) == wanted);
  CHECK(expect_importance(diagonal) == wanted);
  diagonal[40] = -1;
  CHECK(message_of([&] { importance_weights(diagonal); }).find("column 40") != std::string::npos);
}

TEST_CASE("given masks stay, and are solved as by plain loops") {
  for (const PrunePattern pattern : {PrunePattern::k2of4, PrunePattern::k4of8Paired}) {
    const SolveProblem p(40, 96, 200, 77);
    const std::vector<uint8_t> mask = random_mask(p, pattern, 3);
    for (const SolveMethod method : {SolveMethod::joint, SolveMethod::diagonal}) {
      const SolveRule rule{method, pattern, Arithmetic::modelopt, 0x38, 2};
      const Solved wanted = expected(p, rule, 0.01, mask);
      const std::vector<float> values = values_of(p, wanted);
      for (size_t i = 0; i < mask.size(); ++i) REQUIRE((mask[i] == 1 || values[i] == 0));
      for (const Isa isa : available_isas()) REQUIRE(solved(p, rule, 0.01, mask, 1, isa) == wanted);
    }
  }
}

TEST_CASE("descent never raises the damped loss of a row, sweep by sweep; none gives the start") {
  for (const Pattern& pattern : kPatterns) {
    for (const SolveMethod method : {SolveMethod::joint, SolveMethod::diagonal}) {
      const SolveProblem p(48, 64, 300, 5);
      SolveRule rule{method, pattern, Arithmetic::modelopt, 0x38, 0, 0.0f};
      std::vector<double> before = losses(p, solved(p, rule, 0.01, {}, 1, best_isa()), 0.01);
      for (int sweeps = 1; sweeps <= 5; ++sweeps) {
        rule.sweeps = sweeps;
        const Solved now = solved(p, rule, 0.01, {}, 1, best_isa());
        if (pattern) CHECK(has_pattern(p, now, *pattern));
        const std::vector<double> after = losses(p, now, 0.01);
        double sum_before = 0, sum_after = 0;
        for (size_t r = 0; r < after.size(); ++r) {
          // Rows of zeros in float32 sums: a gain below their last place is none.
          REQUIRE(after[r] <= before[r] * (1 + 1e-6));
          sum_before += before[r];
          sum_after += after[r];
        }
        CHECK(sum_after <= sum_before);
        if (sweeps == 1) CHECK(sum_after < sum_before);
        before = after;
      }
    }
  }
}

TEST_CASE("what is chosen together loses less than what is chosen in turn, and that less than magnitudes") {
  const SolveProblem p(64, 128, 1000, 9);
  const auto sum = [&](SolveMethod method, int sweeps) {
    const SolveRule rule{method, PrunePattern::k2of4, Arithmetic::modelopt, 0x38, sweeps};
    double all = 0;
    for (const double l : losses(p, solved(p, rule, 0.01, {}, 1, best_isa()), 0.01)) all += l;
    return all;
  };
  CHECK(sum(SolveMethod::joint, 4) < sum(SolveMethod::joint, 0));
  CHECK(sum(SolveMethod::joint, 0) < sum(SolveMethod::diagonal, 0));
}

TEST_CASE("by the diagonal alone the bytes are those of the whole Hessian's diagonal") {
  const SolveProblem p(35, 64, 100, 21);
  std::vector<float> diagonal;
  for (size_t j = 0; j < 64; ++j) diagonal.push_back(p.hessian[j * 65]);
  const std::vector<float> damped = damped_diagonal(diagonal, 0.01);
  CHECK(damped == expect_diagonal(diagonal, 0.01));
  for (const Pattern& pattern : kPatterns) {
    const SolveRule rule{SolveMethod::diagonal, pattern};
    for (const Isa isa : available_isas()) {
      Solved out = empty_for(p);
      solve_rows_by_diagonal(rule, damped, p.stored, {p.weights}, {out.codes.data(), out.scales.data()}, 2,
                             isa);
      CHECK(out == solved(p, rule, 0.01, {}, 1, isa));
    }
  }
}

TEST_CASE("a Hessian of rank one, of one token, and of zeros") {
  for (const int tokens : {1, 2}) {
    SolveProblem p(20, 32, tokens, 31);
    if (tokens == 2) std::fill(p.hessian.begin(), p.hessian.end(), 0.0f);
    const SolveRule rule{SolveMethod::joint, PrunePattern::k2of4, Arithmetic::modelopt, 0x38, 2};
    const Solved wanted = expected(p, rule, 0.1, {});
    for (const Isa isa : available_isas()) CHECK(solved(p, rule, 0.1, {}, 1, isa) == wanted);
    CHECK(has_pattern(p, wanted, PrunePattern::k2of4));
  }
}

TEST_CASE("blocks of zero codes have the scale that is asked for, and no code is a negative zero") {
  const SolveProblem p(10, 64, 100, 41);
  const SolveRule rule{SolveMethod::joint, PrunePattern::k2of4, Arithmetic::modelopt, 0x00, 1};
  const Solved s = solved(p, rule, 0.01, {}, 1, best_isa());
  bool found = false;
  for (size_t b = 0; b < s.scales.size(); ++b) {
    bool any = false;
    for (size_t i = 8 * b; i < 8 * b + 8; ++i) {
      CHECK((s.codes[i] & 15) != 8);
      CHECK((s.codes[i] >> 4) != 8);
      any = any || s.codes[i] != 0;
    }
    CHECK((s.scales[b] == 0) == !any);
    found = found || !any;
  }
  CHECK(found);
}

TEST_CASE("global scales whose steps are no normal numbers cannot be solved under") {
  CHECK(is_solvable(Arithmetic::modelopt, 1e-4f));
  CHECK(is_solvable(Arithmetic::compressed_tensors, 1e4f));
  for (const float stored : {0.0f, 1e-37f, 1e38f, -1.0f, std::nanf("")}) {
    CHECK(!is_solvable(Arithmetic::modelopt, stored));
    CHECK(!is_solvable(Arithmetic::compressed_tensors, stored == 1e-37f ? 1e38f : stored));
  }
}

TEST_CASE("the scale of a block of zeros is the quantizer's") {
  QuantizeRule rule;
  CHECK(zero_scale_of(rule, global_scale_of(rule, 1.0f)) == 0x38);
  rule.zero_block = ZeroBlock::zero;
  CHECK(zero_scale_of(rule, global_scale_of(rule, 1.0f)) == 0);
}

}  // namespace solve_test
