#include <doctest/doctest.h>

#include <optional>

#include "kernels/solve/device_solve.h"
#include "kernels/solve/solve.h"
#include "tests/support/device/device.h"
#include "tests/support/message.h"
#include "tests/support/solve_problem.h"

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

}  // namespace

TEST_CASE("a device solves to the CPU's bytes, whatever it solved before") {
  if (no_gpu()) return;
  cuda::DeviceSolver solver;
  cuda::DeviceHessian on_device;
  unsigned seed = 1;
  for (const std::optional<PrunePattern> pattern :
       {std::optional<PrunePattern>(), std::optional(PrunePattern::k2of4),
        std::optional(PrunePattern::k4of8Paired)}) {
    for (const auto& [rows, k] : {std::pair{1, 16}, {33, 64}, {100, 48}, {32, 512}, {70, 528}, {5, 32}}) {
      for (const Arithmetic arithmetic : {Arithmetic::modelopt, Arithmetic::compressed_tensors}) {
        for (const SolveMethod method : {SolveMethod::joint, SolveMethod::diagonal}) {
          for (const bool is_given : {false, true}) {
            if (is_given && !pattern) continue;
            for (const int sweeps : {0, 1, 4}) {
              const SolveProblem p(rows, k, 3 * k, ++seed, arithmetic);
              CAPTURE(rows);
              CAPTURE(k);
              CAPTURE(seed);
              const std::vector<uint8_t> mask =
                  is_given ? random_mask(p, *pattern, seed) : std::vector<uint8_t>();
              const DampedHessian hessian = damped_hessian(p.hessian, k, 0.01, method == SolveMethod::joint);
              const GroupMaps maps(hessian, pattern);
              const SolveRule rule{.method = method,
                                   .pattern = pattern,
                                   .arithmetic = arithmetic,
                                   .zero_scale = 0x31,
                                   .sweeps = sweeps,
                                   .min_gain = seed % 2 == 0 ? 0.005f : 0.0f};
              Solved on_cpu(p), ours(p);
              solve_rows(rule, hessian, &maps, p.stored, {p.weights, mask},
                         {on_cpu.codes.data(), on_cpu.scales.data()});
              on_device.load(hessian, sweeps > 0 ? &maps : nullptr, p.hessian);
              solver.solve(rule, on_device, p.stored, {p.weights, mask},
                           {ours.codes.data(), ours.scales.data()});
              CHECK(on_cpu.scales == ours.scales);
              CHECK(on_cpu.codes == ours.codes);
              if (sweeps == 0)
                CHECK(solver.quadratic_forms(on_device, p.weights) ==
                      quadratic_forms(p.hessian, k, p.weights));
            }
          }
        }
      }
    }
  }
}

}  // namespace device_solve_test
