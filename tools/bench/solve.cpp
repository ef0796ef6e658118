#include "kernels/solve/solve.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "kernels/solve/device_solve.h"
#include "lib/base/threads/stopwatch.h"
#include "tools/bench/bench.h"
#include "tools/cli/arguments.h"

namespace twofour {
namespace {

struct SolveArguments {
  int rounds = 5;
};

/// A problem: rows of weights, and the mean of x x' over correlated inputs.
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

/// The times of one instruction set on one problem, with one thread in alternating rounds.
struct SolveTimes {
  Spread product, prepare, dense, pattern;  ///< seconds; the last two are divided by the time of one product
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

/// The time in seconds in which a CUDA device solves many rows at once, and the share of rows whose bytes
/// differ from the CPU's.
struct DeviceTimes {
  Spread dense, pattern;
  int64_t rows;
  bool same_bytes = true;
};

DeviceTimes measure_on_device(const SolveProblem& p, int rounds) {
  constexpr int64_t kCopies = 8;  // copies of the problem's rows, because a device needs many rows
  std::vector<float> weights;
  for (int64_t i = 0; i < kCopies; ++i) weights.insert(weights.end(), p.weights.begin(), p.weights.end());
  std::vector<uint8_t> codes(weights.size() / 2), scales(weights.size() / 16),
      own_codes(p.weights.size() / 2), own_scales(p.weights.size() / 16);
  float amax = 0;
  for (const float w : p.weights) amax = std::max(amax, std::fabs(w));
  const float stored = global_scale_of(QuantizeRule(), amax).stored;
  const DampedHessian hessian = damped_hessian(p.hessian, p.k, 0.01, true);
  cuda::DeviceSolver solver;
  cuda::DeviceHessian on_device;
  DeviceTimes times{{}, {}, kCopies * p.rows};
  const auto measure = [&](std::optional<PrunePattern> pattern, int sweeps) {
    const GroupMaps maps(hessian, pattern);
    on_device.load(hessian, &maps, p.hessian);
    const SolveRule rule{.pattern = pattern, .sweeps = sweeps, .min_gain = 0};
    std::vector<double> seconds;
    solver.solve(rule, on_device, stored, {weights}, {codes.data(), scales.data()});
    for (int round = 0; round < rounds; ++round) {
      Stopwatch watch;
      solver.solve(rule, on_device, stored, {weights}, {codes.data(), scales.data()});
      seconds.push_back(watch.lap());
    }
    solve_rows(rule, hessian, &maps, stored, {p.weights}, {own_codes.data(), own_scales.data()},
               omp_get_num_procs());
    times.same_bytes = times.same_bytes &&
                       std::equal(own_codes.begin(), own_codes.end(),
                                  codes.end() - static_cast<ptrdiff_t>(own_codes.size())) &&
                       std::equal(own_scales.begin(), own_scales.end(), scales.begin());
    return spread_of(seconds);
  };
  times.dense = measure(std::nullopt, 2);
  times.pattern = measure(PrunePattern::k2of4, 4);
  return times;
}

int run_bench_solve(const SolveArguments& o, const Common& common) {
  const bool on_device = choose_device(common) == Device::cuda;
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
    if (!on_device) continue;
    const DeviceTimes t = measure_on_device(problem, o.rounds);
    results.push_back({{"shape", {t.rows, k}},
                       {"isa", "cuda"},
                       {"same_bytes", t.same_bytes},
                       {"gptq_2_sweeps_seconds", spread_to_json(t.dense)},
                       {"joint_4_sweeps_seconds", spread_to_json(t.pattern)}});
    if (!common.json) {
      print_stdout("[{}, {}], {}: gptq and 2 sweeps {:.1f} ms, 2:4 joint and 4 sweeps {:.1f} ms; {} bytes\n",
                   t.rows, k, device_text(Device::cuda), 1e3 * t.dense.median, 1e3 * t.pattern.median,
                   t.same_bytes ? "the CPU's" : "OTHER");
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
      "One thread, and eight times the rows on a GPU, copies there and back included. A product is that of "
      "all rows with the Hessian [K, K], which a sweep has to do as well.");
  return [o, &common] { return run_bench_solve(*o, common); };
}

}  // namespace twofour
