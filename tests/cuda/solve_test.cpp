#include <doctest/doctest.h>

#include <optional>

#include "kernels/solve/device_solve.h"
#include "kernels/solve/solve.h"
#include "tests/support/device/device.h"
#include "tests/support/message.h"
#include "tests/support/weights/solve_problem.h"

namespace device_solve_test {

// The solver on a device against that of the CPU, byte for byte.

using namespace twofour;

namespace {

struct Solved {
  std::vector<uint8_t> codes, scales;
  explicit Solved(const SolveProblem& p)
      : codes(p.weights.size() / 2, 0xA5), scales(p.weights.size() / 16, 0xA5) {}
  bool operator==(const Solved&) const = default;
};

/// Rows by every method, mask, search and number of sweeps, whatever the solver solved before.
void check_pattern(std::optional<PrunePattern> pattern, double shrink = 0, int scale_search = 2) {
  if (no_gpu()) return;
  cuda::DeviceSolver solver;
  cuda::DeviceHessian on_device;
  unsigned seed = 1, turn = 0;
  for (const auto& [rows, k] : {std::pair{1, 16}, {33, 64}, {100, 48}, {32, 512}, {70, 528}, {5, 32}}) {
    for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
      const SolveProblem p(rows, k, 3 * k, ++seed, arithmetic);
      for (const SolveMethod method : {SolveMethod::joint, SolveMethod::diagonal}) {
        const DampedHessian hessian =
            damped_hessian(p.hessian, k, {0.01, shrink}, method == SolveMethod::joint);
        const GroupMaps maps(hessian, pattern);
        for (const bool is_given : {false, true}) {
          if (is_given && !pattern) continue;
          for (const int sweeps : {0, 1, 4}) {
            ++turn;
            CAPTURE(rows);
            CAPTURE(k);
            CAPTURE(turn);
            const std::vector<uint8_t> mask =
                is_given ? random_mask(p, *pattern, turn) : std::vector<uint8_t>();
            const SolveRule rule{.method = method,
                                 .pattern = pattern,
                                 .arithmetic = arithmetic,
                                 .zero_scale = 0x31,
                                 .sweeps = sweeps,
                                 .min_gain = turn % 2 == 0 ? 0.005f : 0.0f,
                                 .scale_search = scale_search};
            Solved on_cpu(p), ours(p);
            solve_rows(rule, hessian, &maps, p.stored, {p.weights, mask},
                       {on_cpu.codes.data(), on_cpu.scales.data()});
            DampedHessian loaded = hessian;
            const bool finds_factor = turn % 3 == 0 && !loaded.factor.empty();
            if (finds_factor) loaded.factor.clear();
            on_device.load(loaded, sweeps > 0 ? &maps : nullptr, p.hessian);
            if (finds_factor) on_device.factorize(hessian.lambda, shrink, true, false);
            solver.solve(rule, on_device, p.stored, {p.weights, mask},
                         {ours.codes.data(), ours.scales.data()});
            CHECK(on_cpu.scales == ours.scales);
            CHECK(on_cpu.codes == ours.codes);
          }
        }
      }
      CHECK(solver.quadratic_forms(on_device, p.weights) == quadratic_forms(p.hessian, k, p.weights));
    }
  }
}

}  // namespace

TEST_CASE("a device solves dense rows to the CPU's bytes") { check_pattern(std::nullopt); }
TEST_CASE("a device solves 2:4 rows to the CPU's bytes") { check_pattern(PrunePattern::k2of4); }
TEST_CASE("a device solves 4:8-paired rows to the CPU's bytes") { check_pattern(PrunePattern::k4of8Paired); }

TEST_CASE("a device solves dense rows by shrunk Hessians and a wider search to the CPU's bytes") {
  check_pattern(std::nullopt, 0.5, 7);
}
TEST_CASE("a device solves 2:4 rows by shrunk Hessians and a wider search to the CPU's bytes") {
  check_pattern(PrunePattern::k2of4, 0.1, 7);
}
TEST_CASE("a device solves 4:8-paired rows by shrunk Hessians and a wider search to the CPU's bytes") {
  check_pattern(PrunePattern::k4of8Paired, 0.1, 7);
}

