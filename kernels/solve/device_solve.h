#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/solve/device_hessian.h"
#include "kernels/solve/solve.h"

namespace twofour::cuda {

/// Solves rows on the current device, on its own stream. Use one solver for each thread. Every function
/// throws Error with CUDA's message.
class DeviceSolver {
 public:
  DeviceSolver();
  DeviceSolver(const DeviceSolver&) = delete;
  DeviceSolver& operator=(const DeviceSolver&) = delete;
  ~DeviceSolver();

  /// Solves rows like solve_rows by `joint` or `diagonal`. Gives the same bytes as on a CPU.
  void solve(const SolveRule& rule, const DeviceHessian& hessian, float stored, const SolveInput& in,
             const SolveOutput& out);
  /// Computes quadratic_forms under the loaded mean. Gives the same numbers as on a CPU.
  std::vector<double> quadratic_forms(const DeviceHessian& hessian, std::span<const float> rows);

 private:
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace twofour::cuda
