#pragma once
#include <cstdint>
#include <span>

#include "kernels/device/device_memory.h"

namespace twofour::cuda {

/// The factors of a damped Hessian on the current device. They have the same bits as in damped_hessian and
/// DampedInverse. The object reuses its memory from one Hessian to the next. For k = 2048, it takes 32 MiB.
/// Every function throws Error with CUDA's message.
class DeviceFactor {
 public:
  /// Factorizes a mean H [k, k] on the device. Reads only its upper triangle. `lambda` and `shrink`
  /// are as in DampedHessian. Throws Error like damped_hessian if Hd is not positive definite.
  void factorize(const float* mean, int64_t k, double lambda, double shrink);
  /// Writes U of DampedHessian to `factor` [k, k] on the device, with zeros below the diagonal.
  void write_factor(float* factor);
  /// Multiplies `rows` [n, k] on the host in place, like DampedInverse::multiply.
  void multiply(std::span<float> rows);
  /// The number of bytes of device memory, without the small arrays.
  size_t bytes() const { return numbers_.bytes() + columns_.bytes(); }

 private:
  int64_t k_ = 0;
  DeviceStream stream_;
  DeviceMemory numbers_;   ///< [k, k] doubles: see Cholesky in hessian.cpp
  DeviceMemory diagonal_;  ///< [k] doubles
  DeviceMemory rows_, columns_;
};

}  // namespace twofour::cuda
