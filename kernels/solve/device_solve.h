#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device/device_memory.h"
#include "kernels/solve/solve.h"

namespace twofour::cuda {

/// What solving reads of a Hessian, in memory of the current device. It keeps its memory from one Hessian to
/// the next.
class DeviceHessian {
 public:
  /// `maps` as for solve_rows; nullptr: none. `mean` [k, k] is for quadratic_forms; empty: none.
  void load(const DampedHessian& hessian, const GroupMaps* maps, std::span<const float> mean);
  int64_t k() const { return k_; }

 private:
  friend class DeviceSolver;
  int64_t k_ = 0;
  bool has_factor_ = false, has_maps_ = false, has_mean_ = false;
  std::optional<PrunePattern> pattern_;
  DeviceMemory matrix_, factor_, maps_, diagonal_, mean_;
};

/// Solves rows on the current device, on a stream of its own. Use one a thread. Every function throws Error
/// with CUDA's words.
class DeviceSolver {
 public:
  DeviceSolver();
  DeviceSolver(const DeviceSolver&) = delete;
  DeviceSolver& operator=(const DeviceSolver&) = delete;
  ~DeviceSolver();

  /// solve_rows by joint or diagonal: the same bytes as on a CPU.
  void solve(const SolveRule& rule, const DeviceHessian& hessian, float stored, const SolveInput& in,
             const SolveOutput& out);
  /// quadratic_forms under the mean that was loaded: the same numbers as on a CPU.
  std::vector<double> quadratic_forms(const DeviceHessian& hessian, std::span<const float> rows);

 private:
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace twofour::cuda
