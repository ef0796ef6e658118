#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device/device_memory.h"
#include "kernels/solve/device_factor.h"
#include "kernels/solve/solve.h"

namespace twofour::cuda {

/// The parts of a Hessian that solvers read, in memory of the current device. The object reuses its memory
/// from one Hessian to the next.
class DeviceHessian {
 public:
  /// Loads a Hessian. `maps` are as for solve_rows and may be null. `mean` [k, k] is for factorize and
  /// quadratic_forms and may be empty.
  void load(const DampedHessian& hessian, const GroupMaps* maps, std::span<const float> mean);
  /// Computes a factor that was not loaded, for solving by `joint`, or the inverse for multiply_inverse, or
  /// both. `lambda` and `shrink` are as in DampedHessian; the inverse is of the H that is not shrunk. Throws
  /// Error like damped_hessian.
  void factorize(double lambda, double shrink, bool with_factor, bool with_inverse);
  /// Multiplies rows like DampedInverse::multiply.
  void multiply_inverse(std::span<float> rows);
  int64_t k() const { return k_; }
  /// The factor [k, k], either loaded or computed.
  std::vector<float> factor() const;

 private:
  friend class DeviceSolver;
  int64_t k_ = 0;
  bool has_factor_ = false, has_maps_ = false, has_mean_ = false, has_inverse_ = false;
  std::optional<PrunePattern> pattern_;
  DeviceMemory matrix_, factor_, maps_, diagonal_, mean_;
  std::unique_ptr<DeviceFactor> inverse_;  ///< set after factorize() computed the inverse
};

}  // namespace twofour::cuda
