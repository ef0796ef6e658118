// Formats beside NVFP4: every instruction set and any number of threads, against one row at a time in plain
// loops; and better than rounding.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "kernels/numbers/casts.h"
#include "kernels/numbers/quantize_mx.h"
#include "kernels/solve/solve.h"
#include "lib/prove/expected/expected_solve.h"
#include "tests/support/weights/solve_problem.h"

namespace solve_formats_test {

using namespace twofour;

namespace {

const std::vector<WeightFormat> kFormats = {WeightFormat::kMxfp4, WeightFormat::kMxfp6, WeightFormat::kMxfp8,
                                            WeightFormat::kFp8};

struct Solved {
  std::vector<uint8_t> codes, scales;
  bool operator==(const Solved&) const = default;
};

std::string word_of(WeightFormat format) { return has_fixed_scales(format) ? "fp8" : format->to; }

/// Scales of tiles of one row by `width`, one for 16 weights.
std::vector<float> tile_steps(const SolveProblem& p, int64_t width) {
  std::vector<float> steps;
  for (int64_t r = 0; r < p.rows(); ++r) {
    for (int64_t first = 0; first < p.k; first += width) {
      float amax = 0;
      const int64_t last = std::min(first + width, p.k);
      for (int64_t i = first; i < last; ++i)
        amax = std::max(amax, std::abs(p.weights[static_cast<size_t>(r * p.k + i)]));
      steps.insert(steps.end(), static_cast<size_t>((last - first) / 16), fp8_scale_of(amax));
    }
  }
  return steps;
}

Solved empty_for(const SolveProblem& p, WeightFormat format) {
  const auto count = static_cast<int64_t>(p.weights.size());
  const int64_t scales = has_fixed_scales(format) ? 0 : count / solved_block(format);
  return {std::vector<uint8_t>(static_cast<size_t>(format->code_bytes(count))),
          std::vector<uint8_t>(static_cast<size_t>(scales))};
}

Solved solved(const SolveProblem& p, const SolveRule& rule, std::span<const float> steps, int threads,
              Isa isa) {
  Solved out = empty_for(p, rule.format);
  const DampedHessian h =
      damped_hessian(p.hessian, p.k, 0.01, rule.method != SolveMethod::diagonal, threads, isa);
  const GroupMaps maps(h, std::nullopt);
  solve_rows(rule, h, &maps, 1, {p.weights, {}, steps}, {out.codes.data(), out.scales.data()}, threads, isa);
  return out;
}

Solved expected(const SolveProblem& p, const SolveRule& rule, std::span<const float> steps) {
  ExpectedSolver e;
  use_format(e, word_of(rule.format));
  e.method =
      rule.method == SolveMethod::joint ? ExpectedSolver::Method::kJoint : ExpectedSolver::Method::kDiagonal;
  e.dense = true;
  e.zero_scale = rule.zero_scale;
  e.highest = rule.scale_search;
  e.sweeps = rule.sweeps;
  const ExpectedHessian h = expect_hessian(p.hessian, p.k, 0.01, 0, rule.method != SolveMethod::diagonal);
  const auto k = static_cast<size_t>(p.k);
  Solved out;
  for (size_t r = 0; r < static_cast<size_t>(p.rows()); ++r) {
    if (!steps.empty()) e.steps.assign(&steps[r * k / 16], &steps[r * k / 16] + k / 16);
    const ExpectedRow row = expect_row(e, h, std::span(p.weights).subspan(r * k, k));
    const auto packed = pack_expected(static_cast<size_t>(rule.format->grid.bits), row.codes);
    out.codes.insert(out.codes.end(), packed.begin(), packed.end());
    if (steps.empty()) out.scales.insert(out.scales.end(), row.scales.begin(), row.scales.end());
  }
  return out;
}

/// tr(e H e') of all rows, of codes that are read back.
double loss(const SolveProblem& p, WeightFormat format, const Solved& s, std::span<const float> steps) {
  std::vector<float> back(p.weights.size());
  if (has_fixed_scales(format)) {
    for (size_t b = 0; b < steps.size(); ++b)
      decode_fp8(std::span(s.codes).subspan(16 * b, 16), steps[b], &back[16 * b]);
  } else {
    dequantize_mx(format, s.codes, s.scales, back.data());
  }
  double sum = 0;
  const auto k = static_cast<size_t>(p.k);
  for (size_t r = 0; r < p.weights.size(); r += k) {
    std::vector<float> e;
    for (size_t i = r; i < r + k; ++i) e.push_back(p.weights[i] - back[i]);
    sum += expect_form(p.hessian, e);
  }
  return sum;
}

double rounded_loss(const SolveProblem& p, WeightFormat format, std::span<const float> steps) {
  Solved s = empty_for(p, format);
  if (has_fixed_scales(format)) {
    for (size_t b = 0; b < steps.size(); ++b)
      encode_fp8(std::span(p.weights).subspan(16 * b, 16), steps[b], &s.codes[16 * b]);
  } else {
    quantize_mx(format, {Arithmetic::compressed_tensors, DType::kF32}, p.weights, s.codes.data(),
                s.scales.data());
  }
  return loss(p, format, s, steps);
}

}  // namespace

TEST_CASE("every format is solved to the bytes of plain loops, on every instruction set, for any threads") {
  unsigned seed = 1;
  for (const WeightFormat format : kFormats) {
    CAPTURE(word_of(format));
    for (const auto& [rows, k] : {std::pair{1, 32}, {33, 96}, {37, 160}}) {
      const SolveProblem p(rows, k, 3 * k, ++seed);
      const auto steps = has_fixed_scales(format) ? tile_steps(p, rows == 33 ? 32 : k) : std::vector<float>();
      for (const SolveMethod method : {SolveMethod::joint, SolveMethod::diagonal}) {
        for (const int sweeps : {0, 2}) {
          SolveRule rule;
          rule.method = method;
          rule.format = format;
          rule.sweeps = sweeps;
          rule.scale_search = rows == 37 ? 3 : 1;
          rule.zero_scale = rows == 33 ? 127 : 0;
          const Solved wanted = expected(p, rule, steps);
          for (const Isa isa : available_isas()) {
            REQUIRE(solved(p, rule, steps, 1, isa) == wanted);
            REQUIRE(solved(p, rule, steps, 3, isa) == wanted);
          }
        }
      }
    }
  }
}

TEST_CASE("solved codes of every format lose less of the output than rounded ones, on rows of real length") {
  const SolveProblem p(24, 576, 3000, 7);
  for (const WeightFormat format : kFormats) {
    CAPTURE(word_of(format));
    const auto steps = has_fixed_scales(format) ? tile_steps(p, p.k) : std::vector<float>();
    SolveRule rule;
    rule.format = format;
    rule.scale_search = 1;
    rule.zero_scale = 0;
    rule.sweeps = has_fixed_scales(format) ? 0 : 2;
    const double rounded = rounded_loss(p, format, steps);
    const double found = loss(p, format, solved(p, rule, steps, 2, best_isa()), steps);
    CHECK_MESSAGE(found < 0.7 * rounded, word_of(format) << ": " << found << " of " << rounded);
  }
}

}  // namespace solve_formats_test