TEST_CASE("a device solves every format to the CPU's bytes") {
  if (no_gpu()) return;
  cuda::DeviceSolver solver;
  cuda::DeviceHessian on_device;
  unsigned seed = 60, turn = 0;
  for (const WeightFormat format :
       {WeightFormat::kMxfp4, WeightFormat::kMxfp6, WeightFormat::kMxfp8, WeightFormat::kFp8}) {
    for (const auto& [rows, k] : {std::pair{1, 32}, {33, 64}, {100, 96}, {70, 544}}) {
      const SolveProblem p(rows, k, 3 * k, ++seed);
      const auto count = static_cast<int64_t>(p.weights.size());
      std::vector<float> steps;
      for (int64_t b = 0; has_fixed_scales(format) && b < count / 16; ++b)
        steps.push_back(0.001f * static_cast<float>(1 + b * 16 / k % 5));
      for (const SolveMethod method : {SolveMethod::joint, SolveMethod::diagonal}) {
        const DampedHessian hessian = damped_hessian(p.hessian, k, {0.01, 0.5}, method == SolveMethod::joint);
        const GroupMaps maps(hessian, std::nullopt);
        for (const int sweeps : {0, 2}) {
          CAPTURE(format->name);
          CAPTURE(rows);
          SolveRule rule;
          rule.method = method;
          rule.zero_scale = 0x31;
          rule.sweeps = sweeps;
          rule.scale_search = ++turn % 2 == 0 ? 1 : 4;
          rule.format = format;
          const auto bytes = static_cast<size_t>(format->code_bytes(count)),
                     scales = static_cast<size_t>(steps.empty() ? count / 32 : 0);
          std::vector<uint8_t> cpu_codes(bytes), codes(bytes), cpu_scales(scales), own_scales(scales);
          const SolveInput in{p.weights, {}, steps};
          solve_rows(rule, hessian, &maps, 1, in, {cpu_codes.data(), cpu_scales.data()});
          on_device.load(hessian, sweeps > 0 ? &maps : nullptr, p.hessian);
          solver.solve(rule, on_device, 1, in, {codes.data(), own_scales.data()});
          CHECK(cpu_scales == own_scales);
          CHECK(cpu_codes == codes);
        }
      }
    }
  }
}

TEST_CASE("a device shrinks the factor but not the inverse, in any order, as the CPU does") {
  if (no_gpu()) return;
  cuda::DeviceHessian on_device;
  unsigned seed = 300;
  for (const int k : {16, 48, 272, 528}) {
    CAPTURE(k);
    const SolveProblem p(33, k, 3 * k, ++seed);
    for (const double shrink : {0.5, 0.1, 1.0, 0.0, 0.3}) {
      CAPTURE(shrink);
      DampedHessian hessian = damped_hessian(p.hessian, k, {0.01, shrink}, true);
      const std::vector<float> factor = hessian.factor;
      hessian.factor.clear();
      on_device.load(hessian, nullptr, p.hessian);
      on_device.factorize(hessian.lambda, hessian.shrink, true, true);
      std::vector<float> on_cpu = p.weights, ours = p.weights;
      DampedInverse(p.hessian, k, 0.01).multiply(on_cpu);
      on_device.multiply_inverse(ours);
      CHECK(on_cpu == ours);
      CHECK(on_device.factor() == factor);
    }
  }
}

TEST_CASE("a device factorizes Hessians and solves by them to the CPU's bytes") {
  if (no_gpu()) return;
  cuda::DeviceHessian on_device;
  unsigned seed = 100;
  // Of panels of 32 columns and tiles of 64: parts of one, several, and what is left.
  for (const auto& [rows, k] :
       {std::pair{1, 16}, {3, 32}, {64, 48}, {65, 64}, {0, 80}, {129, 272}, {33, 528}, {7, 144}}) {
    CAPTURE(rows);
    CAPTURE(k);
    const SolveProblem p(rows, k, 3 * k, ++seed);
    DampedHessian hessian = damped_hessian(p.hessian, k, 0.01, true);
    const std::vector<float> factor = hessian.factor;
    hessian.factor.clear();
    on_device.load(hessian, nullptr, p.hessian);
    for (const bool with_factor : {false, true}) {
      on_device.factorize(hessian.lambda, 0, with_factor, true);
      std::vector<float> on_cpu = p.weights, ours = p.weights;
      DampedInverse(p.hessian, k, 0.01).multiply(on_cpu);
      on_device.multiply_inverse(ours);
      CHECK(on_cpu == ours);
    }
    CHECK(on_device.factor() == factor);
  }
}

TEST_CASE("a device refuses what is no sum of products in the CPU's words") {
  if (no_gpu()) return;
  constexpr int64_t k = 144;
  for (const int64_t column : {0, 40, 143}) {
    SolveProblem p(1, k, 200, 5);
    p.hessian[static_cast<size_t>(column * (k + 1))] *= 1e-3f;
    DampedHessian hessian = damped_hessian(p.hessian, k, 1e-9, false);
    const std::string expected = message_of([&] { damped_hessian(p.hessian, k, 1e-9, true); });
    CHECK(expected.find("positive definite") != std::string::npos);
    cuda::DeviceHessian on_device;
    on_device.load(hessian, nullptr, p.hessian);
    CHECK(message_of([&] { on_device.factorize(hessian.lambda, 0, true, true); }) == expected);
  }
}

}  // namespace device_solve_test
