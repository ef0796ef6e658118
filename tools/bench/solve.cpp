#include "kernels/solve/solve.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <random>

#include "lib/threads/stopwatch.h"
#include "tools/bench/bench.h"
#include "tools/cli/arguments.h"

namespace twofour {
namespace {

struct SolveArguments {
  int rounds = 5;
};

/// Rows of weights and the mean of x x' of inputs that depend on each other.
struct SolveProblem {
  int64_t rows, k;
  std::vector<float> weights, hessian;

  SolveProblem(int64_t n, int64_t inputs) : rows(n), k(inputs) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> size;
    for (int64_t j = 0; j < k; ++j) size.push_back(std::exp(0.7f * normal(random)));
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        const float near = 0.5f * std::exp(-0.05f * static_cast<float>(std::abs(i - j)));
        hessian.push_back(size[static_cast<size_t>(i)] * size[static_cast<size_t>(j)] *
                          (i == j ? 1.5f : near));
      }
    }
    for (int64_t i = 0; i < rows * k; ++i) weights.push_back(0.02f * normal(random));
  }
};

/// One instruction set on one problem: times of one thread, in alternating rounds.
struct SolveTimes {
  Spread product, prepare, dense, pattern;  ///< seconds; the last two over that of one product
};

SolveTimes measure(const SolveProblem& p, Isa isa, int rounds) {
  std::vector<double> product, prepare, dense, pattern;
  std::vector<uint8_t> codes(p.weights.size() / 2), scales(p.weights.size() / 16);
  float amax = 0;
  for (const float w : p.weights) amax = std::max(amax, std::fabs(w));
  const float stored = global_scale_of(QuantizeRule(), amax).stored;
  for (int round = 0; round < rounds; ++round) {
    Stopwatch watch;
    quadratic_forms(p.hessian, p.k, p.weights, 1, isa);
    product.push_back(watch.lap());
    const DampedHessian hessian = damped_hessian(p.hessian, p.k, 0.01, true, 1, isa);
    const GroupMaps all(hessian, std::nullopt), two(hessian, PrunePattern::k2of4);
    prepare.push_back(watch.lap());
    const auto solve = [&](const GroupMaps& maps, int sweeps) {
      const SolveRule rule{.pattern = maps.pattern(), .sweeps = sweeps, .min_gain = 0};
      solve_rows(rule, hessian, &maps, stored, {p.weights}, {codes.data(), scales.data()}, 1, isa);
      return watch.lap() / product.back();
    };
    dense.push_back(solve(all, 2));
    pattern.push_back(solve(two, 4));
  }
  return {spread_of(product), spread_of(prepare), spread_of(dense), spread_of(pattern)};
}

int run_bench_solve(const SolveArguments& o, const Common& common) {
  Json results = Json::array();
  for (const auto& [rows, k] : {std::pair{1024, 2048}, {2048, 512}}) {
    const SolveProblem problem(rows, k);
    for (const Isa isa : available_isas()) {
      const SolveTimes t = measure(problem, isa, o.rounds);
      results.push_back({{"shape", {rows, k}},
                         {"isa", isa_name(isa)},
                         {"product_seconds", spread_to_json(t.product)},
                         {"prepare_seconds", spread_to_json(t.prepare)},
                         {"gptq_2_sweeps_over_product", spread_to_json(t.dense)},
                         {"joint_4_sweeps_over_product", spread_to_json(t.pattern)}});
      if (common.json) continue;
      print_stdout(
          "[{}, {}], {}: one product with H {:.0f} ms; factor and maps {:.0f} ms; over one product: gptq and "
          "2 "
          "sweeps {}, 2:4 joint and 4 sweeps {}\n",
          rows, k, isa_name(isa), 1e3 * t.product.median, 1e3 * t.prepare.median, spread_text(t.dense),
          spread_text(t.pattern));
    }
  }
  if (common.json) print_json({{"solve", std::move(results)}});
  return kDone;
}

}  // namespace

std::function<int()> setup_bench_solve(Arguments& args, const Common& common) {
  auto o = std::make_shared<SolveArguments>();
  args.option("--rounds", o->rounds, "Rounds; figures are medians").range(1, 1000);
  args.footer(
      "One thread. A product is that of all rows with the Hessian [K, K], which a sweep has to do as well.");
  return [o, &common] { return run_bench_solve(*o, common); };
}

}  // namespace twofour
